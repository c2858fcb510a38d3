"""Makes the data sets that come with the package, in `fedjax_bal/data/embedded`, from their official files.

Run as `python tests/data/make_embedded.py NAME DIR`. For `fashion_mnist_small`, DIR holds the four idx files of
Fashion-MNIST (plain or .gz) or a folder `fashion_mnist` with them; for `shuttle`, `shuttle.trn` and `shuttle.tst`,
unpacked; for `letter`, `letter-recognition.data`, all as the UCI Machine Learning Repository has them. The same files
give the same numbers everywhere, and the same bytes with the same zlib.
"""

import hashlib
import io
import os
import string
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedjax_bal.data import embedded, load

SEED = 2017
TRAIN_PER_CLASS = 1000
TEST_PER_CLASS = 200
LETTERS_TRAINED = 16_000


def stratified_rows(labels: np.ndarray, per_class: int, seed: int) -> np.ndarray:
    """Draws the same number of rows from each class, in ascending order.

    Every row gets a random 64-bit word, and the rows with each class's smallest words are taken. The words come
    straight from the bit generator, whose stream NumPy guarantees across versions (that of `Generator` it does not).
    """
    words = np.random.PCG64(seed).random_raw(len(labels))
    chosen = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        chosen.append(rows[np.argsort(words[rows], kind="stable")[:per_class]])
    return np.sort(np.concatenate(chosen))


def make(data_dir: str | os.PathLike, out: str | os.PathLike) -> str:
    """Writes 1,000 training and 200 test images of each class, in the official order; returns the file's SHA-256."""
    full = load("fashion_mnist", data_dir)
    train = stratified_rows(full.train_labels, TRAIN_PER_CLASS, SEED)
    test = stratified_rows(full.test_labels, TEST_PER_CLASS, SEED)
    halves = (full.train_images[train], full.train_labels[train]), (full.test_images[test], full.test_labels[test])
    return _write(out, *halves)


def make_shuttle(data_dir: str | os.PathLike, out: str | os.PathLike) -> str:
    """Writes all rows of Statlog Shuttle, in the official order; returns the file's SHA-256.

    A line of the official files is nine integers and the number of the class, from 1, separated by blanks.
    """
    train, test = (np.loadtxt(Path(data_dir, name), np.int16) for name in ("shuttle.trn", "shuttle.tst"))
    # Column by column, which compresses better.
    return _write(out, *((np.asfortranarray(rows[:, :9]), rows[:, 9] - 1) for rows in (train, test)))


def make_letter(data_dir: str | os.PathLike, out: str | os.PathLike) -> str:
    """Writes all rows of Letter Recognition, the last 4,000 for testing; returns the file's SHA-256.

    A line of the official file is a capital letter and sixteen integers from 0 to 15, separated by commas.
    """
    rows = np.loadtxt(Path(data_dir, "letter-recognition.data"), np.str_, delimiter=",")
    labels = np.array([string.ascii_uppercase.index(letter) for letter in rows[:, 0]])
    numbers = np.asfortranarray(rows[:, 1:].astype(np.uint8))
    train, test = ((numbers[part], labels[part]) for part in (slice(LETTERS_TRAINED), slice(LETTERS_TRAINED, None)))
    return _write(out, train, test)


MAKERS: dict[str, Callable[[str, Path], str]] = {
    "fashion_mnist_small": make,
    "shuttle": make_shuttle,
    "letter": make_letter,
}
"""Name of each embedded data set -> the function that makes its file."""


def _write(out: str | os.PathLike, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]) -> str:
    """Writes inputs and labels of both halves as an npz file; returns its SHA-256."""
    content = _pack(
        train_images=train[0],
        train_labels=train[1].astype(np.uint8),
        test_images=test[0],
        test_labels=test[1].astype(np.uint8),
    )
    Path(out).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _pack(**arrays: np.ndarray) -> bytes:
    """Returns the bytes of an npz file, which don't depend on machine or time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, on every system
            archive.writestr(entry, member.getvalue(), compresslevel=9)
    return buffer.getvalue()


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in MAKERS:
        sys.exit(f"usage: python tests/data/make_embedded.py {'|'.join(MAKERS)} DIR (the folder of official files)")
    print(MAKERS[sys.argv[1]](sys.argv[2], Path(embedded.__file__).with_name(f"{sys.argv[1]}.npz")))
