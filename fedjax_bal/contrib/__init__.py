"""Additions to the simulator: privacy attacks and metric trackers."""
