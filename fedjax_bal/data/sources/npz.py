"""Data sets in NumPy's npz files: the user's own, and the package's."""

import importlib.resources
import os
from functools import partial
from pathlib import Path

import numpy as np

from fedjax_bal.annotations import ProperShare, Seed, checked
from fedjax_bal.data.arrays import ARRAYS, REQUIRED, TEST_SHARE, as_dataset
from fedjax_bal.data.npz_file import read_arrays
from fedjax_bal.data.reading import DataError, reading
from fedjax_bal.data.sources.idx import FASHION, MERGED_CHARACTERS, MNIST_CONSTANTS
from fedjax_bal.data.sources.reader import Reader
from fedjax_bal.types import Dataset


@checked
def read_npz(path: str | os.PathLike, test: ProperShare | None = None, test_seed: Seed = 0) -> Dataset:
    """Reads a data set from one file.

    Args:
        path: the file. It has `train_images` `UInt8[D, H, W]` or `UInt8[D, H, W, K]`, or other inputs, `Float[D, ...]`
            or token ids `Int[D, ...]`; `train_labels`, `Int[D]` from 0, or D texts; and may have `test_images` and
            `test_labels`, `class_names` (C texts) and `train_clients` (D integers or texts: the client of each input).
        test: in a file without test arrays, the share of each class that becomes the test set, by default 0.2.
        test_seed: the seed of that split.

    Returns:
        The data set. Without `class_names`, classes are named by their numbers, up to the largest label, or are the
        sorted texts; clients are numbered in the order of their names.

    Raises:
        DataError: the file can't be read, isn't an npz file, is damaged, or holds arrays that don't fit.
    """
    path = Path(path)
    arrays = read_arrays(path, ARRAYS)
    if not any(name in arrays for name in REQUIRED[2:]):
        test = test or TEST_SHARE
    elif test is not None:
        raise DataError(f"{path}: has a test set; leave out test={test:g}, or take test_images and test_labels out.")
    return as_dataset(path, arrays, test, test_seed)


def read_embedded(name: str, class_names: tuple[str, ...]) -> Dataset:
    """Reads a data set of the package; labels become `Int32[D]`."""
    resource = importlib.resources.files("fedjax_bal.data.embedded") / f"{name}.npz"
    with (
        reading(str(resource), "install fedjax_bal again."),
        resource.open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        train_images, train_labels, test_images, test_labels = (archive[name] for name in REQUIRED)
    return Dataset(train_images, train_labels.astype(np.int32), test_images, test_labels.astype(np.int32), class_names)


def _make_labels() -> Dataset:
    """Makes labels with blank images: enough of each class for the frequencies of letters in Astraea's paper."""
    classes = np.arange(len(MERGED_CHARACTERS), dtype=np.int32)
    train, test = (np.repeat(classes, count) for count in (16_000, 10))
    images, test_images = (np.zeros((len(labels), 1, 1, 1), np.uint8) for labels in (train, test))
    return Dataset(images, train, test_images, test, MERGED_CHARACTERS)


READERS = (
    Reader(
        name="fashion_mnist_small",
        description=(
            "Fashion-MNIST, a balanced sixth that comes with the package: 10,000 + 2,000 grey images 28x28, 10 classes"
        ),
        origin="package",
        read=partial(read_embedded, "fashion_mnist_small", FASHION),
        class_names=FASHION,
        counts=(10_000, 2_000),
        **MNIST_CONSTANTS,
    ),
    Reader(
        name="labels_47",
        description=(
            "Labels only: 47 classes as in EMNIST, 16,000 + 10 blank images 1x1 of each, to study who holds what"
        ),
        origin="package",
        read=_make_labels,
        image_shape=(1, 1, 1),
        class_names=MERGED_CHARACTERS,
        counts=(752_000, 470),
        mean=(0.0,),
        std=(1.0,),
    ),
    Reader(
        name="npz",
        description="Your own arrays, in one file of NumPy's: path is that file",
        origin="own",
        read=read_npz,
    ),
)
"""The package's data sets (a sixth of Fashion-MNIST; labels with blank images) and the user's own arrays."""
