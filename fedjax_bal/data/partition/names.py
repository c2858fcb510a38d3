"""Other names of the partition schemes: what papers and other simulators call them."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedjax_bal.data.partition.schemes import SCHEMES


class Alias(NamedTuple):
    """What another name of a scheme stands for.

    Attributes:
        scheme: the scheme's name here.
        parameters: the parameters that the other name implies; others may be given along with it.
    """

    scheme: str
    parameters: Mapping[str, Any] = MappingProxyType({})


_BY_CLASSES = {"form": "niid_bench"}

ALIASES: Mapping[str, Alias] = MappingProxyType(
    {
        "homo": Alias("iid"),
        "dir": Alias("dirichlet"),
        "lda": Alias("dirichlet"),
        "hetero": Alias("dirichlet"),
        "hetero_dir": Alias("dirichlet"),
        "noniid_labeldir": Alias("dirichlet"),
        "pat": Alias("pathological"),
        "label_skew": Alias("pathological", _BY_CLASSES),
        "noniid_#label": Alias("pathological", _BY_CLASSES),
        "shard": Alias("shards"),
        "llt": Alias("long_tail"),
        "iid_diff_quantity": Alias("quantity", {"sizes": "dirichlet"}),
        "quantity_skew": Alias("quantity"),
        "power_law": Alias("quantity", {"sizes": "power", "exponent": -1.0}),
        "linear": Alias("quantity", {"sizes": "power", "exponent": 1.0}),
        "square": Alias("quantity", {"sizes": "power", "exponent": 2.0}),
        "exponential": Alias("quantity", {"sizes": "exponential"}),
        "unbalance_iid": Alias("quantity", {"sizes": "lognormal"}),
        "dirichlet_per_client": Alias("client_dirichlet"),
        "inner_dirichlet": Alias("client_dirichlet"),
        "client_inner_dirichlet": Alias("client_dirichlet"),
        "balance_dirichlet": Alias("client_dirichlet", {"sizes": "equal"}),
        "unbalance_dirichlet": Alias("client_dirichlet", {"sizes": "lognormal"}),
        "exdir": Alias("extended_dirichlet"),
    }
)
"""Another name -> what it stands for; `-` counts as `_`, and capitals as small letters.

From NIID-Bench (homo, noniid-labeldir, noniid-#label2, iid-diff-quantity), FedML (homo, hetero, lda), FedLab
(hetero_dir, balance_dirichlet, unbalance_dirichlet, client_inner_dirichlet), PFLlib (pat, dir, exdir), and Flower
Datasets (its partitioners' names without "Partitioner").
"""

_LABELS_EACH = re.compile(r"(?:noniid_)?#(?:label|c=)(\d{1,9})")


def resolve(name: str) -> Alias:
    """The scheme that a name stands for.

    Args:
        name: a scheme's own name, one of `ALIASES`, or `noniid-#labelK` or `#C=K` with the number of classes.

    Returns:
        The scheme and the parameters that the name implies; any other name as it is, with none.

    Example:
        >>> resolve("LDA").scheme, resolve("iid").scheme
        ('dirichlet', 'iid')
        >>> resolve("noniid-#label2").parameters
        {'form': 'niid_bench', 'classes_per_client': 2}
    """
    key = name.lower().replace("-", "_")
    counted = _LABELS_EACH.fullmatch(key)
    if counted:
        return Alias("pathological", {**_BY_CLASSES, "classes_per_client": int(counted[1])})
    return ALIASES.get(key, Alias(key if key in SCHEMES else name))


def aliases_of(scheme: str) -> tuple[str, ...]:
    """The other names of a scheme.

    Args:
        scheme: its name here.

    Returns:
        The names, in alphabetical order.

    Example:
        >>> aliases_of("shards")
        ('shard',)
    """
    return tuple(sorted(name for name, alias in ALIASES.items() if alias.scheme == scheme))
