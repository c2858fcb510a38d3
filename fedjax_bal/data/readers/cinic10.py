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

from fedjax_bal.data.errors import DataError, MissingError
from fedjax_bal.data.readers.cifar import CIFAR10
from fedjax_bal.data.readers.image_files import EIGHT_BITS, Kind, read_all
from fedjax_bal.data.readers.reader import Reader, TfdsSets
from fedjax_bal.data.readers.untrusted import check_within
from fedjax_bal.types import Dataset

FOLDERS = ("cinic10", "CINIC-10", "")
"""Where the three halves may lie below the folder that the user names."""

_SIZE = (32, 32)
_KIND = Kind(
    formats=("PNG",),
    modes=EIGHT_BITS,
    max_bytes=2**16,  # an image has 3,072 bytes of pixels; there may be words beside them
    max_side=max(_SIZE),
    size=_SIZE,
    again="the file is damaged or foreign to CINIC-10: unpack CINIC-10.tar.gz again.",
)


def read_split(folder: str | os.PathLike, class_names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Reads a folder that has a folder of PNG files for each class.

    Args:
        folder: the folder.
        class_names: names of the classes' folders, in the order of the labels; others are left alone.

    Returns:
        Images `UInt8[D, 32, 32, 3]`, grey ones with three equal channels, and labels `Int32[D]`. Classes stand
        one after another, and files in the order of their names, so that the same files give the same arrays.

    Raises:
        DataError: the folder of a class is missing or empty, a file can't be read, is no PNG or damaged, or its
            image has another size.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Path(folder, "cat").mkdir()
        ...     Image.new("L", (32, 32), 7).save(Path(folder, "cat", "one.png"))
        ...     images, labels = read_split(folder, ["cat"])
        >>> images.shape, images[0, 0, 0].tolist(), labels.tolist()
        ((1, 32, 32, 3), [7, 7, 7], [0])
    """
    files = [_files(Path(folder, name)) for name in class_names]
    every = [path for own in files for path in own]
    images = read_all("cinic10", every, _KIND, (*_SIZE, 3), lambda pillow, image: image.convert("RGB"))
    return images, np.repeat(np.arange(len(files), dtype=np.int32), [len(own) for own in files])


def _read_set(data_dir: Path) -> Dataset:
    """The images of `train` and of `test`; those of `valid` stay unused."""
    root = _find_root(data_dir)
    return Dataset(*read_split(root / "train", CIFAR10), *read_split(root / "test", CIFAR10), CIFAR10)


def _find_set(data_dir: Path) -> list[Path]:
    """The folders of both halves and of their classes, which change with the list of their files."""
    root = _find_root(data_dir)
    return [path for half in ("train", "test") for path in (root / half, *(root / half / name for name in CIFAR10))]


def _find_root(data_dir: Path) -> Path:
    """The first folder that holds `train` and `test`."""
    candidates = [data_dir / folder for folder in FOLDERS]
    for candidate in candidates:
        if (candidate / "train").is_dir() and (candidate / "test").is_dir():
            return candidate
    raise MissingError(
        f"cinic10 was not found: looked for train/ and test/ in {', '.join(map(str, candidates))}; unpack "
        "CINIC-10.tar.gz in one of them, or pass the folder that holds train/ and test/ as --data-dir."
    )


def _files(folder: Path) -> list[Path]:
    """The PNG files of a class, by name; links stay within the folder that holds all classes."""
    try:
        if folder.is_symlink():
            check_within(folder.parent, folder)
        with os.scandir(folder) as entries:
            own = [entry for entry in entries if entry.name.endswith(".png") and entry.is_file()]
            for entry in own:
                if entry.is_symlink():
                    check_within(folder.parent, Path(entry.path))
            names = sorted(entry.name for entry in own)
    except OSError as error:
        raise DataError(
            f"{folder}: can't be read ({error.strerror or error}); it must be a folder of CINIC-10's PNG files: "
            "unpack CINIC-10.tar.gz again, or check its rights."
        ) from error
    if not names:
        raise DataError(f"{folder}: holds no PNG files (*.png); unpack CINIC-10.tar.gz again.")
    return [folder / name for name in names]


READERS = (
    Reader(
        name="cinic10",
        description="CINIC-10: 90,000 + 90,000 colour images 32x32 from CIFAR-10 and ImageNet, 10 classes",
        read=_read_set,
        find=_find_set,
        files="train/ and test/ (unpacked from CINIC-10.tar.gz), or cinic10/ or CINIC-10/ with them",
        home="https://datashare.ed.ac.uk/handle/10283/3192",
        tfds=TfdsSets("cinic10", "cinic10", published=False),
        image_shape=(32, 32, 3),
        class_names=CIFAR10,
        counts=(90_000, 90_000),
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
    ),
)
"""CINIC-10, normalised with its own published constants; its 90,000 images for validation are not used."""
