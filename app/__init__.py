"""Farlet: shows a whole remote Kubernetes cluster as one node of the local cluster.

The version is a constant, and the build reads it from here, so that it has one place and
asking for it costs no metadata lookup at every start.
"""

__version__ = "0.1.0.dev0"
