"""Data sets through TensorFlow Datasets, as random-access sources, which need no TensorFlow to be read.

TensorFlow Datasets shuffles what it writes: it sorts examples by the MD5 digest of the split's name and the example's
key, which for the sets used here is its running number. That order is undone, so that a set is the same arrays whether
it comes from here or from its official files.
"""

import hashlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import getproxies

import numpy as np

from fedjax_bal.data.errors import DataError
from fedjax_bal.data.memory import check_images_fit
from fedjax_bal.data.readers.image_files import ImageRules, decode, square
from fedjax_bal.data.readers.reader import Reader
from fedjax_bal.data.readers.untrusted import brief_error, check_within, read_json, shortened
from fedjax_bal.files import open_file
from fedjax_bal.types import Dataset

_HALVES = ("train", "test")
_METADATA = "dataset_info.json"
_MAX_METADATA = 2**24
_FEATURES = "tensorflow_datasets.core.features."
_HOSTS = ("storage.googleapis.com", "www.cs.toronto.edu")  # two of those that it downloads from
_FORMAT = "array_record"
_REMEDY = "prepare it again."
_RULES = ImageRules(_REMEDY)


class Split(NamedTuple):
    """Images `UInt8[D, H, W, K]`, labels `Int32[D]`, and their clients `Int32[D]`, or None."""

    images: np.ndarray
    labels: np.ndarray
    clients: np.ndarray | None


def build_for_tfds(name: str, files: Path, data_dir: Path) -> Path:
    """Writes a data set in the format of TensorFlow Datasets; see `tfds_builders.build`."""
    from fedjax_bal.data.readers import tfds_builders  # imports TensorFlow Datasets

    return tfds_builders.build(name, files, data_dir)


def find_tfds(reader: Reader, data_dir: Path) -> tuple[Path, Path] | None:
    """Finds the latest folders, prepared by TensorFlow Datasets, of the training and of the test images."""
    train, test = (_latest(data_dir, known) for known in (reader.tfds.train, reader.tfds.test))
    return (train, test) if train and test else None


def read_tfds(reader: Reader, folders: tuple[Path, Path]) -> Dataset:
    """Reads a data set from the folders that `find_tfds` found, in the order of its official files."""
    train, test = (_read_folder(reader, folder, half) for folder, half in zip(folders, _HALVES, strict=True))
    return _joined(reader, train, test)


def download(reader: Reader) -> Dataset:
    """Reads a data set from the folder of TensorFlow Datasets, which downloads it once."""
    if not reader.tfds.published:
        raise DataError(
            f"{reader.name}: TensorFlow Datasets doesn't have it; pass --data-dir with the folder that holds "
            f"{reader.files}."
        )
    try:
        return _download(reader)
    except Exception as error:  # of any kind: network, disk, formats and optional imports can fail
        raise DataError(
            f"{reader.name}: TensorFlow Datasets can't provide it ({brief_error(error)}). The first time it needs a "
            "network, and TensorFlow to encode the images. Without them pass --data-dir with the folder that holds "
            f"{reader.files}."
        ) from error


def _download(reader: Reader) -> Dataset:
    import tensorflow_datasets as tfds

    decoders = {"image": tfds.decode.SkipDecoding()}
    splits = []
    for known, half in zip((reader.tfds.train, reader.tfds.test), _HALVES, strict=True):
        if not tfds.builder(known).is_prepared():
            _check_network()
        source = tfds.data_source(known, split=half, decoders=decoders)
        splits.append(_read_split(reader, source, half, reader.name))
    return _joined(reader, *splits)


def _check_network() -> None:
    """Raises `ConnectionError` without a network, for which TensorFlow Datasets would retry for minutes."""
    if not getproxies().keys() & {"http", "https", "all"} and not any(map(_is_known, _HOSTS)):
        raise ConnectionError(f"no network: {' and '.join(_HOSTS)} can't be looked up")


def _is_known(host: str) -> bool:
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True


def _read_split(reader: Reader, source: Any, half: str, place: str) -> Split:
    """Decodes the images of a random-access source, in their original order."""
    height, width, channels = reader.image_shape
    check_images_fit(place, len(source), (height, width, channels))
    images = np.empty((len(source), height, width, channels), np.uint8)
    labels, clients = np.empty(len(source), np.int64), np.empty(len(source), np.int64)
    rules, convert = _image_rules(reader)
    for row, at in enumerate(original_order(half, len(source), not source.dataset_info.disable_shuffling)):
        example = source[row]
        pixels = decode(example["image"], f"{place}: {half} image {row}", rules, convert)
        images[at] = pixels.reshape(height, width, channels)
        labels[at], clients[at] = example["label"], example.get("client", -1)
    _check_labels(f"{place}: {half}", labels, reader.num_classes)
    if reader.tfds.transposed:
        images = np.ascontiguousarray(images.swapaxes(1, 2))
    known = clients.min() >= 0 and clients.max() < 2**31
    return Split(images, labels.astype(np.int32), clients.astype(np.int32) if known else None)


def original_order(split: str, count: int, shuffled: bool = True) -> np.ndarray:
    """Returns the original place of each example of a split, `Int[D]`, in the order in which they are stored."""
    if not shuffled:
        return np.arange(count)
    digest = lambda row: hashlib.md5(f"{split}{row}".encode(), usedforsecurity=False).digest()
    return np.array(sorted(range(count), key=digest), np.int64)


def _read_folder(reader: Reader, folder: Path, half: str) -> Split:
    _check_metadata(folder)
    try:
        import tensorflow_datasets as tfds

        for path in folder.iterdir():
            _check_file(folder, path)
        builder = tfds.builder_from_directory(folder)
        for file in builder.info.splits[half].filepaths:
            _check_file(folder, Path(file))
        decoders = {"image": tfds.decode.SkipDecoding()}
        source = builder.as_data_source(half, decoders=decoders)  # type: ignore[call-arg] # a decorator hides them
        return _read_split(reader, source, half, str(folder))
    except DataError:
        raise
    except Exception as error:  # of any kind: disk, formats and optional imports can fail
        raise DataError(
            f"{folder}: TensorFlow Datasets can't read its {half} images ({brief_error(error)}); {_REMEDY}"
        ) from error


def _check_file(folder: Path, path: Path) -> None:
    """Raises an error for a link out of the folder, and for a pipe or device, on which reading could block forever."""
    check_within(folder, path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        open_file(path).close()  # raises an error that names its kind


def _image_rules(reader: Reader) -> tuple[ImageRules, Callable[[Any], Any]]:
    """Returns the rules for a data set's stored images, and the function that converts them to its shape and mode."""
    height, width, channels = reader.image_shape
    mode = "L" if channels == 1 else "RGB"
    if reader.tfds.stored is not None:
        return _RULES, lambda image: square(image.convert(mode), height)
    return _RULES._replace(size=(width, height)), lambda image: image.convert(mode)


def _check_labels(place: str, labels: np.ndarray, classes: int) -> None:
    if labels.size == 0 or labels.min() < 0 or labels.max() >= classes:
        found = f"labels in {labels.min()}..{labels.max()}" if labels.size else "no images"
        raise DataError(f"{place}: found {found}, expected labels in 0..{classes - 1}; {_REMEDY}")


def _joined(reader: Reader, train: Split, test: Split) -> Dataset:
    return Dataset(*train[:2], *test[:2], reader.class_names, train.clients)


def _latest(data_dir: Path, known: str) -> Path | None:
    """Finds the folder of a set's latest version: below a folder, or that folder itself."""
    if not known:
        return None
    name, _, config = known.partition("/")
    places = [data_dir / name / config, data_dir / config, data_dir] if config else [data_dir / name, data_dir]
    for place in places:
        found = [path.parent for path in place.glob(f"*/{_METADATA}") if _is_of(path.parent, name, config)]
        if found:
            return max(found, key=lambda folder: [int(part) for part in folder.name.split(".") if part.isdecimal()])
    return data_dir if _is_of(data_dir, name, config) else None


def _is_of(folder: Path, name: str, config: str) -> bool:
    """Tells whether a folder's metadata name a set."""
    file = folder / _METADATA
    if not file.is_file():
        return False
    content = read_json(file, _MAX_METADATA, _REMEDY)
    return isinstance(content, dict) and (content.get("name"), content.get("configName", "")) == (name, config)


def _check_metadata(folder: Path) -> None:
    """Raises `DataError` for another format, and for features that would import modules from elsewhere."""
    found = read_json(folder / _METADATA, _MAX_METADATA, _REMEDY).get("fileFormat")
    if found != _FORMAT:
        raise DataError(
            f"{folder}: is prepared in the format {shortened(found)}, which can't be read without TensorFlow; prepare "
            f"it with file_format={_FORMAT!r}."
        )
    content = read_json(folder / "features.json", _MAX_METADATA, _REMEDY)
    strange = [name for name in _class_names(content) if not name.startswith(_FEATURES)]
    if strange:
        raise DataError(
            f"{folder / 'features.json'}: names {strange[0][:100]!r}, which is no feature of TensorFlow Datasets; it "
            "could run any code, so it is never imported."
        )


def _class_names(content: Any) -> list[str]:
    """Returns all names of Python classes in nested mappings and lists."""
    found, left = [], [content]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            found += [str(item[key]) for key in ("pythonClassName", "type", "proto_cls") if key in item]
            left += item.values()
        elif isinstance(item, list):
            left += item
    return found
