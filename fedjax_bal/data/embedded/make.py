"""Makes the embedded data set from the official files of Fashion-MNIST.

Run as `python -m fedjax_bal.data.embedded.make DIR`, where DIR holds the four idx files (plain or .gz) or a folder
`fashion_mnist` with them. The same files give the same pixels everywhere, and the same bytes with the same zlib.
"""

import hashlib
import io
import os
import sys
import zipfile
from pathlib import Path

import numpy as np

from fedjax_bal.data.loading import load

SEED = 2017
TRAIN_PER_CLASS = 1000
TEST_PER_CLASS = 200


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
    content = _pack(
        train_images=full.train_images[train],
        train_labels=full.train_labels[train].astype(np.uint8),
        test_images=full.test_images[test],
        test_labels=full.test_labels[test].astype(np.uint8),
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
    if len(sys.argv) != 2:
        sys.exit("usage: python -m fedjax_bal.data.embedded.make DIR (the folder with Fashion-MNIST's idx files)")
    print(make(sys.argv[1], Path(__file__).with_name("fashion_mnist_small.npz")))
