"""The data sets in a folder: their official files, and the prepared files that `fedjax-bal data prepare` writes.

A prepared file holds a data set's arrays, for fast loading. It records the names, lengths and modification times of its
sources, and is ignored once these change. For sets with one file per image it records only the folders, whose times
change when files are added or removed: an image that is overwritten goes unnoticed until the set is prepared again.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.data.arrays import REQUIRED, as_dataset
from fedjax_bal.data.npz_file import read_arrays
from fedjax_bal.data.reading import DataError, MissingError, reading
from fedjax_bal.data.sources import DATASETS, find_reader, tfds
from fedjax_bal.data.sources.reader import Reader
from fedjax_bal.files import own_folder, replacing
from fedjax_bal.types import Dataset

_OF_CLIENTS = ("train_clients", "test_clients", "client_names")
_FOLDER = "fedjax_bal"  # subfolder of the one with the official files


class FoundFiles(NamedTuple):
    """The files of a data set that were found: a description, their places, and the function that reads them."""

    kind: str
    places: tuple[Path, ...]
    read: Callable[[], Dataset]


class Prepared(NamedTuple):
    """A data set that `prepare` has read.

    Attributes:
        dataset: the data set.
        kind: a description of its source.
        places: files and folders that it was read from.
        file: the prepared file; None if none was written.
    """

    dataset: Dataset
    kind: str
    places: tuple[Path, ...]
    file: Path | None


def folder_of(name: str, data_dir: str | os.PathLike) -> Path:
    """Returns the folder that holds the files of `name`; raises `DataError` if it isn't a folder."""
    if not os.path.isdir(data_dir):
        raise DataError(f"{data_dir}: is not a folder; --data-dir must be the folder that holds the files of {name}.")
    return Path(data_dir)


def find_files(reader: Reader, data_dir: Path) -> FoundFiles:
    """Finds a data set's official files in a folder, or those that TensorFlow Datasets has prepared there."""
    try:
        with reading(data_dir):
            return FoundFiles("official files", tuple(reader.find(data_dir)), lambda: reader.read(data_dir))
    except MissingError:
        places = tfds.find_tfds(reader, data_dir)
        if not places:
            raise
    return FoundFiles("TensorFlow Datasets' folder", tuple(places), lambda: tfds.read_tfds(reader, data_dir))


def prepared_status(name: str, data_dir: Path | None) -> str:
    """Describes in a few words whether a data set is available; `data_dir` is None without a folder."""
    reader = DATASETS[name]
    if reader.origin == "own":
        return "your own file or folder"
    if reader.origin == "package":
        return "comes with the package"
    if data_dir is None:
        return "needs its files, see --data-dir"
    try:
        files = find_files(reader, data_dir)
        prepared = ", prepared" if _is_current(name, data_dir, files.places) else ""
        return f"found {files.kind} in {common_folder(files.places)}{prepared}"
    except MissingError:
        file = _prepared_file(name, data_dir)
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
    advice = f"It needs {reader.files}. They come from {reader.home}."
    if reader.tfds is not None:
        prepared = f"{reader.tfds.train}/VERSION/ in the format ArrayRecord"
        advice += f" A folder that TensorFlow Datasets prepared, {prepared}, serves as well."
    if data_dir is None:
        raise DataError(f"--data-dir is missing, the folder that holds the files of {name}. {advice}")
    folder = folder_of(name, data_dir)
    try:
        files = find_files(reader, folder)
    except DataError as error:
        raise DataError(f"{error}\n{advice}") from error
    dataset = files.read()
    file = _write_prepared(name, folder, dataset, files.places) if write else None
    return Prepared(dataset, files.kind, files.places, file)


def read_prepared(name: str, data_dir: Path, places: Sequence[Path] | None) -> Dataset | None:
    """Reads a prepared file; None if it doesn't exist, or if `places` are given and have changed since."""
    file = _prepared_file(name, data_dir)
    if not file.is_file() or (places is not None and not _is_current(name, data_dir, places)):
        return None
    arrays = read_arrays(file, (*REQUIRED, "class_names", "made_from", *_OF_CLIENTS))
    names = arrays.pop("client_names", None)
    made_from = str(arrays.pop("made_from", ""))
    dataset = as_dataset(file, arrays)
    # Clients are numbered in the order of the official files, which is not that of their names.
    numbers = {key: arrays[key] for key in _OF_CLIENTS if key in arrays}
    return dataset._replace(
        **numbers,
        client_names=None if names is None else tuple(names.tolist()),
        official_order=tfds.INFO not in made_from,
    )


def inventory_digest(dataset: Dataset) -> str:
    """Returns the SHA-256, in hexadecimal, of all images and labels in the order of their source."""
    digest = hashlib.sha256()
    for array in dataset[:4]:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def common_folder(places: Sequence[Path]) -> Path:
    """Returns the innermost folder that contains all given files and folders."""
    return Path(os.path.commonpath([path.parent for path in places]))


def _prepared_file(name: str, data_dir: Path) -> Path:
    return data_dir / _FOLDER / f"{name}.npz"


def _write_prepared(name: str, data_dir: Path, dataset: Dataset, places: Sequence[Path]) -> Path:
    """Writes a data set's prepared file, with the stamp of the files and folders that it was read from."""
    file = _prepared_file(name, data_dir)
    arrays: dict[str, Any] = {key: getattr(dataset, key) for key in REQUIRED}
    arrays["class_names"] = np.array(dataset.class_names)
    known = {key: getattr(dataset, key) for key in _OF_CLIENTS}
    arrays |= {key: np.asarray(values) for key, values in known.items() if values is not None}
    try:
        own_folder(data_dir, _FOLDER)
        with replacing(file) as stream:
            np.savez(stream, **arrays, made_from=np.array(_stamp(data_dir, places)))
    except OSError as error:
        raise DataError(
            f"{file}: can't be written ({error.strerror or error}); give a folder that can be as --data-dir, or do "
            "without: the data set's own files are read as well, just more slowly."
        ) from error
    return file


def _is_current(name: str, data_dir: Path, places: Sequence[Path]) -> bool:
    """Returns whether a data set's prepared file exists and its sources haven't changed since."""
    file = _prepared_file(name, data_dir)
    if not file.is_file():
        return False
    made_from = read_arrays(file, ("made_from",)).get("made_from", np.array(""))
    try:
        return made_from.shape == () and str(made_from) == _stamp(data_dir, places)
    except OSError:  # a source is gone
        return False


def _stamp(data_dir: Path, places: Sequence[Path]) -> str:
    """Returns the names, lengths and modification times of files and folders as text."""
    entries = []
    for path in places:
        status = path.stat()
        entries.append([os.path.relpath(path, data_dir), path.is_dir() or status.st_size, status.st_mtime_ns])
    return json.dumps(sorted(entries, key=str))
