"""Keeps remote copies of what offloaded pods need: ConfigMaps, Secrets, Services and EndpointSlices."""
