"""Partitions: which rows of a labelled data set each client owns.

Each scheme takes a NumPy generator, the labels `Int[D]` and the number of clients, and returns one array of row numbers
for each client. Labels need not be 0..C-1; classes are the ones present. The same state of the generator gives the same
partition. Inputs without a solution are refused with the reason.

`long_tailed` precedes a scheme: it thins classes out, so that the whole set is imbalanced. `draw` does both, as a
configuration describes them.
"""

from fedjax_bal.data.partition.astraea import astraea, letter_shares
from fedjax_bal.data.partition.client_dirichlet import (
    balanced_dirichlet,
    client_dirichlet,
    refilled_dirichlet,
)
from fedjax_bal.data.partition.dirichlet import dirichlet
from fedjax_bal.data.partition.equal_cut import equal_cut_dirichlet
from fedjax_bal.data.partition.even import iid, shards
from fedjax_bal.data.partition.extended_dirichlet import extended_dirichlet
from fedjax_bal.data.partition.file import file
from fedjax_bal.data.partition.imbalance import long_tailed
from fedjax_bal.data.partition.long_tail import long_tail
from fedjax_bal.data.partition.natural import natural
from fedjax_bal.data.partition.normal import normal_density, normal_shares
from fedjax_bal.data.partition.pathological import pathological
from fedjax_bal.data.partition.quantity import quantity
from fedjax_bal.data.partition.realworld import flcir_realworld
from fedjax_bal.data.partition.registry import (
    ALIASES,
    FROM_DATASET,
    SCHEMES,
    Alias,
    aliases_of,
    draw,
    from_dataset,
    resolve,
    takes_owners,
    thinned,
)
from fedjax_bal.data.partition.sizes import empirical_sizes, lognormal_sizes

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
    "equal_cut_dirichlet",
    "extended_dirichlet",
    "file",
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
    "refilled_dirichlet",
    "resolve",
    "shards",
    "takes_owners",
    "thinned",
]
