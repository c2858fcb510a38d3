"""The files that `fedjax-bal data prepare` writes: a data set's arrays, for fast loading.

Such a file records the names, lengths and modification times of its sources, and is ignored once these have changed. Of
sets with one file an image it records the folders, whose times change with the list of files: an image that is
overwritten under its old name goes unnoticed until the set is prepared again.
"""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_bal.data.errors import DataError
from fedjax_bal.data.readers.npz import ARRAYS, REQUIRED, as_dataset, read_arrays
from fedjax_bal.files import own_folder, replacing
from fedjax_bal.types import Dataset

_FOLDER = "fedjax_bal"  # below the one with the data sets' own files


def place(name: str, data_dir: Path) -> Path:
    """Returns the path of a data set's prepared file, which needn't exist."""
    return data_dir / _FOLDER / f"{name}.npz"


def write(name: str, data_dir: Path, dataset: Dataset, places: Sequence[Path]) -> Path:
    """Writes a data set's prepared file, with the stamp of the files and folders that it was read from."""
    file = place(name, data_dir)
    arrays: dict[str, Any] = {key: getattr(dataset, key) for key in REQUIRED}
    arrays["class_names"] = np.array(dataset.class_names)
    if dataset.train_clients is not None:
        arrays["train_clients"] = dataset.train_clients
    size = sum(array.nbytes for array in arrays.values())
    try:
        own_folder(data_dir, _FOLDER)
        free = shutil.disk_usage(file.parent).free
        if size > free:
            raise DataError(
                f"{file}: needs {size / 2**20:.0f} MiB, but {free / 2**20:.0f} MiB are free; make room, or do without: "
                "the data set's own files are read as well, just more slowly."
            )
        with replacing(file) as stream:
            np.savez(stream, **arrays, made_from=np.array(_stamp(data_dir, places)))
    except OSError as error:
        raise DataError(
            f"{file}: can't be written ({error.strerror or error}); give a folder that can be as --data-dir, or do "
            "without: the data set's own files are read as well, just more slowly."
        ) from error
    return file


def read(name: str, data_dir: Path, places: Sequence[Path] | None) -> Dataset | None:
    """Reads a prepared file; None if it doesn't exist, or if `places` are given and have changed since."""
    file = place(name, data_dir)
    if not file.is_file() or (places is not None and not is_current(name, data_dir, places)):
        return None
    return as_dataset(file, read_arrays(file, ARRAYS))


def is_current(name: str, data_dir: Path, places: Sequence[Path]) -> bool:
    """Tells whether a data set's prepared file exists and its sources haven't changed since."""
    file = place(name, data_dir)
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
        found = path.stat()
        entries.append([os.path.relpath(path, data_dir), path.is_dir() or found.st_size, found.st_mtime_ns])
    return json.dumps(sorted(entries, key=str))
