"""Data: loading, partitioning over clients, and the federation that the engine trains on. Host side, NumPy only."""

from . import partition
from .augmentation import augment, extra_bytes
from .catalogue import DATASETS, DatasetInfo
from .errors import DataError
from .federation import carve, federate
from .lone import without_lone_rows
from .normalisation import normalisation
from .sources import OWN_FILES, load

__all__ = [
    "DATASETS",
    "OWN_FILES",
    "DataError",
    "DatasetInfo",
    "augment",
    "carve",
    "extra_bytes",
    "federate",
    "load",
    "normalisation",
    "partition",
    "without_lone_rows",
]
