"""Reader of the user's own images: a folder of PNG or JPEG files for each class, in `train/` and in `test/`."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_bal.data.errors import DataError, reading
from fedjax_bal.data.memory import check_images_fit
from fedjax_bal.data.readers.image_files import ImageRules, open_image, read_classes, square
from fedjax_bal.data.readers.reader import Reader
from fedjax_bal.data.readers.untrusted import list_files
from fedjax_bal.files import read_bytes
from fedjax_bal.types import Dataset
from fedjax_bal.validate import whole_number

_ENDINGS = (".png", ".jpg", ".jpeg")
_MODES = {1: "L", 3: "RGB"}
_RULES = ImageRules(
    "replace the file, take it out, or, where only sizes differ, give a side that all images are scaled to.",
    max_bytes=2**27,  # of the largest side, an image has 2**26 bytes with four for each pixel
)


def read_image_folder(path: str | os.PathLike, side: int | None = None, channels: int = 3) -> Dataset:
    """Reads the PNG and JPEG files in the folders of classes; all other files are ignored.

    Classes are named after their folders in `train/` and numbered in the order of these names; images are in the order
    of classes and file names, so that the same files give the same arrays.

    Args:
        path: the folder with `train/CLASS/` and `test/CLASS/`.
        side: scales the largest centred square of each image to this many pixels a side; None takes the images as they
            are, which then must all have one size.
        channels: 3 for colour, 1 for grey; images of the other kind are converted.

    Returns:
        The data set.

    Raises:
        DataError: folders or files are missing, can't be read, lead elsewhere, are damaged, or have other sizes.
        ValueError: `side` or `channels` is out of range.
    """
    if whole_number("channels", channels) not in _MODES:
        raise ValueError(f"channels={channels!r}; expected 3 for colours or 1 for grey images.")
    if side is not None:
        whole_number("side", side)
    root = Path(path)
    names = _subfolders(root / "train")
    unknown = sorted(set(_subfolders(root / "test")) - set(names))
    if unknown:
        raise DataError(f"{root / 'test' / unknown[0]}: is no class of {root / 'train'}; add it there, or remove this.")
    files = {half: [_class_files(root / half / name) for name in names] for half in ("train", "test")}
    for name, own in zip(names, files["train"], strict=True):
        if not own:
            raise DataError(
                f"{root / 'train' / name}: holds no image files ({', '.join(_ENDINGS)}); add some, or remove the "
                "folder."
            )
    shape = (side, side, channels) if side is not None else _shape_of(files["train"][0][0], channels)
    count = sum(len(own) for half in files.values() for own in half)
    check_images_fit(root, count, shape, "give a smaller side, or take a machine with more")
    train, test = (_read_half(root / half, own, shape, side) for half, own in files.items())
    return Dataset(*train, *test, tuple(names))


def _subfolders(folder: Path) -> list[str]:
    """Lists the names of the folders in a folder."""
    expected = "expected a folder of image files for each class there, in train/ and in test/."
    with reading(folder, expected, expected):
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        if not names:
            raise ValueError("holds no folders")
        for name in names:
            name.encode()  # raises for a name that is no text
    return names


def _class_files(folder: Path) -> list[Path]:
    """Lists the image files of a class; none if the folder doesn't exist."""
    with reading(folder):
        return list_files(folder, _ENDINGS) if folder.is_dir() else []


def _shape_of(file: Path, channels: int) -> tuple[int, int, int]:
    with reading(file, _RULES.remedy):
        image = open_image(read_bytes(file, _RULES.max_bytes), _RULES)
    return image.height, image.width, channels


def _read_half(
    folder: Path, files: list[list[Path]], shape: tuple[int, int, int], side: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images `UInt8[D, H, W, K]` and labels `Int32[D]`."""
    if not any(files):
        raise DataError(f"{folder}: holds no image files ({', '.join(_ENDINGS)}) in the folders of classes; add some.")
    height, width, channels = shape

    def convert(image: Any) -> Any:
        image = image.convert(_MODES[channels])
        return image if side is None else square(image, side)

    rules = _RULES._replace(size=(width, height) if side is None else None)
    return read_classes(files, rules, shape, convert)


_DESCRIPTION = "Your own image files, a folder for each class: path is the folder with train/ and test/"
READERS = (Reader(name="image_folder", description=_DESCRIPTION, origin="own", read=read_image_folder),)
"""The user's own image files."""
