"""Which local namespaces are extended to the remote cluster, and under which name."""
