"""Partitions: which rows of a labelled data set each client owns.

Each function takes a NumPy generator, the labels `Int[D]` and the number of clients, and returns one array of row
numbers for each client. Labels need not be 0..C-1: what counts is which ones are present. The same state of the
generator gives the same partition. Inputs without a solution are refused with the reason.
"""

from collections.abc import Callable

import numpy as np

from .astraea import astraea
from .dirichlet import dirichlet
from .even import iid, shards
from .from_dataset import FROM_DATASET, from_dataset
from .letters import letter_shares
from .long_tail import long_tail
from .natural import natural
from .normal import normal_density, normal_shares
from .pathological import pathological
from .realworld import flcir_realworld
from .sizes import empirical_sizes, lognormal_sizes

SCHEMES: dict[str, Callable[..., list[np.ndarray]]] = {
    "iid": iid,
    "pathological": pathological,
    "dirichlet": dirichlet,
    "shards": shards,
    "long_tail": long_tail,
    "flcir_realworld": flcir_realworld,
    "astraea": astraea,
    "normal_density": normal_density,
    "natural": natural,
}
"""Name of each scheme -> the function that draws it."""

__all__ = [
    "FROM_DATASET",
    "SCHEMES",
    "astraea",
    "dirichlet",
    "empirical_sizes",
    "flcir_realworld",
    "from_dataset",
    "iid",
    "letter_shares",
    "lognormal_sizes",
    "long_tail",
    "natural",
    "normal_density",
    "normal_shares",
    "pathological",
    "shards",
]
