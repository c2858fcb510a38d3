"""Partitions: which rows of a labelled data set each client owns.

Each function takes a NumPy generator, the labels `Int[D]` and the number of clients, and returns one array of row
numbers for each client. Labels need not be 0..C-1: what counts is which ones are present. The same state of the
generator gives the same partition. Inputs without a solution are refused with the reason.

`long_tailed` comes before any of them: it thins classes out, so that the whole set is imbalanced. `draw` does both, as
a configuration says.
"""

from .astraea import astraea
from .client_dirichlet import balanced_dirichlet, client_dirichlet
from .dirichlet import dirichlet
from .draw import draw
from .even import iid, shards
from .extended_dirichlet import extended_dirichlet
from .from_dataset import FROM_DATASET, from_dataset
from .imbalance import long_tailed
from .letters import letter_shares
from .long_tail import long_tail
from .names import ALIASES, Alias, aliases_of, resolve
from .natural import natural
from .normal import normal_density, normal_shares
from .pathological import pathological
from .quantity import quantity
from .realworld import flcir_realworld
from .schemes import SCHEMES
from .sizes import empirical_sizes, lognormal_sizes

__all__ = [
    "ALIASES",
    "FROM_DATASET",
    "SCHEMES",
    "Alias",
    "aliases_of",
    "astraea",
    "balanced_dirichlet",
    "client_dirichlet",
    "dirichlet",
    "draw",
    "empirical_sizes",
    "extended_dirichlet",
    "flcir_realworld",
    "from_dataset",
    "iid",
    "letter_shares",
    "lognormal_sizes",
    "long_tail",
    "long_tailed",
    "natural",
    "normal_density",
    "normal_shares",
    "pathological",
    "quantity",
    "resolve",
    "shards",
]
