"""The Kubernetes client: connections, raw objects, list and watch, queues, events, leader election."""
