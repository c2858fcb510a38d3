"""The table of partition schemes."""

from collections.abc import Callable

import numpy as np

from fedjax_bal.data.partition.astraea import astraea
from fedjax_bal.data.partition.client_dirichlet import balanced_dirichlet, client_dirichlet
from fedjax_bal.data.partition.dirichlet import dirichlet
from fedjax_bal.data.partition.even import iid, shards
from fedjax_bal.data.partition.extended_dirichlet import extended_dirichlet
from fedjax_bal.data.partition.long_tail import long_tail
from fedjax_bal.data.partition.natural import natural
from fedjax_bal.data.partition.normal import normal_density
from fedjax_bal.data.partition.pathological import pathological
from fedjax_bal.data.partition.quantity import quantity
from fedjax_bal.data.partition.realworld import flcir_realworld

SCHEMES: dict[str, Callable[..., list[np.ndarray]]] = {
    "iid": iid,
    "quantity": quantity,
    "pathological": pathological,
    "shards": shards,
    "dirichlet": dirichlet,
    "client_dirichlet": client_dirichlet,
    "balanced_dirichlet": balanced_dirichlet,
    "extended_dirichlet": extended_dirichlet,
    "long_tail": long_tail,
    "flcir_realworld": flcir_realworld,
    "astraea": astraea,
    "normal_density": normal_density,
    "natural": natural,
}
"""Name of each scheme -> the function that draws it."""
