"""The data sets in a folder, and the preparation of one of them: the work of `fedjax-bal data`."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_bal.data import cache
from fedjax_bal.data.errors import DataError, MissingError
from fedjax_bal.data.loading import find_files, folder_of
from fedjax_bal.data.readers import DATASETS, find_reader
from fedjax_bal.data.readers.reader import Reader
from fedjax_bal.types import Dataset


class Prepared(NamedTuple):
    """A data set that `prepare` has read.

    Attributes:
        dataset: the data set.
        kind: its source, in words.
        places: files and folders that it was read from.
        file: the prepared file; None if none was written.
    """

    dataset: Dataset
    kind: str
    places: tuple[Path, ...]
    file: Path | None


def prepared_status(name: str, data_dir: Path | None) -> str:
    """Says in a few words whether a data set is available in a folder; None for no folder."""
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
    """Reads a data set from its official files, and writes the prepared file that `load` reads from then on.

    Args:
        name: a data set with official files.
        data_dir: the folder that holds them, or a folder that TensorFlow Datasets has prepared.
        write: whether to write the prepared file; otherwise the official files are only checked.

    Returns:
        The data set and its files.

    Raises:
        ValueError: the name is unknown, or the data set needs no files.
        DataError: files are missing or damaged, or the prepared file can't be written.
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
    """Returns the SHA-256 of all images and labels in hexadecimal digits, in the order of their source."""
    digest = hashlib.sha256()
    for array in dataset[:4]:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def common_folder(places: Sequence[Path]) -> Path:
    """Returns the innermost folder that contains all of some files and folders."""
    return Path(os.path.commonpath([path.parent for path in places]))


def _advice(reader: Reader) -> str:
    """Returns a sentence that names a data set's official files and their source."""
    advice = f"It needs {reader.files}. They come from {reader.home}."
    if reader.tfds is None:
        return advice
    prepared = f"{reader.tfds.train}/VERSION/ in the format ArrayRecord"
    return f"{advice} A folder that TensorFlow Datasets prepared, {prepared}, serves as well."
