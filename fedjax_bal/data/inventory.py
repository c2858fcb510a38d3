"""Which data sets there are in a folder, and preparing one of them: what `fedjax-bal data` does."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_bal.data import cache
from fedjax_bal.data.errors import DataError, MissingError
from fedjax_bal.data.loading import OWN_FILES, folder_of, known_names
from fedjax_bal.data.readers.finding import find
from fedjax_bal.data.readers.official import OFFICIAL
from fedjax_bal.data.readers.tfds import NAMES
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
    if name in OWN_FILES:
        return "your own file or folder"
    if name not in OFFICIAL:
        return "comes with the package"
    if data_dir is None:
        return "needs its files, see --data-dir"
    try:
        found = find(name, data_dir)
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
    known_names(name)
    if name not in OFFICIAL:
        raise ValueError(f"data set {name} {_no_need(name)}.")
    official = OFFICIAL[name]
    advice = (
        f"It needs {official.wanted}. They come from {official.home}. A folder that TensorFlow Datasets prepared, "
        f"{NAMES[name][0]}/VERSION/ in the format ArrayRecord, serves as well."
    )
    if data_dir is None:
        raise DataError(f"--data-dir is missing, the folder that holds the files of {name}. {advice}")
    folder = folder_of(name, data_dir)
    try:
        found = find(name, folder)
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
    """The folder that all of some files and folders lie in.

    Args:
        places: at least one.

    Returns:
        The folder.

    Example:
        >>> common_folder([Path("a/b/c"), Path("a/b/d")]).as_posix()
        'a/b'
    """
    return Path(os.path.commonpath([path.parent for path in places]))


def _no_need(name: str) -> str:
    return "is read from your own files as they are" if name in OWN_FILES else "comes with the package"
