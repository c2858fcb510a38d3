"""Reader for CINIC-10: a folder of PNG files for each class, 32 x 32 pixels.

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
from fedjax_bal.data.readers.image_files import EIGHT_BITS, Kind, read_all
from fedjax_bal.data.readers.untrusted import check_within

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


def read_cinic10(
    data_dir: str | os.PathLike, class_names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reads the images of `train` and of `test`; those of `valid` stay unused.

    Args:
        data_dir: the folder with `train/` and `test/`, or the one with `cinic10/` or `CINIC-10/` that holds them.
        class_names: names of the classes' folders, in the order of the labels.

    Returns:
        Training images `UInt8[D, 32, 32, 3]`, labels `Int32[D]`, and both for the test set. Classes stand one after
        another, and files in the order of their names, so that the same files give the same arrays.

    Raises:
        DataError: folders are missing or empty, a file can't be read, is no PNG or damaged, or its image has another
            size.
    """
    root = find_cinic10(data_dir)
    train, test = (read_split(root / half, class_names) for half in ("train", "test"))
    return *train, *test


def read_split(folder: str | os.PathLike, class_names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Reads a folder that has a folder of PNG files for each class.

    Args:
        folder: the folder.
        class_names: names of the classes' folders, in the order of the labels; others are left alone.

    Returns:
        Images `UInt8[D, 32, 32, 3]`, grey ones with three equal channels, and labels `Int32[D]`.

    Raises:
        DataError: as for `read_cinic10`.

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


def find_cinic10(data_dir: str | os.PathLike) -> Path:
    """The first folder that holds `train` and `test`.

    Args:
        data_dir: as for `read_cinic10`.

    Returns:
        The folder.

    Raises:
        DataError: there is none.
    """
    candidates = [Path(data_dir) / folder for folder in FOLDERS]
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
