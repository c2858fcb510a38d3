"""A partition as a configuration describes it: a global long tail first, if one is wanted, then any scheme."""

import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from fedjax_bal.data.partition.imbalance import long_tailed
from fedjax_bal.data.partition.schemes import SCHEMES


def draw(
    labels: np.ndarray,
    scheme: str,
    clients: int,
    seed: int,
    parameters: Mapping[str, Any],
    imbalance_factor: float = 1.0,
    imbalance_profile: Literal["exponential", "step"] = "exponential",
    imbalance_order: Literal["label", "frequency", "random"] = "label",
    given: Mapping[str, Any] = MappingProxyType({}),
) -> list[np.ndarray]:
    """Draws a partition by a scheme's name, after a global long tail where one is wanted.

    The rows that the long tail keeps are drawn from numbers of their own, so that the scheme draws from the same ones
    with and without it.

    Args:
        labels: `Int[D]`.
        scheme: one of `SCHEMES`.
        clients: N.
        seed: of the partition.
        parameters: of the scheme.
        imbalance_factor: rows of the largest class over those of the smallest, at least 1; 1 leaves all rows in.
        imbalance_profile: see `long_tailed`.
        imbalance_order: see `long_tailed`.
        given: what the scheme asks of the data set, from `from_dataset`: arrays `[D]`, or None for what it lacks.

    Returns:
        N arrays of row numbers.

    Raises:
        ValueError: there is no such partition.

    Example:
        >>> labels = np.repeat(np.arange(10), 500)
        >>> parts = draw(labels, "dirichlet", 20, 0, {"alpha": 0.5}, imbalance_factor=100)
        >>> np.bincount(labels[np.concatenate(parts)]).tolist()
        [500, 299, 179, 107, 64, 38, 23, 13, 8, 5]
    """
    rng = np.random.default_rng(seed)
    if imbalance_factor == 1:
        return SCHEMES[scheme](rng, labels, clients, **given, **parameters)
    own = np.random.default_rng([seed, zlib.crc32(b"imbalance")])
    kept = long_tailed(own, labels, imbalance_factor, imbalance_profile, imbalance_order)
    given = {name: None if values is None else values[kept] for name, values in given.items()}
    return [kept[rows] for rows in SCHEMES[scheme](rng, labels[kept], clients, **given, **parameters)]
