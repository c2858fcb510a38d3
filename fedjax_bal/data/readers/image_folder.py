"""Reader for one's own images: a folder of PNG or JPEG files for each class, in `train/` and in `test/`."""

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedjax_bal.data.errors import DataError
from fedjax_bal.data.memory import check_memory
from fedjax_bal.data.readers.image_files import EIGHT_BITS, Kind, decoder, opened, read_all, squared
from fedjax_bal.data.readers.reader import Reader
from fedjax_bal.data.readers.untrusted import check_within, read_file
from fedjax_bal.types import Dataset
from fedjax_bal.validate import whole_number

ENDINGS = (".png", ".jpg", ".jpeg")
"""How names of files end, in small or capital letters; others are left alone."""

_MODES = {1: "L", 3: "RGB"}
_KIND = Kind(
    formats=("PNG", "JPEG"),
    modes=(*EIGHT_BITS, "CMYK"),
    max_bytes=2**24,
    max_side=4096,
    size=None,
    again="replace the file, take it out, or, where only sizes differ, give a side that all images are scaled to.",
)


def read_image_folder(path: str | os.PathLike, side: int | None = None, channels: int = 3) -> Dataset:
    """Reads all images below a folder.

    Classes are called by their folders in `train/` and numbered in the order of these names; images stand class after
    class, in the order of the names of their files, so that the same files give the same arrays.

    Args:
        path: the folder with `train/CLASS/` and `test/CLASS/`.
        side: of each image the largest square in its middle is scaled to this many pixels a side; None takes the images
            as they are, which then must all have one size.
        channels: 3 for colours, which grey images get as well; 1 for grey images, which colours become.

    Returns:
        The data set.

    Raises:
        DataError: folders or files are missing, can't be read, lead elsewhere, are damaged, or have other sizes.
        ValueError: `side` or `channels` is out of range.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for half, name in (("train", "cat"), ("train", "dog"), ("test", "dog")):
        ...         Path(folder, half, name).mkdir(parents=True)
        ...         Image.new("RGB", (20, 10), (7, 8, 9)).save(Path(folder, half, name, "1.png"))
        ...     dataset = read_image_folder(folder, side=4)
        >>> dataset.train_images.shape, dataset.class_names, dataset.test_labels.tolist()
        ((2, 4, 4, 3), ('cat', 'dog'), [1])
    """
    if channels not in _MODES:
        raise ValueError(f"channels={channels!r}; expected 3 for colours or 1 for grey images.")
    if side is not None:
        whole_number("side", side)
    root = Path(path)
    names = _subfolders(root / "train")
    unknown = sorted(set(_subfolders(root / "test")) - set(names))
    if unknown:
        raise DataError(f"{root / 'test' / unknown[0]}: is no class of {root / 'train'}; add it there, or remove this.")
    files = {half: [_files(root / half / name) for name in names] for half in ("train", "test")}
    for name, own in zip(names, files["train"], strict=True):
        if not own:
            raise DataError(
                f"{root / 'train' / name}: holds no image files ({', '.join(ENDINGS)}); add some, or remove the folder."
            )
    shape = _shape(files["train"][0][0], side, channels)
    count = sum(len(own) for half in files.values() for own in half)
    check_memory(root, count, shape, "give a smaller side, or take a machine with more")
    train, test = (_half(root / half, own, shape, side) for half, own in files.items())
    return Dataset(*train, *test, tuple(names))


def _subfolders(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted; links stay within it."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(
            f"{folder}: can't be read ({error.strerror or error}); expected a folder of image files for each class "
            "there, in train/ and in test/."
        ) from error
    if not names:
        raise DataError(f"{folder}: holds no folders; expected a folder of image files for each class.")
    for name in names:
        check_within(folder, folder / name)
        if any("\ud800" <= character < "\ue000" for character in name):
            raise DataError(f"{folder}: the folder {name!r} has a name that is no text; give it another.")
    return names


def _files(folder: Path) -> list[Path]:
    """The image files of a class, by name; none where there is no such folder."""
    if not folder.is_dir():
        return []
    try:
        with os.scandir(folder) as entries:
            own = [entry for entry in entries if entry.name.lower().endswith(ENDINGS) and entry.is_file()]
    except OSError as error:  # of the folder, or of a link in it that leads to itself
        raise DataError(f"{error.filename}: can't be read ({error.strerror or error}); {_KIND.again}") from error
    for entry in own:
        if entry.is_symlink():
            check_within(folder.parent, Path(entry.path))
    return [folder / name for name in sorted(entry.name for entry in own)]


def _shape(first: Path, side: int | None, channels: int) -> tuple[int, int, int]:
    """What each image becomes; without a side, what the first one is."""
    if side is not None:
        return side, side, channels
    with decoder("image_folder") as pillow:
        image = opened(pillow, read_file(first, _KIND.max_bytes, _KIND.again), first, _KIND)
    return image.height, image.width, channels


def _half(
    folder: Path, files: list[list[Path]], shape: tuple[int, int, int], side: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Images `UInt8[D, H, W, K]` and labels `Int32[D]`."""
    every = [file for own in files for file in own]
    if not every:
        raise DataError(f"{folder}: holds no image files ({', '.join(ENDINGS)}) in the folders of classes; add some.")
    mode, size = _MODES[shape[2]], (shape[1], shape[0])

    def make(pillow: ModuleType, image: Any) -> Any:
        return image.convert(mode) if side is None else squared(pillow, image.convert(mode), side)

    images = read_all("image_folder", every, _KIND._replace(size=size if side is None else None), shape, make)
    return images, np.repeat(np.arange(len(files), dtype=np.int32), [len(own) for own in files])


READERS = (
    Reader(
        name="image_folder",
        description="Your own image files, a folder for each class: path is the folder with train/ and test/",
        origin="own",
        read=read_image_folder,
    ),
)
"""The user's own image files."""
