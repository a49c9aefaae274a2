"""The kubelet's HTTPS API for the virtual node: each call is carried to the remote API server."""
