"""Backends, which train the batches of a sweep: this process, or a cluster."""
