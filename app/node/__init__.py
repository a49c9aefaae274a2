"""The virtual node: its object, lease, conditions, capacity, and whether the remote can be reached."""
