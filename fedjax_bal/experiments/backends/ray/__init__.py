"""Sweeps on a cluster through Ray: a worker process for each group of runs, one writer."""
