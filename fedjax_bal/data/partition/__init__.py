"""Partitions: which rows of a labelled data set each client owns.

Each scheme takes a NumPy generator, the labels `Int[D]` and the number of clients, and returns one array of row numbers
for each client. Labels need not be 0..C-1; classes are the ones present. The same state of the generator gives the same
partition. Inputs without a solution raise `ValueError` with the reason.

`long_tailed` runs before a scheme: it thins classes out, so that the whole set is imbalanced. `draw` does both, as a
configuration describes them.
"""

import inspect
import re
import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.data.partition.client_dirichlet import balanced_dirichlet, client_dirichlet, refilled_dirichlet
from fedjax_bal.data.partition.dirichlet import dirichlet, equal_cut_dirichlet, extended_dirichlet
from fedjax_bal.data.partition.even import iid, shards
from fedjax_bal.data.partition.file import class_table, file, natural
from fedjax_bal.data.partition.long_tail import Order, Profile, local_long_tail, long_tail, long_tailed, mixed_long_tail
from fedjax_bal.data.partition.papers import astraea, flcir_realworld, letter_shares, normal_density, normal_shares
from fedjax_bal.data.partition.pathological import pathological
from fedjax_bal.data.partition.quantity import empirical_sizes, lognormal_sizes, quantity
from fedjax_bal.registry import Registry
from fedjax_bal.types import Dataset

__all__ = [
    "ALIASES",
    "FROM_DATASET",
    "SCHEMES",
    "Alias",
    "aliases_of",
    "astraea",
    "balanced_dirichlet",
    "class_table",
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
    "local_long_tail",
    "lognormal_sizes",
    "long_tail",
    "long_tailed",
    "mixed_long_tail",
    "natural",
    "normal_density",
    "normal_shares",
    "pathological",
    "quantity",
    "refilled_dirichlet",
    "resolve",
    "shards",
    "takes_owners",
    "thin_out",
]

SCHEMES: Registry[Callable[..., list[np.ndarray]]] = Registry(
    {
        scheme.__name__: scheme
        for scheme in (
            iid,
            quantity,
            pathological,
            shards,
            dirichlet,
            client_dirichlet,
            balanced_dirichlet,
            refilled_dirichlet,
            equal_cut_dirichlet,
            extended_dirichlet,
            long_tail,
            local_long_tail,
            mixed_long_tail,
            flcir_realworld,
            astraea,
            normal_density,
            natural,
            class_table,
            file,
        )
    }
)
"""Name of each scheme -> the function that draws it."""


class Alias(NamedTuple):
    """The meaning of an alias: a partition scheme, and the parameters that the alias implies.

    Attributes:
        scheme: the scheme's name.
        parameters: the implied parameters; others may be given too.
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
        "local_longtail": Alias("local_long_tail"),
        "mixed_longtail": Alias("mixed_long_tail"),
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
"""Alias -> its meaning; `-` counts as `_`, and capitals as small letters.

From NIID-Bench (homo, noniid-labeldir, noniid-#label2, iid-diff-quantity), FedML (homo, hetero, lda), FedLab
(hetero_dir, balance_dirichlet, unbalance_dirichlet, client_inner_dirichlet), PFLlib (pat, dir, exdir), LongTailLib
(local_longtail, mixed_longtail), and Flower Datasets (its partitioners' names without "Partitioner").
"""

_LABELS_EACH = re.compile(r"(?:noniid_)?#(?:label|c=)(\d{1,9})")


def resolve(name: str) -> Alias:
    """Resolves the name or an alias of a partition scheme.

    Args:
        name: a scheme's name, one of `ALIASES`, or `noniid-#labelK` or `#C=K` with K, the number of classes.

    Returns:
        The scheme and the implied parameters; an unknown name unchanged, without parameters.

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
    """Lists the aliases of a scheme in alphabetical order.

    Example:
        >>> aliases_of("shards")
        ('shard',)
    """
    return tuple(sorted(name for name, alias in ALIASES.items() if alias.scheme == scheme))


FROM_DATASET: Mapping[str, Callable[[Dataset, np.ndarray], Any]] = MappingProxyType(
    {
        "owners": lambda dataset, rows: None if dataset.train_clients is None else dataset.train_clients[rows],
        "row_numbers": lambda dataset, rows: rows,
        "official_order": lambda dataset, rows: dataset.official_order,
        "class_names": lambda dataset, rows: dataset.class_names,
        "dataset_size": lambda dataset, rows: len(dataset.train_labels),
    }
)
"""Parameters that come from the data set: name -> function of the data set and the partitioned row numbers."""


def from_dataset(scheme: Callable[..., Any], dataset: Dataset, rows: np.ndarray) -> dict[str, Any]:
    """Returns the arguments of a scheme that come from the data set and not from options.

    Args:
        scheme: one of `SCHEMES`.
        dataset: the data set.
        rows: the training rows that are partitioned, `Int[R]`.

    Returns:
        Arguments by name; for most schemes none.

    Example:
        >>> dataset = Dataset(None, None, None, None, ("a", "b"), np.array([5, 6, 6]))
        >>> from_dataset(SCHEMES["natural"], dataset, np.array([0, 2]))
        {'owners': array([5, 6])}
        >>> from_dataset(SCHEMES["iid"], dataset, np.array([0, 2]))
        {}
    """
    parameters = inspect.signature(scheme).parameters
    return {name: take(dataset, rows) for name, take in FROM_DATASET.items() if name in parameters}


def takes_owners(scheme: str) -> bool:
    """Returns whether a scheme's clients are the data set's writers or users.

    Example:
        >>> takes_owners("natural"), takes_owners("iid")
        (True, False)
    """
    return "owners" in inspect.signature(SCHEMES[scheme]).parameters


def thin_out(
    labels: np.ndarray,
    seed: int,
    imbalance_factor: float = 1.0,
    imbalance_profile: Profile = "exponential",
    imbalance_order: Order = "label",
) -> np.ndarray:
    """Returns the rows that `draw` partitions, ascending: those of a global long tail, or all for a factor of 1.

    The arguments are those of `draw`. A separate generator draws the rows, so that the scheme draws the same random
    numbers with and without the long tail.

    Example:
        >>> len(thin_out(np.repeat(np.arange(10), 500), 0, 100))
        1236
    """
    if imbalance_factor == 1:
        return np.arange(len(labels))
    rng = np.random.default_rng([seed, zlib.crc32(b"imbalance")])
    return long_tailed(rng, labels, imbalance_factor, imbalance_profile, imbalance_order)


def draw(
    labels: np.ndarray,
    scheme: str,
    clients: int | None,
    seed: int,
    parameters: Mapping[str, Any],
    imbalance_factor: float = 1.0,
    imbalance_profile: Profile = "exponential",
    imbalance_order: Order = "label",
    given: Mapping[str, Any] = MappingProxyType({}),
) -> list[np.ndarray]:
    """Draws a partition by a scheme's name, of all rows or of a global long tail.

    Args:
        labels: `Int[D]`.
        scheme: one of `SCHEMES`.
        clients: N; None, for `natural` only, for one per writer or user.
        seed: the partition's seed.
        parameters: the scheme's parameters.
        imbalance_factor: rows of the largest class over those of the smallest, at least 1; 1 keeps all rows.
        imbalance_profile: see `long_tailed`.
        imbalance_order: see `long_tailed`.
        given: arguments from `from_dataset`: arrays `[D]`, which follow the rows that are kept, and other values.

    Returns:
        N arrays of row numbers.

    Raises:
        ValueError: arguments without a solution.

    Example:
        >>> labels = np.repeat(np.arange(10), 500)
        >>> parts = draw(labels, "dirichlet", 20, 0, {"alpha": 0.5}, imbalance_factor=100)
        >>> np.bincount(labels[np.concatenate(parts)]).tolist()
        [500, 299, 179, 107, 64, 38, 23, 13, 8, 5]
    """
    rng = np.random.default_rng(seed)
    if imbalance_factor == 1:
        return SCHEMES[scheme](rng, labels, clients, **given, **parameters)
    kept = thin_out(labels, seed, imbalance_factor, imbalance_profile, imbalance_order)
    given = {name: values[kept] if isinstance(values, np.ndarray) else values for name, values in given.items()}
    return [kept[rows] for rows in SCHEMES[scheme](rng, labels[kept], clients, **given, **parameters)]
