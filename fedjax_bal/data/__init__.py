"""Data: loading, partitioning over clients, and the federation that the engine trains on. Host side, NumPy only."""

from . import partition
from .augmentation import augment, extra_bytes
from .catalogue import DATASETS, DatasetInfo
from .errors import DataError
from .federation import carve, federate
from .lone import without_lone_rows
from .sources import load

__all__ = [
    "DATASETS",
    "DataError",
    "DatasetInfo",
    "augment",
    "carve",
    "extra_bytes",
    "federate",
    "load",
    "partition",
    "without_lone_rows",
]
