"""Benchmarks: each prints a table of ratios against a baseline that was measured in the same run."""
