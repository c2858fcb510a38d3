"""A made data set of any number of rows, classes and features: Gaussian clouds."""

from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from fedjax_bal.annotations import Count, Positive, Seed, checked
from fedjax_bal.data.memory import check_memory
from fedjax_bal.data.partition.dealing import MAX_ROWS
from fedjax_bal.data.reading import DataError
from fedjax_bal.data.sources.reader import Reader
from fedjax_bal.types import Dataset

_BLOCK = 2**16  # rows made at a time
_MAX_CLASSES = 2**16


@checked
def make_clouds(
    rows: Annotated[Count, Le(MAX_ROWS)] = 10_000,
    classes: Annotated[int, Ge(2), Le(_MAX_CLASSES)] = 10,
    features: Count = 20,
    spread: Positive = 0.25,
    test_rows: Annotated[Count, Le(MAX_ROWS)] = 2_000,
    seed: Seed = 0,
) -> Dataset:
    """Makes Gaussian clouds, one for each class, all round and equally wide.

    Row i has class i mod C. The centres m_c are drawn from a normal distribution and scaled so that the mean squared
    distance of two of them is 1; a row of class c is m_c + spread z with z ~ N(0, I). No classifier is better than the
    nearest centre, a linear one. With ten classes in 20 dimensions its accuracy is, mean of five seeds:

    | spread | 0.15 | 0.2 | 0.25 | 0.3 | 0.4 | 0.5 | 1 |
    |---|---|---|---|---|---|---|---|
    | accuracy | 0.99 | 0.93 | 0.84 | 0.74 | 0.58 | 0.46 | 0.25 |

    Args:
        rows: number of training rows, D.
        classes: number of classes, C.
        features: number of features, K.
        spread: standard deviation of a cloud along each axis, which sets the difficulty; centres are about 1 from
            each other.
        test_rows: number of test rows.
        seed: seed of the data, independent of a run's seed. A different number of training rows leaves the centres,
            the test rows and the first training rows unchanged.

    Returns:
        The data set, `Float32[D, K]` and `Int32[D]`; classes are named by their numbers.

    Raises:
        ValueError: invalid options.
        DataError: fewer rows than classes, or too little memory.

    Example:
        >>> dataset = make_clouds(rows=1_000, classes=3, features=5)
        >>> dataset.train_images.shape, np.bincount(dataset.train_labels).tolist()
        ((1000, 5), [334, 333, 333])
        >>> np.array_equal(dataset.train_images, make_clouds(rows=2_000, classes=3, features=5).train_images[:1_000])
        True
    """
    for key, count in (("rows", rows), ("test_rows", test_rows)):
        if count < classes:
            raise DataError(f"dataset.{key}: received {count}, must be at least {classes}, one row for each class.")
    check_memory("dataset: synthetic rows need", 4 * (rows + test_rows) * (features + 1), "take fewer rows or features")
    of_centres, of_train, of_test = (np.random.default_rng([seed, purpose]) for purpose in range(3))
    centres = of_centres.standard_normal((classes, features))
    # The mean squared distance over all pairs of different centres, from their variance.
    variance = ((centres - centres.mean(0)) ** 2).sum() / (classes - 1)
    centres = (centres / np.sqrt(2 * variance)).astype(np.float32)
    train, test = (_draw(rng, count, centres, spread) for rng, count in ((of_train, rows), (of_test, test_rows)))
    return Dataset(*train, *test, tuple(map(str, range(classes))))


def _draw(rng: np.random.Generator, count: int, centres: np.ndarray, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Draws rows and labels; in blocks, so that little more than the result is in memory."""
    labels = np.arange(count, dtype=np.int32) % np.int32(len(centres))
    rows = np.empty((count, centres.shape[1]), np.float32)
    for first in range(0, count, _BLOCK):
        block = rows[first : first + _BLOCK]
        rng.standard_normal(out=block, dtype=np.float32)
        block *= np.float32(spread)
        block += centres[labels[first : first + _BLOCK]]
    return rows, labels


READERS = (
    Reader(
        name="synthetic",
        description=(
            "Gaussian clouds, made as needed: rows, classes, features, test_rows, seed, and spread, which is the "
            "difficulty"
        ),
        origin="package",
        read=make_clouds,
    ),
)
"""The made data set."""
