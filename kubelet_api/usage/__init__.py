"""What the pods of the virtual node use: read from the remote once for all who ask, told as a kubelet tells it."""
