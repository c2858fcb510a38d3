"""CIFAR-10 and CIFAR-100, from the files of their binary versions.

A record is one label byte (CIFAR-10) or a coarse and a fine label byte (CIFAR-100), then 3,072 pixel bytes: the red,
the green and the blue plane of 32 x 32, each row by row. The Python versions are pickles, which can execute code, so
they are never opened. Both sets are normalised with the constants of CIFAR-10, as in the papers whose tables are
reproduced here.

References:
    Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009, and the data sets' page.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_bal.data.reading import FETCH_AGAIN, DataError, MissingError, reading
from fedjax_bal.data.sources.reader import Reader, TfdsSets
from fedjax_bal.types import Dataset

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""The classes of CIFAR-10."""

_CIFAR100_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CIFAR100 = tuple(_CIFAR100_NAMES.split())
"""The fine classes of CIFAR-100."""

_PIXELS = 3 * 32 * 32
_MAX_BYTES = 2**31


class CifarLayout(NamedTuple):
    """One of the two sets: its published name, its folder and files in the archive, its records and classes.

    If a record has several label bytes, the last one is used.
    """

    title: str
    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    label_bytes: int
    class_names: tuple[str, ...]


LAYOUTS = {
    "cifar10": CifarLayout(
        title="CIFAR-10",
        archive="cifar-10-binary.tar.gz",
        folder="cifar-10-batches-bin",
        train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        test="test_batch.bin",
        label_bytes=1,
        class_names=CIFAR10,
    ),
    "cifar100": CifarLayout(
        title="CIFAR-100",
        archive="cifar-100-binary.tar.gz",
        folder="cifar-100-binary",
        train=("train.bin",),
        test="test.bin",
        label_bytes=2,
        class_names=CIFAR100,
    ),
}
"""Name of the data set -> its layout."""


def read_records(path: Path, label_bytes: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads one file of records: images `UInt8[D, 32, 32, 3]` and labels `Int32[D]`, the last label byte of each."""
    record = label_bytes + _PIXELS
    with reading(path, "the file is incomplete, damaged or of the other CIFAR: fetch it again."):
        size = path.stat().st_size
        if size == 0 or size % record or size > _MAX_BYTES:
            raise ValueError(
                f"expected a whole number of records of {record} bytes (10,000 of them are {10000 * record} bytes) and "
                f"at most {_MAX_BYTES} bytes, found {size} bytes"
            )
        records = np.fromfile(path, np.uint8, count=size).reshape(-1, record)
        labels = records[:, label_bytes - 1].astype(np.int32)
        if labels.max() >= num_classes:
            at = int(np.argmax(labels >= num_classes))
            raise ValueError(f"label {labels[at]} in record {at}, expected 0..{num_classes - 1}")
    planes = records[:, label_bytes:].reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


def _read_set(name: str, data_dir: Path) -> Dataset:
    layout = LAYOUTS[name]
    *train, test = _find_set(name, data_dir)
    parts = [read_records(file, layout.label_bytes, len(layout.class_names)) for file in train]
    longest = max(len(labels) for _, labels in parts)
    for file, (_, labels) in zip(train, parts, strict=True):
        if len(labels) < longest:  # a file cut off between two records looks complete by itself
            raise DataError(
                f"{file}: expected {longest} records, as the other training files have, found {len(labels)}; "
                f"{FETCH_AGAIN}"
            )
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Dataset(images, labels, *read_records(test, layout.label_bytes, len(layout.class_names)), layout.class_names)


def _find_set(name: str, data_dir: Path) -> list[Path]:
    """Finds the training files and the test file, all in one folder."""
    layout = LAYOUTS[name]
    wanted = (*layout.train, layout.test)
    folders = (data_dir / layout.folder, data_dir)
    present = [[file for file in wanted if (folder / file).is_file()] for folder in folders]
    for folder, files in zip(folders, present, strict=True):
        if len(files) == len(wanted):
            return [folder / file for file in wanted]
    for folder, files in zip(folders, present, strict=True):
        if files:
            missing = [file for file in wanted if file not in files]
            raise DataError(f"{folder}: {name} lacks {', '.join(missing)}; unpack {layout.archive} again.")
    raise MissingError(
        f"{name} was not found: looked for {', '.join(wanted)} in {folders[0]} and {data_dir}. The python version is a "
        f"pickle: a pickle can run any code, so it is never opened. Get {layout.archive} (the binary version) and "
        f"unpack it in {data_dir}: tar -xzf {layout.archive}."
    )


def _reader(name: str, layout: CifarLayout) -> Reader:
    files = ", ".join((*layout.train, layout.test))
    return Reader(
        name=name,
        description=f"{layout.title}: 50,000 + 10,000 colour images 32x32, {len(layout.class_names)} classes",
        read=partial(_read_set, name),
        find=partial(_find_set, name),
        files=f"{files} (unpacked from {layout.archive}), or {layout.folder}/ with them",
        home="https://www.cs.toronto.edu/~kriz/cifar.html (binary version)",
        tfds=TfdsSets(name, name),
        image_shape=(32, 32, 3),
        class_names=layout.class_names,
        counts=(50_000, 10_000),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
    )


READERS = tuple(_reader(name, layout) for name, layout in LAYOUTS.items())
"""CIFAR-10 and CIFAR-100."""
