"""Partitions: which rows of a labelled data set each client owns.

Each function takes a NumPy generator, the labels `Int[D]` and the number of clients, and returns one array of row
numbers for each client. Labels need not be 0..C-1: what counts is which ones are present. The same state of the
generator gives the same partition. Inputs without a solution are refused with the reason.
"""

from collections.abc import Callable

import numpy as np

from .dirichlet import dirichlet
from .even import iid, shards
from .long_tail import long_tail
from .pathological import pathological

SCHEMES: dict[str, Callable[..., list[np.ndarray]]] = {
    "iid": iid,
    "pathological": pathological,
    "dirichlet": dirichlet,
    "shards": shards,
    "long_tail": long_tail,
}
"""Name of each scheme -> the function that draws it."""

__all__ = ["SCHEMES", "dirichlet", "iid", "long_tail", "pathological", "shards"]
