"""The table of partition schemes."""

from collections.abc import Callable

import numpy as np

from .astraea import astraea
from .client_dirichlet import balanced_dirichlet, client_dirichlet
from .dirichlet import dirichlet
from .even import iid, shards
from .extended_dirichlet import extended_dirichlet
from .long_tail import long_tail
from .natural import natural
from .normal import normal_density
from .pathological import pathological
from .quantity import quantity
from .realworld import flcir_realworld

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
