"""Which data sets there are in a folder, and preparing one of them: what `fedjax-bal data` does."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_bal.data import cache
from fedjax_bal.data.errors import DataError, MissingError
from fedjax_bal.data.loading import find_files, folder_of
from fedjax_bal.data.readers.reader import Reader
from fedjax_bal.data.readers.registry import DATASETS, find_reader
from fedjax_bal.types import Dataset


class Prepared(NamedTuple):
    """A data set that was read, and where from.

    Attributes:
        dataset: the data set.
        kind: what it was read from, in words.
        places: the files and folders that decided what was read.
        file: what was written; None for nothing.
    """

    dataset: Dataset
    kind: str
    places: tuple[Path, ...]
    file: Path | None


def prepared_status(name: str, data_dir: Path | None) -> str:
    """Whether a data set is there.

    Args:
        name: one of `DATASETS`.
        data_dir: the folder in which to look; None to look nowhere.

    Returns:
        A few words.

    Example:
        >>> prepared_status("labels_47", None), prepared_status("npz", None), prepared_status("femnist", None)
        ('comes with the package', 'your own file or folder', 'needs its files, see --data-dir')
    """
    reader = DATASETS[name]
    if reader.origin == "own":
        return "your own file or folder"
    if reader.origin == "package":
        return "comes with the package"
    if data_dir is None:
        return "needs its files, see --data-dir"
    try:
        found = find_files(reader, data_dir)
        prepared = ", prepared" if cache.is_current(name, data_dir, found.places) else ""
        return f"found {found.kind} in {common_folder(found.places)}{prepared}"
    except MissingError:
        file = cache.place(name, data_dir)
        return f"found {file}, without the files that it was made from" if file.is_file() else "not found"
    except DataError as error:
        return f"can't be used: {error}"


def prepare(name: str, data_dir: str | os.PathLike | None, write: bool = True) -> Prepared:
    """Reads a data set from its own files and writes it to one that is read at once.

    Args:
        name: a data set with official files.
        data_dir: the folder that holds them, or a folder that TensorFlow Datasets has prepared.
        write: whether to write that file; otherwise they are only checked.

    Returns:
        What was read, and the file.

    Raises:
        ValueError: no data set has that name, or one that needs no files.
        DataError: files are missing or damaged, or nothing can be written.
    """
    reader = find_reader(name)
    if reader.origin != "official":
        no_need = "comes with the package" if reader.origin == "package" else "is read from your own files as they are"
        raise ValueError(f"data set {name} {no_need}.")
    advice = _advice(reader)
    if data_dir is None:
        raise DataError(f"--data-dir is missing, the folder that holds the files of {name}. {advice}")
    folder = folder_of(name, data_dir)
    try:
        found = find_files(reader, folder)
    except DataError as error:
        raise DataError(f"{error}\n{advice}") from error
    dataset = found.read()
    file = cache.write(name, folder, dataset, found.places) if write else None
    return Prepared(dataset, found.kind, found.places, file)


def inventory_digest(dataset: Dataset) -> str:
    """The SHA-256 of all images and labels.

    Args:
        dataset: a data set.

    Returns:
        64 hexadecimal digits, the same wherever the data set came from.

    Example:
        >>> image, label = np.zeros((1, 2, 2, 1), np.uint8), np.zeros(1, np.int32)
        >>> inventory_digest(Dataset(image, label, image, label, ("a",)))[:8]
        '374708ff'
    """
    found = hashlib.sha256()
    for array in dataset[:4]:
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def common_folder(places: Sequence[Path]) -> Path:
    """The folder that all of some files and folders lie in."""
    return Path(os.path.commonpath([path.parent for path in places]))


def _advice(reader: Reader) -> str:
    """Which files a data set needs, and where they come from."""
    advice = f"It needs {reader.files}. They come from {reader.home}."
    if not reader.tfds.train:
        return advice
    prepared = f"{reader.tfds.train}/VERSION/ in the format ArrayRecord"
    return f"{advice} A folder that TensorFlow Datasets prepared, {prepared}, serves as well."
