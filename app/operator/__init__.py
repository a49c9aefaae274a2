"""``farlet operator``: keeps NamespaceOffloading objects true and steers the pods of their namespaces."""
