"""CIFAR-10 and CIFAR-100, from the files of their binary versions.

A record is one label byte (CIFAR-10) or a coarse and a fine label byte (CIFAR-100), then 3,072 pixel bytes: the red,
the green and the blue plane of 32 x 32, each row by row. The Python versions are pickles, which can execute code, so
they are never opened. Both sets are normalised with the constants of CIFAR-10, as in the papers whose tables are
reproduced here.

References:
    Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009, and the data sets' page.
"""

from pathlib import Path

import numpy as np

from fedjax_bal.data.reading import FETCH_AGAIN, DataError, find_folder, reading
from fedjax_bal.data.sources.reader import Reader, TfdsSets
from fedjax_bal.files import read_bytes
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


def read_records(path: Path, label_bytes: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads one file of records: images `UInt8[D, 32, 32, 3]` and labels `Int32[D]`, the last label byte of each."""
    record = label_bytes + _PIXELS
    with reading(path, "the file is incomplete, damaged or of the other CIFAR: fetch it again."):
        content = np.frombuffer(read_bytes(path), np.uint8)
        if not content.size or content.size % record:
            raise ValueError(
                f"expected a whole number of records of {record} bytes (10,000 of them are {10000 * record} bytes), "
                f"found {content.size} bytes"
            )
        records = content.reshape(-1, record)
        labels = records[:, label_bytes - 1].astype(np.int32)
        if labels.max() >= num_classes:
            at = int(np.argmax(labels >= num_classes))
            raise ValueError(f"label {labels[at]} in record {at}, expected 0..{num_classes - 1}")
    planes = records[:, label_bytes:].reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


def _reader(
    name: str,
    title: str,
    folder: str,
    train: tuple[str, ...],
    test: str,
    label_bytes: int,
    class_names: tuple[str, ...],
) -> Reader:
    """Returns the reader of one of the sets; of several label bytes in a record, the last one is used."""
    archive = f"{title.lower()}-binary.tar.gz"
    wanted = (*train, test)

    def find(data_dir: Path) -> list[Path]:
        remedy = (
            f"the python version is a pickle: a pickle can run any code, so it is never opened. Get {archive} (the "
            f"binary version) and unpack it in {data_dir}: tar -xzf {archive}."
        )
        found = find_folder(name, data_dir, (folder, ""), wanted, remedy)
        return [found / file for file in wanted]

    def read(data_dir: Path) -> Dataset:
        *training, testing = find(data_dir)
        parts = [read_records(file, label_bytes, len(class_names)) for file in training]
        longest = max(len(labels) for _, labels in parts)
        for file, (_, labels) in zip(training, parts, strict=True):
            if len(labels) < longest:  # a file cut off between two records looks complete by itself
                raise DataError(
                    f"{file}: expected {longest} records, as the other training files have, found {len(labels)}; "
                    f"{FETCH_AGAIN}"
                )
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Dataset(images, labels, *read_records(testing, label_bytes, len(class_names)), class_names)

    return Reader(
        name=name,
        description=f"{title}: 50,000 + 10,000 colour images 32x32, {len(class_names)} classes",
        read=read,
        find=find,
        files=f"{', '.join(wanted)} (unpacked from {archive}), or {folder}/ with them",
        home="https://www.cs.toronto.edu/~kriz/cifar.html (binary version)",
        tfds=TfdsSets(name, name),
        image_shape=(32, 32, 3),
        class_names=class_names,
        counts=(50_000, 10_000),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
    )


_BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
READERS = (
    _reader("cifar10", "CIFAR-10", "cifar-10-batches-bin", _BATCHES, "test_batch.bin", 1, CIFAR10),
    _reader("cifar100", "CIFAR-100", "cifar-100-binary", ("train.bin",), "test.bin", 2, CIFAR100),
)
"""CIFAR-10 and CIFAR-100."""
