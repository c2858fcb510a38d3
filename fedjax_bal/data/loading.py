"""Loading of data sets by name: from the package, from the user's files, or through TensorFlow Datasets."""

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_bal.data import cache
from fedjax_bal.data.errors import DataError, MissingError, reading
from fedjax_bal.data.normalisation import normalisation
from fedjax_bal.data.readers import DATASETS, find_reader, tfds
from fedjax_bal.data.readers.reader import Reader
from fedjax_bal.types import Dataset


class FoundFiles(NamedTuple):
    """A data set's files: their kind in words, the files and folders that decide what is read, and their reader."""

    kind: str
    places: tuple[Path, ...]
    read: Callable[[], Dataset]


def load(
    name: str,
    data_dir: str | os.PathLike | None = None,
    *,
    mean: float | Sequence[float] | str | None = None,
    std: float | Sequence[float] | str | None = None,
    **options: Any,
) -> Dataset:
    """Loads a data set into memory.

    Sets that come with the package need no files. The others are read from `data_dir`: from their official files, or
    from a folder that TensorFlow Datasets has prepared, which gives the same images in another order. The file that
    `fedjax-bal data prepare` wrote takes their place until they change. Without `data_dir`, TensorFlow Datasets
    provides its sets, and downloads each once. `fedjax-bal data list` shows all sets, and whether a folder holds them.

    A user's own images, feature vectors or token ids come from an npz file, `load("npz", path="mine.npz")`, or images
    from a folder of image files for each class, `load("image_folder", path="mine", side=64)`; a relative path starts at
    `data_dir`, if that is given. `from_arrays`, `from_torch`, `from_tf_data` and `from_huggingface` take them from
    memory.

    Args:
        name: one of `DATASETS`.
        data_dir: the folder that holds the files, or the one that holds their folder.
        mean: the mean with which `federate` normalises the images: one number, one for each channel, or "own" for that
            of the training images; None for the default, see `normalisation`.
        std: the standard deviation, likewise.
        **options: for the user's own files: `path`, and the options of their reader.

    Returns:
        Images `UInt8[D, H, W, K]`, or a user's own inputs `[D, ...]`, and labels `Int32[D]` for training and for
        testing, the names of the classes, each training image's client, if the set has clients, and K means and
        standard deviations.

    Raises:
        ValueError: the name is unknown, or an option, mean or standard deviation doesn't fit.
        DataError: files are missing or damaged, or TensorFlow Datasets can't provide the set.

    Example:
        >>> dataset = load("fashion_mnist_small")
        >>> dataset.train_images.shape, dataset.test_labels.shape, dataset.class_names[1]
        ((10000, 28, 28, 1), (2000,), 'Trouser')
        >>> dataset.mean, load("fashion_mnist_small", mean=0, std=1).mean
        ((0.1307,), (0.0,))
    """
    reader = find_reader(name)
    dataset = _read(reader, data_dir, options)
    mean, std = normalisation(name, dataset.train_images, mean, std)
    return dataset._replace(mean=mean, std=std)


def folder_of(name: str, data_dir: str | os.PathLike) -> Path:
    """Returns the folder that holds the files of `name`; raises `DataError` if it is no folder."""
    if not os.path.isdir(data_dir):
        raise DataError(f"{data_dir}: is not a folder; --data-dir must be the folder that holds the files of {name}.")
    return Path(data_dir)


def find_files(reader: Reader, data_dir: Path) -> FoundFiles:
    """Finds a data set's official files in a folder, or else those that TensorFlow Datasets has prepared in it."""
    try:
        with reading(data_dir):
            return FoundFiles("official files", tuple(reader.find(data_dir)), lambda: reader.read(data_dir))
    except MissingError:
        places = tfds.find_tfds(reader, data_dir)
        if not places:
            raise
    return FoundFiles("TensorFlow Datasets' folder", tuple(places), lambda: tfds.read_tfds(reader, data_dir))


def _read(reader: Reader, data_dir: str | os.PathLike | None, options: dict[str, Any]) -> Dataset:
    if reader.origin == "own":
        return _read_own(reader, data_dir, options)
    if options:
        own = " and ".join(name for name, other in DATASETS.items() if other.origin == "own")
        raise ValueError(f"data set {reader.name} takes no options, received {', '.join(options)}; {own} do.")
    if reader.origin == "package":
        return reader.read()
    return tfds.read_tfds(reader) if data_dir is None else _read_official(reader, folder_of(reader.name, data_dir))


def _read_official(reader: Reader, data_dir: Path) -> Dataset:
    """Reads the prepared file, unless its sources have changed, or else the official files."""
    try:
        found = find_files(reader, data_dir)
    except MissingError:
        kept = cache.read(reader.name, data_dir, None)
        if kept is None:
            raise
        return kept
    return cache.read(reader.name, data_dir, found.places) or found.read()


def _read_own(reader: Reader, data_dir: str | os.PathLike | None, options: dict[str, Any]) -> Dataset:
    """Reads the user's own files, after checking the options."""
    name, taken = reader.name, inspect.signature(reader.read).parameters
    if "path" in taken and not isinstance(options.get("path"), str | os.PathLike):
        raise ValueError(f"data set {name} needs its path, as in load({name!r}, path=...), received {sorted(options)}.")
    unknown = sorted(set(options) - set(taken))
    if unknown:
        raise ValueError(f"data set {name} takes {', '.join(taken)}, received {unknown[0]!r}.")
    if "path" not in taken:
        return reader.read(**options)
    path = Path(data_dir or "", options["path"])
    if not os.path.exists(path) and not Path(options["path"]).is_absolute():
        place = "the current folder, or from --data-dir where it is given"
        counts = "the folder given with --data-dir" if data_dir else place
        raise DataError(f"dataset.path: there is no {path}; a relative path counts from {counts}.")
    return reader.read(**options | {"path": path})
