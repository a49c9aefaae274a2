"""Offloading: a local pod becomes a twin in the remote cluster, and the status of what runs there comes back."""
