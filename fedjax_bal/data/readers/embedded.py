"""The data sets in this package: a sixth of Fashion-MNIST, and labels without images."""

import importlib.resources

import numpy as np

from fedjax_bal.data.errors import reading
from fedjax_bal.data.readers.idx import FASHION, MERGED_CHARACTERS, MNIST_CONSTANTS
from fedjax_bal.data.readers.npz import REQUIRED
from fedjax_bal.data.readers.reader import Reader
from fedjax_bal.types import Dataset


def _read_embedded() -> Dataset:
    resource = importlib.resources.files("fedjax_bal.data.embedded") / "fashion_mnist_small.npz"
    with (
        reading(str(resource), "install fedjax_bal again."),
        resource.open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        train_images, train_labels, test_images, test_labels = (archive[name] for name in REQUIRED)
    return Dataset(train_images, train_labels.astype(np.int32), test_images, test_labels.astype(np.int32), FASHION)


def _make_labels() -> Dataset:
    """Makes labels with blank images: enough of each class to draw the frequencies of letters in Astraea's paper."""
    names = MERGED_CHARACTERS
    train, test = (np.repeat(np.arange(len(names), dtype=np.int32), count) for count in (16_000, 10))
    blank = lambda labels: np.zeros((len(labels), 1, 1, 1), np.uint8)
    return Dataset(blank(train), train, blank(test), test, names)


READERS = (
    Reader(
        name="fashion_mnist_small",
        description=(
            "Fashion-MNIST, a balanced sixth that comes with the package: 10,000 + 2,000 grey images 28x28, 10 classes"
        ),
        origin="package",
        read=_read_embedded,
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
)
"""The data sets that need no files."""
