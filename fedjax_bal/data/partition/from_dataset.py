"""What a scheme may ask of the data set, beside the labels."""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from fedjax_bal.types import Dataset

FROM_DATASET: Mapping[str, Callable[[Dataset, np.ndarray], Any]] = MappingProxyType(
    {"owners": lambda dataset, rows: None if dataset.train_clients is None else dataset.train_clients[rows]}
)
"""Name of a parameter -> what it gets, from the data set and the row numbers that are partitioned."""


def from_dataset(scheme: Callable[..., Any], dataset: Dataset, rows: np.ndarray) -> dict[str, Any]:
    """The arguments of a scheme that no configuration gives.

    Args:
        scheme: one of `SCHEMES`.
        dataset: whose training images are partitioned.
        rows: which of them, `Int[R]`.

    Returns:
        Arguments by name; for most schemes none.

    Example:
        >>> from fedjax_bal.data.partition import SCHEMES
        >>> dataset = Dataset(None, None, None, None, ("a", "b"), np.array([5, 6, 6]))
        >>> from_dataset(SCHEMES["natural"], dataset, np.array([0, 2]))
        {'owners': array([5, 6])}
        >>> from_dataset(SCHEMES["iid"], dataset, np.array([0, 2]))
        {}
    """
    asked = inspect.signature(scheme).parameters
    return {name: give(dataset, rows) for name, give in FROM_DATASET.items() if name in asked}
