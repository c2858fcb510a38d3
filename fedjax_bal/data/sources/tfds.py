"""Data sets through TensorFlow Datasets, as random-access sources, which can be read without TensorFlow.

Rows are in the order of the prepared folder: random-access sources are not shuffled. TensorFlow Datasets shuffles by a
fixed rule when it prepares a set, so the order differs from that of the official files, and the same seed gives a
different partition.

The contents of a folder are read with TensorFlow Datasets' own code for the set, not with its `features.json`, which
could name any class of any module.
"""

import logging
import socket
from pathlib import Path
from urllib.request import getproxies

import numpy as np

from fedjax_bal.data.memory import check_images_fit
from fedjax_bal.data.reading import DataError, reading
from fedjax_bal.data.sources.images import ImageRules, decode
from fedjax_bal.data.sources.reader import Reader
from fedjax_bal.files import open_file
from fedjax_bal.types import Dataset

INFO = "dataset_info.json"
"""The file by which a folder of TensorFlow Datasets is known."""

_HOSTS = ("storage.googleapis.com", "www.cs.toronto.edu")  # two of its download hosts


def find_tfds(reader: Reader, data_dir: Path) -> list[Path]:
    """Lists the files of a set's folders NAME[/CONFIG]/VERSION; empty unless both halves exist."""
    folders = [list((data_dir / name).glob(f"*/{INFO}")) for name in reader.tfds[:2]] if reader.tfds else []
    return sorted({file for half in folders for path in half for file in path.parent.iterdir()}) if all(folders) else []


def read_tfds(reader: Reader, data_dir: Path | None = None) -> Dataset:
    """Reads a data set from a prepared folder of TensorFlow Datasets, by default its own, into which it downloads.

    Raises:
        DataError: the folder is damaged or has another version or format, or the set can't be downloaded.
    """
    files = f"pass --data-dir with the folder that holds {reader.files}."
    if reader.tfds is None:
        raise DataError(f"{reader.name}: TensorFlow Datasets doesn't have it; {files}")
    halves: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, half in zip(reader.tfds[:2], ("train", "test"), strict=True):
        source = f"{reader.name}: TensorFlow Datasets can't provide it" if data_dir is None else data_dir / name
        without = f"the first time it needs a network, and TensorFlow to encode the images. Without them {files}"
        remedy = "prepare it again, in the format array_record." if data_dir else without
        with reading(source, remedy):
            halves[half] = _read_split(reader, name, half, data_dir)
    return Dataset(*halves["train"], *halves["test"], reader.class_names, official_order=False)


def _read_split(reader: Reader, name: str, half: str, data_dir: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Reads images `UInt8[D, H, W, K]` and labels `Int32[D]`."""
    import tensorflow_datasets as tfds

    for file in find_tfds(reader, data_dir) if data_dir else ():
        if not file.is_dir():
            open_file(file).close()  # raises for a pipe or a device, on which reading could block forever
    absl = logging.getLogger("absl")
    level = absl.level
    absl.setLevel(logging.ERROR)  # its warnings about a folder that can't be used say less than the messages here
    try:
        builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
        is_prepared = builder.is_prepared()
    finally:
        absl.setLevel(level)
    if not is_prepared:
        if data_dir is not None:
            raise ValueError(f"holds other versions than {builder.version}, which is read")
        _check_network()
        builder.download_and_prepare()
    for file in builder.info.splits[half].filepaths:
        open_file(file).close()
    decoders = {"image": tfds.decode.SkipDecoding()}
    source = builder.as_data_source(half, decoders=decoders)  # type: ignore[call-arg] # hidden by a decorator
    height, width, _ = reader.image_shape
    check_images_fit(f"{name}: {half}", len(source), reader.image_shape)
    images = np.empty((len(source), *reader.image_shape), np.uint8)
    labels = np.empty(len(source), np.int32)
    rules = ImageRules("prepare it again.", size=(width, height))
    for row in range(len(source)):
        example = source[row]
        with reading(f"{name}: {half} image {row}", rules.remedy):
            images[row] = decode(example["image"], rules, reader.image_shape)
        labels[row] = example["label"]
    if not len(labels) or labels.min() < 0 or labels.max() >= reader.num_classes:
        raise ValueError(f"{half}: expected images, and labels in 0..{reader.num_classes - 1}")
    turned = reader.tfds is not None and reader.tfds.transposed
    return np.ascontiguousarray(images.swapaxes(1, 2)) if turned else images, labels


def _check_network() -> None:
    """Raises `ConnectionError` without a network; TensorFlow Datasets would retry for minutes."""
    if getproxies().keys() & {"http", "https", "all"}:
        return
    for host in _HOSTS:
        try:
            socket.getaddrinfo(host, 443)
            return
        except OSError:
            continue
    raise ConnectionError(f"no network: {' and '.join(_HOSTS)} can't be looked up")
