"""CINIC-10: a folder of PNG files for each class, 32 x 32 pixels.

The official archive holds `train/`, `valid/` and `test/`, each with ten folders of 9,000 files. Nothing that a file
claims is trusted: its length and the size of its image are checked before pixels are unpacked, and its checksums too.

References:
    Darlow, Crowley, Antoniou, Storkey: CINIC-10 is not ImageNet or CIFAR-10, 2018.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_bal.data.errors import reading
from fedjax_bal.data.readers.cifar import CIFAR10
from fedjax_bal.data.readers.image_files import EIGHT_BITS, ImageRules, read_classes
from fedjax_bal.data.readers.reader import Reader
from fedjax_bal.data.readers.untrusted import find_folder, list_files
from fedjax_bal.types import Dataset

_FOLDERS = ("cinic10", "CINIC-10", "")
_HALVES = ("train/", "test/")
_SIZE = (32, 32)
_RULES = ImageRules(
    remedy="the file is damaged or foreign to CINIC-10: unpack CINIC-10.tar.gz again.",
    formats=("PNG",),
    modes=EIGHT_BITS,
    max_bytes=2**16,  # an image has 3,072 bytes of pixels, and perhaps some text
    max_side=max(_SIZE),
    size=_SIZE,
)


def read_split(folder: str | os.PathLike, class_names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Reads the PNG files of each class's folder, by name: images `UInt8[D, 32, 32, 3]` and labels `Int32[D]`."""
    files = []
    for own in (Path(folder, name) for name in class_names):
        with reading(own, "unpack CINIC-10.tar.gz again."):
            files.append(list_files(own, (".png",)))
            if not files[-1]:
                raise ValueError("holds no PNG files (*.png)")
    return read_classes(files, _RULES, (*_SIZE, 3), lambda image: image.convert("RGB"))


def _read_set(data_dir: Path) -> Dataset:
    root = _find_root(data_dir)
    train, test = (read_split(root / half, CIFAR10) for half in _HALVES)
    return Dataset(*train, *test, CIFAR10)


def _find_set(data_dir: Path) -> list[Path]:
    """Lists the folders of both halves and of their classes, whose times change with the list of their files."""
    root = _find_root(data_dir)
    return [path for half in _HALVES for path in (root / half, *(root / half / name for name in CIFAR10))]


def _find_root(data_dir: Path) -> Path:
    remedy = "unpack CINIC-10.tar.gz in one of them, or pass the folder that holds train/ and test/"
    return find_folder("cinic10", data_dir, _FOLDERS, _HALVES, remedy)


READERS = (
    Reader(
        name="cinic10",
        description="CINIC-10: 90,000 + 90,000 colour images 32x32 from CIFAR-10 and ImageNet, 10 classes",
        read=_read_set,
        find=_find_set,
        files="train/ and test/ (unpacked from CINIC-10.tar.gz), or cinic10/ or CINIC-10/ with them",
        home="https://datashare.ed.ac.uk/handle/10283/3192",
        image_shape=(32, 32, 3),
        class_names=CIFAR10,
        counts=(90_000, 90_000),
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
    ),
)
"""CINIC-10, normalised with its own published constants; its 90,000 images for validation are not used."""
