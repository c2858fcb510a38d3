"""Data: loading, partitioning over clients, and the federation that the engine trains on. Host side, NumPy only."""

from . import partition
from .augmentation import augment, extra_bytes
from .catalogue import DATASETS, DatasetInfo
from .errors import DataError
from .federation import carve, federate
from .held_out import carve_share, hold_out, rows_by_share
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
    "carve_share",
    "extra_bytes",
    "federate",
    "hold_out",
    "load",
    "normalisation",
    "partition",
    "rows_by_share",
    "without_lone_rows",
]
