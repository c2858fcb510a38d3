"""Holds rows out of training: validation rows, and test rows of each client."""

import zlib
from collections.abc import Sequence

import numpy as np

from fedjax_bal import data
from fedjax_bal.config import ClientTestSection, ValidationSection


def without_validation(
    labels: np.ndarray, rest: np.ndarray, wanted: ValidationSection, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Splits the rows that clients may get, `rest`, into validation rows and the others.

    Args:
        labels: `Int[D]`.
        rest: row numbers.
        wanted: number of validation rows.
        seed: the partition's seed.

    Raises:
        ValueError: too few rows.
    """
    rng = _generator(seed, "validation")
    own = labels[rest]
    take = data.carve if wanted.fraction is None else data.carve_share
    taken, left = take(rng, own, wanted.per_class if wanted.fraction is None else wanted.fraction)  # type: ignore[arg-type]
    if not len(left):
        key, value = ("per_class", wanted.per_class) if wanted.fraction is None else ("fraction", wanted.fraction)
        raise ValueError(f"{key}: received {value}, which leaves none of {len(rest)} images to train on: take fewer")
    return rest[taken], rest[left]


def split_clients(
    rows: Sequence[np.ndarray], labels: np.ndarray, test_labels: np.ndarray, wanted: ClientTestSection, seed: int
) -> tuple[Sequence[np.ndarray], list[np.ndarray], bool]:
    """Gives each client test rows.

    Args:
        rows: each client's rows.
        labels: `Int[D]`, of all images that rows can point to.
        test_labels: `Int[T]`, of the test set.
        wanted: source and number of test rows.
        seed: the partition's seed.

    Returns:
        Each client's training rows, its test rows, and whether these point to the test set, whose first image then has
        the number D.

    Raises:
        ValueError: nothing can be held out.
    """
    rng = _generator(seed, "client test")
    if wanted.fraction is not None:
        training, tests = data.hold_out(rng, rows, wanted.fraction)
        if not any(map(len, tests)):
            raise ValueError("fraction: no client has two rows or more, of which one could be held out; use per_client")
        return training, tests, False
    classes = int(max(labels.max(), test_labels.max())) + 1
    counts = np.stack([np.bincount(labels[own], minlength=classes) for own in rows])
    drawn = data.rows_by_share(rng, counts, test_labels, wanted.per_client)  # type: ignore[arg-type]
    return rows, [len(labels) + own for own in drawn], True


def _generator(seed: int, purpose: str) -> np.random.Generator:
    # A generator of its own for each purpose, so that the partition is drawn from the same numbers with and without.
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])
