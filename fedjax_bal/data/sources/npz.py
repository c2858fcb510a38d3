"""The user's own arrays, in NumPy's npz files."""

import os
from pathlib import Path

from fedjax_bal.annotations import ProperShare, Seed, checked
from fedjax_bal.data.arrays import ARRAYS, REQUIRED, TEST_SHARE, TestBy, as_dataset
from fedjax_bal.data.npz_file import read_arrays
from fedjax_bal.data.reading import DataError
from fedjax_bal.data.sources.reader import Reader
from fedjax_bal.types import Dataset
from fedjax_bal.validate import suggestion


@checked
def read_npz(
    path: str | os.PathLike, test: ProperShare | None = None, test_seed: Seed = 0, test_by: TestBy = "classes"
) -> Dataset:
    """Reads a data set from one file.

    Args:
        path: the file. It has `train_images` `UInt8[D, H, W]` or `UInt8[D, H, W, K]`, or other inputs, `Float[D, ...]`
            or token ids `Int[D, ...]`; `train_labels`, `Int[D]` from 0, or D texts; and may have `test_images` and
            `test_labels`, `class_names` (C texts), `train_clients` (D integers or texts: the client of each input) and
            `test_clients` (the same of each test input).
        test: in a file without test arrays, the share of each class that becomes the test set, by default 0.2.
        test_seed: the seed of that split.
        test_by: "clients" holds out a share of the clients instead, with all their rows.

    Returns:
        The data set. Without `class_names`, classes are named by their numbers, up to the largest label, or are the
        sorted texts; clients are numbered in the order of their names. Texts that all are integers are sorted by value.

    Raises:
        DataError: the file can't be read, isn't an npz file, is damaged, or holds arrays that don't fit.
    """
    path = Path(path)
    arrays = read_arrays(path, None)
    other = next((name for name in arrays if name not in ARRAYS), None)
    if other is not None:
        near = suggestion(other, ARRAYS)
        raise DataError(
            f"{path}: has an array {other!r}{f'; {near}' if near else '.'} The names are {', '.join(ARRAYS)}: rename "
            "it, or write the file without it."
        )
    if not any(name in arrays for name in REQUIRED[2:]):
        test = test or TEST_SHARE
    elif test is not None:
        raise DataError(f"{path}: has a test set; leave out test={test:g}, or take test_images and test_labels out.")
    return as_dataset(path, arrays, test, test_seed, test_by=test_by)


READERS = (
    Reader(
        name="npz",
        description="Your own arrays, in one file of NumPy's: path is that file",
        origin="own",
        read=read_npz,
    ),
)
"""The user's own arrays."""
