"""Tables of numbers that come with the package: Statlog Shuttle and Letter Recognition.

Both are from the UCI Machine Learning Repository, under CC BY 4.0 (`LICENSE-uci`, in the folder of the files), with
their official order of rows and their official division into training and test rows. A row is a vector of numbers,
which are normalised feature by feature with the mean and standard deviation of the training rows.

Shuttle is imbalanced by nature: four rows in five are of one class, and the three smallest classes have 6, 11 and 37
of 43,500 training rows, and 4, 2 and 13 of 14,500 test rows. Their accuracies are therefore coarse. Some of its
features have a few values hundreds of standard deviations from the mean. Letters are balanced, to within a tenth.

References:
    Statlog (Shuttle), UCI Machine Learning Repository, doi:10.24432/C5WS31; Michie, Spiegelhalter, Taylor: Machine
    Learning, Neural and Statistical Classification, 1994. Slate: Letter Recognition, UCI Machine Learning Repository,
    1991, doi:10.24432/C5ZP40; Frey, Slate: Letter Recognition Using Holland-Style Adaptive Classifiers, 1991.
"""

import string
from functools import partial

import numpy as np

from fedjax_bal.data.sources.npz import read_embedded
from fedjax_bal.data.sources.reader import Reader
from fedjax_bal.types import Dataset

SHUTTLE = ("Rad Flow", "Fpv Close", "Fpv Open", "High", "Bypass", "Bpv Close", "Bpv Open")
"""The classes of Shuttle, in the order of their numbers from 1 to 7."""


def read_table(name: str, class_names: tuple[str, ...]) -> Dataset:
    """Reads one of the tables: vectors `Float32[D, F]`, since integers would be token ids, and labels `Int32[D]`."""
    stored = read_embedded(name, class_names)
    train, test = (np.ascontiguousarray(rows, np.float32) for rows in (stored.train_images, stored.test_images))
    return stored._replace(train_images=train, test_images=test)


READERS = (
    Reader(
        name="shuttle",
        description=(
            "Statlog Shuttle, which comes with the package: 43,500 + 14,500 rows of 9 numbers, 7 classes, the largest "
            "4,559 times the smallest"
        ),
        origin="package",
        read=partial(read_table, "shuttle", SHUTTLE),
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
        read=partial(read_table, "letter", tuple(string.ascii_uppercase)),
        image_shape=(16,),
        class_names=tuple(string.ascii_uppercase),
    ),
)
"""Shuttle and Letter Recognition."""
