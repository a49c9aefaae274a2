"""Recipes of the binaries that are built from Go modules, one folder with pinned dependencies per module."""
