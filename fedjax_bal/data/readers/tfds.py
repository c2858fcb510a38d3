"""Data sets through TensorFlow Datasets, as random-access sources, which need no TensorFlow to be read.

TensorFlow Datasets shuffles what it writes: it sorts examples by the MD5 digest of the split's name and the example's
key, which for the sets here is its running number. So their first order is known, and is restored: the same set is the
same arrays, whether it comes from here or from its official files.
"""

import hashlib
import socket
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from urllib.request import getproxies

import numpy as np

from fedjax_bal.data.errors import DataError
from fedjax_bal.data.memory import check_memory
from fedjax_bal.data.readers.image_files import EIGHT_BITS, Kind, decoded, decoder, squared
from fedjax_bal.data.readers.reader import Reader
from fedjax_bal.data.readers.untrusted import check_within, read_json, shortened
from fedjax_bal.files import open_file
from fedjax_bal.types import Dataset

_HALVES = ("train", "test")
_METADATA = "dataset_info.json"
_MAX_METADATA = 2**24
_FEATURES = "tensorflow_datasets.core.features."
_HOSTS = ("storage.googleapis.com", "www.cs.toronto.edu")  # two of those that it downloads from
_FORMAT = "array_record"
_AGAIN = "prepare it again."
_KIND = Kind(
    formats=("PNG", "JPEG"), modes=(*EIGHT_BITS, "CMYK"), max_bytes=2**24, max_side=4096, size=None, again=_AGAIN
)


class Half(NamedTuple):
    """One split.

    Attributes:
        images: `UInt8[D, H, W, K]`.
        labels: `Int32[D]`.
        clients: `Int32[D]`, or None.
    """

    images: np.ndarray
    labels: np.ndarray
    clients: np.ndarray | None


def build_for_tfds(name: str, files: Path, data_dir: Path) -> Path:
    """Writes a data set as TensorFlow Datasets keeps it; see `tfds_builders.build`."""
    from fedjax_bal.data.readers import tfds_builders  # imports TensorFlow Datasets

    return tfds_builders.build(name, files, data_dir)


def find_tfds(reader: Reader, data_dir: Path) -> tuple[Path, Path] | None:
    """The latest folders that TensorFlow Datasets has prepared for training and for testing, which may be the same."""
    train, test = (_latest(data_dir, known) for known in (reader.tfds.train, reader.tfds.test))
    return (train, test) if train and test else None


def read_tfds(reader: Reader, folders: tuple[Path, Path]) -> Dataset:
    """Reads a data set from the folders that `find_tfds` found, in the order of its official files."""
    train, test = (_read_folder(reader, folder, half) for folder, half in zip(folders, _HALVES, strict=True))
    return _together(reader, train, test)


def download(reader: Reader) -> Dataset:
    """Has TensorFlow Datasets provide a data set from the folder that it keeps, into which it downloads it once."""
    if not reader.tfds.published:
        raise DataError(
            f"{reader.name}: TensorFlow Datasets doesn't have it; pass --data-dir with the folder that holds "
            f"{reader.files}."
        )
    try:
        return _provided(reader)
    except Exception as error:  # of any kind: network, disk, formats and optional imports all fail in there
        raise DataError(
            f"{reader.name}: TensorFlow Datasets can't provide it ({shown(error)}). The first time it needs a "
            "network, and TensorFlow to encode the images. Without them pass --data-dir with the folder that holds "
            f"{reader.files}."
        ) from error


def _provided(reader: Reader) -> Dataset:
    """What TensorFlow Datasets has or downloads."""
    import tensorflow_datasets as tfds

    decoders = {"image": tfds.decode.SkipDecoding()}
    halves = []
    for known, half in zip((reader.tfds.train, reader.tfds.test), _HALVES, strict=True):
        if not tfds.builder(known).is_prepared():
            _check_network()
        source = tfds.data_source(known, split=half, decoders=decoders)
        halves.append(_read_half(reader, source, half, reader.name))
    return _together(reader, *halves)


def _check_network() -> None:
    """Fails at once where names can't be looked up, and TensorFlow Datasets would retry for minutes."""
    if not getproxies().keys() & {"http", "https", "all"} and not any(map(_known, _HOSTS)):
        raise ConnectionError(f"no network: {' and '.join(_HOSTS)} can't be looked up")


def _known(host: str) -> bool:
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True


def _read_half(reader: Reader, source: Any, half: str, place: str) -> Half:
    """Gathers the still encoded images of a random-access source into arrays, in their first order."""
    height, width, channels = reader.image_shape
    check_memory(place, len(source), (height, width, channels), "take a machine with more")
    images = np.empty((len(source), height, width, channels), np.uint8)
    labels, clients = np.empty(len(source), np.int64), np.empty(len(source), np.int64)
    with decoder(reader.name) as pillow:
        kind, make = _picture(pillow, reader)
        for row, at in enumerate(first_order(half, len(source), source.dataset_info.disable_shuffling)):
            example = source[row]
            pixels = decoded(pillow, example["image"], f"{place}: {half} image {row}", kind, make)
            images[at] = pixels.reshape(height, width, channels)
            labels[at], clients[at] = example["label"], example.get("client", -1)
    _check_labels(f"{place}: {half}", labels, reader.num_classes)
    if reader.tfds.transposed:
        images = np.ascontiguousarray(images.swapaxes(1, 2))
    known = clients.min() >= 0 and clients.max() < 2**31
    return Half(images, labels.astype(np.int32), clients.astype(np.int32) if known else None)


def first_order(split: str, count: int, as_written: bool = False) -> np.ndarray:
    """Where each example of a split stood before TensorFlow Datasets shuffled it.

    Args:
        split: its name.
        count: how many examples it has, D.
        as_written: that it was not shuffled.

    Returns:
        `Int[D]`: what is stored first stood there, and so on.

    Example:
        >>> first_order("train", 5).tolist()
        [4, 0, 3, 1, 2]
    """
    if as_written:
        return np.arange(count)
    digest = lambda row: hashlib.md5(f"{split}{row}".encode(), usedforsecurity=False).digest()
    return np.array(sorted(range(count), key=digest), np.int64)


def shown(error: Exception, limit: int = 300) -> str:
    """The beginning of an error's message; those of TensorFlow Datasets can hold a whole image.

    Args:
        error: the error.
        limit: characters.

    Returns:
        Its kind and message.

    Example:
        >>> shown(KeyError("image"))
        "KeyError: 'image'"
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text if len(text) <= limit else f"{text[:limit]} ..."


def _read_folder(reader: Reader, folder: Path, half: str) -> Half:
    """Reads a split from a folder that TensorFlow Datasets has prepared."""
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
        return _read_half(reader, source, half, str(folder))
    except DataError:
        raise
    except Exception as error:  # of any kind: disk, formats and optional imports all fail in there
        raise DataError(
            f"{folder}: TensorFlow Datasets can't read its {half} images ({shown(error)}); {_AGAIN}"
        ) from error


def _check_file(folder: Path, path: Path) -> None:
    """Refuses a link that leads out, and a pipe or device, for which TensorFlow Datasets would wait for ever."""
    check_within(folder, path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        open_file(path).close()  # which says what it is


def _picture(pillow: ModuleType, reader: Reader) -> tuple[Kind, Callable[[Any], Any]]:
    """What the stored images of a data set are like, and what they become."""
    height, width, channels = reader.image_shape
    mode = "L" if channels == 1 else "RGB"
    if reader.tfds.stored is not None:
        return _KIND, lambda image: squared(pillow, image.convert(mode), height)
    return _KIND._replace(size=(width, height)), lambda image: image.convert(mode)


def _check_labels(place: str, labels: np.ndarray, classes: int) -> None:
    if labels.size == 0 or labels.min() < 0 or labels.max() >= classes:
        found = f"labels in {labels.min()}..{labels.max()}" if labels.size else "no images"
        raise DataError(f"{place}: found {found}, expected labels in 0..{classes - 1}; {_AGAIN}")


def _together(reader: Reader, train: Half, test: Half) -> Dataset:
    return Dataset(*train[:2], *test[:2], reader.class_names, train.clients)


def _latest(data_dir: Path, known: str) -> Path | None:
    """The folder of the latest version of a set, below a folder or that folder itself."""
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
    """Whether a folder says that it holds a set."""
    file = folder / _METADATA
    if not file.is_file():
        return False
    content = read_json(file, _MAX_METADATA, _AGAIN)
    return isinstance(content, dict) and (content.get("name"), content.get("configName", "")) == (name, config)


def _check_metadata(folder: Path) -> None:
    """Refuses another format, and features that would have other modules imported than those of TensorFlow Datasets."""
    found = read_json(folder / _METADATA, _MAX_METADATA, _AGAIN).get("fileFormat")
    if found != _FORMAT:
        raise DataError(
            f"{folder}: is prepared in the format {shortened(found)}, which can't be read without TensorFlow; prepare "
            f"it with file_format={_FORMAT!r}."
        )
    content = read_json(folder / "features.json", _MAX_METADATA, _AGAIN)
    strange = [name for name in _classes(content) if not name.startswith(_FEATURES)]
    if strange:
        raise DataError(
            f"{folder / 'features.json'}: names {strange[0][:100]!r}, which is no feature of TensorFlow Datasets; it "
            "could run any code, so it is never imported."
        )


def _classes(content: Any) -> list[str]:
    """All names of classes in nested mappings and lists."""
    found, left = [], [content]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            found += [str(item[key]) for key in ("pythonClassName", "type", "proto_cls") if key in item]
            left += item.values()
        elif isinstance(item, list):
            left += item
    return found
