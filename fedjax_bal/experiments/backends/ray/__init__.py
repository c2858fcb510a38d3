"""Sweeps on a cluster through Ray: a worker process for each batch of runs, one writer."""
