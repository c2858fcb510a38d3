"""Reader for the binary versions of CIFAR-10 and CIFAR-100.

A record is one label byte (CIFAR-10) or a coarse and a fine label byte (CIFAR-100), then 3,072 pixel bytes: the red,
the green and the blue plane of 32 x 32, each row by row. The python versions are pickles, which can run code when they
are opened, so they never are.

References:
    Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009, and the data sets' page.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_bal.data.errors import DataError, MissingError

_PIXELS = 3 * 32 * 32
_MAX_BYTES = 2**31


class CifarLayout(NamedTuple):
    """Where one of the two sets lies and how its records look.

    Attributes:
        folder: what the official archive unpacks to.
        archive: the official archive of the binary version.
        train: names of the training files.
        test: name of the test file.
        label_bytes: label bytes of a record; the last one is used.
        num_classes: C.
        pickle_folder: what the archive of the python version unpacks to.
        pickles: names of its files.
    """

    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    label_bytes: int
    num_classes: int
    pickle_folder: str
    pickles: tuple[str, ...]


LAYOUTS = {
    "cifar10": CifarLayout(
        folder="cifar-10-batches-bin",
        archive="cifar-10-binary.tar.gz",
        train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        test="test_batch.bin",
        label_bytes=1,
        num_classes=10,
        pickle_folder="cifar-10-batches-py",
        pickles=("data_batch_1", "test_batch"),
    ),
    "cifar100": CifarLayout(
        folder="cifar-100-binary",
        archive="cifar-100-binary.tar.gz",
        train=("train.bin",),
        test="test.bin",
        label_bytes=2,
        num_classes=100,
        pickle_folder="cifar-100-python",
        pickles=("train", "test"),
    ),
}
"""Name of the data set -> its layout."""


def read_records(path: str | os.PathLike, label_bytes: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads one file of records.

    Args:
        path: the file.
        label_bytes: label bytes in front of each image; the last of them is the label that is used.
        num_classes: C; labels must lie in 0..C-1.

    Returns:
        Images `UInt8[D, 32, 32, 3]` and labels `Int32[D]`.

    Raises:
        DataError: the file can't be read, is empty or no whole number of records long, or has a label out of range.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "test.bin")
        ...     _ = file.write_bytes(bytes([3, 42]) + bytes(3072))
        ...     images, labels = read_records(file, label_bytes=2, num_classes=100)
        >>> images.shape, labels.tolist()
        ((1, 32, 32, 3), [42])
    """
    path, record = Path(path), label_bytes + _PIXELS
    try:
        size = path.stat().st_size
        if size == 0 or size % record or size > _MAX_BYTES:
            raise DataError(
                f"{path}: expected a whole number of records of {record} bytes (10,000 of them are {10000 * record} "
                f"bytes) and at most {_MAX_BYTES} bytes, found {size} bytes; the file is incomplete, damaged or of the "
                "other CIFAR: fetch it again."
            )
        records = np.fromfile(path, np.uint8, count=size).reshape(-1, record)
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror or error}); check the path and its rights.") from error
    labels = records[:, label_bytes - 1].astype(np.int32)
    if labels.max() >= num_classes:
        at = int(np.argmax(labels >= num_classes))
        raise DataError(
            f"{path}: label {labels[at]} in record {at}, expected 0..{num_classes - 1}; the file is damaged or of the "
            "other CIFAR: fetch it again."
        )
    planes = records[:, label_bytes:].reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


def read_cifar(name: str, data_dir: str | os.PathLike) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reads CIFAR-10 or CIFAR-100 (fine labels) in its binary version.

    Args:
        name: `"cifar10"` or `"cifar100"`.
        data_dir: the folder that holds the `.bin` files, or the one that holds that folder under its official name.

    Returns:
        Training images `UInt8[D, 32, 32, 3]` and labels `Int32[D]`, then the same of the test set.

    Raises:
        DataError: files are missing, only the pickled version is there, or a file is damaged.
    """
    layout = LAYOUTS[name]
    folder = find_cifar(name, data_dir)
    parts = [read_records(folder / file, layout.label_bytes, layout.num_classes) for file in layout.train]
    _check_equal_length(folder, layout.train, [len(labels) for _, labels in parts])
    train_images, train_labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    test_images, test_labels = read_records(folder / layout.test, layout.label_bytes, layout.num_classes)
    return train_images, train_labels, test_images, test_labels


def find_cifar(name: str, data_dir: str | os.PathLike) -> Path:
    """The folder with all files of the binary version.

    Args:
        name: `"cifar10"` or `"cifar100"`.
        data_dir: as for `read_cifar`.

    Returns:
        The folder.

    Raises:
        DataError: files are missing, or only the pickled version is there.
    """
    layout, data_dir = LAYOUTS[name], Path(data_dir)
    wanted = (*layout.train, layout.test)
    folders = (data_dir / layout.folder, data_dir)
    for folder in folders:
        if all((folder / file).is_file() for file in wanted):
            return folder
    started = next((folder for folder in folders if any((folder / file).exists() for file in wanted)), None)
    if started is not None:
        missing = [file for file in wanted if not (started / file).is_file()]
        raise DataError(f"{started}: {name} lacks {', '.join(missing)}; unpack {layout.archive} again.")
    raise MissingError(
        f"{name} was not found: looked for {', '.join(wanted)} in {folders[0]} and {folders[1]}. "
        + _advice(layout, data_dir)
    )


def _advice(layout: CifarLayout, data_dir: Path) -> str:
    """What to do, given what lies there instead of the binary version."""
    for folder in (data_dir / layout.pickle_folder, data_dir):
        if all((folder / file).is_file() for file in layout.pickles):
            return (
                f"{folder} holds the python version, which is a pickle: a pickle can run any code, so it is never "
                f"opened. Get {layout.archive} (the binary version) instead and unpack it in {data_dir}."
            )
    if (data_dir / layout.archive).is_file():
        return f"{data_dir / layout.archive} is there but not unpacked: run tar -xzf on it in {data_dir}."
    return f"Get {layout.archive} (the binary version) and unpack it in {data_dir}."


def _check_equal_length(folder: Path, files: Sequence[str], lengths: Sequence[int]) -> None:
    """A file cut off between two records shows only next to the others, which are all of one length."""
    for file, length in zip(files, lengths, strict=True):
        if length != max(lengths):
            raise DataError(
                f"{folder / file}: expected {max(lengths)} records, as the other training files have, found {length}; "
                "the file is incomplete: fetch it again."
            )
