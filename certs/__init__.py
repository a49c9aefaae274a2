"""The certificates of the kubelet API: what it serves with, and which clients it believes. Never a key in git."""
