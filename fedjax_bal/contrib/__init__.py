"""Beside the simulator: attacks on privacy, and trackers of metrics."""
