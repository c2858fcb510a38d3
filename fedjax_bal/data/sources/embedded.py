"""The data sets that come with the package: a sixth of Fashion-MNIST, two tables of numbers, and labels alone.

The tables, Statlog Shuttle and Letter Recognition, are from the UCI Machine Learning Repository, under CC BY 4.0
(`LICENSE-uci`, in the folder of the files), with their official order of rows and their official division into training
and test rows. A row is a vector of numbers, which are normalised feature by feature with the mean and standard
deviation of the training rows.

Shuttle is imbalanced by nature: four rows in five are of one class, and the three smallest classes have 6, 11 and 37
of 43,500 training rows, and 4, 2 and 13 of 14,500 test rows. Their accuracies are therefore coarse. Some of its
features have a few values hundreds of standard deviations from the mean. Letters are balanced, to within a tenth.

References:
    Statlog (Shuttle), UCI Machine Learning Repository, doi:10.24432/C5WS31; Michie, Spiegelhalter, Taylor: Machine
    Learning, Neural and Statistical Classification, 1994. Slate: Letter Recognition, UCI Machine Learning Repository,
    1991, doi:10.24432/C5ZP40; Frey, Slate: Letter Recognition Using Holland-Style Adaptive Classifiers, 1991.
"""

import importlib.resources
import string
from functools import partial

import numpy as np

from fedjax_bal.data.arrays import REQUIRED
from fedjax_bal.data.reading import reading
from fedjax_bal.data.sources.idx import FASHION, MERGED_CHARACTERS, MNIST_CONSTANTS
from fedjax_bal.data.sources.reader import Reader
from fedjax_bal.types import Dataset

SHUTTLE = ("Rad Flow", "Fpv Close", "Fpv Open", "High", "Bypass", "Bpv Close", "Bpv Open")
"""The classes of Shuttle, in the order of their numbers from 1 to 7."""


def _read(name: str, class_names: tuple[str, ...]) -> Dataset:
    """Reads a file of the package: images, or vectors as `Float32[D, F]`, since integers would be token ids."""
    resource = importlib.resources.files("fedjax_bal.data.embedded") / f"{name}.npz"
    with (
        reading(str(resource), "install fedjax_bal again."),
        resource.open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        inputs, labels, test_inputs, test_labels = (archive[name] for name in REQUIRED)
    if inputs.ndim == 2:
        inputs, test_inputs = (np.ascontiguousarray(rows, np.float32) for rows in (inputs, test_inputs))
    return Dataset(inputs, labels.astype(np.int32), test_inputs, test_labels.astype(np.int32), class_names)


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
        read=partial(_read, "fashion_mnist_small", FASHION),
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
        name="shuttle",
        description=(
            "Statlog Shuttle, which comes with the package: 43,500 + 14,500 rows of 9 numbers, 7 classes, the largest "
            "4,559 times the smallest"
        ),
        origin="package",
        read=partial(_read, "shuttle", SHUTTLE),
        image_shape=(9,),
        class_names=SHUTTLE,
    ),
    Reader(
        name="letter",
        description=(
            "Letter Recognition, which comes with the package: 16,000 + 4,000 rows of 16 numbers that describe a "
            "printed capital, 26 classes of about equal size"
        ),
        origin="package",
        read=partial(_read, "letter", tuple(string.ascii_uppercase)),
        image_shape=(16,),
        class_names=tuple(string.ascii_uppercase),
    ),
)
"""The package's data sets."""
