"""Reader for CINIC-10: a folder of PNG files for each class, 32 x 32 pixels.

The official archive holds `train/`, `valid/` and `test/`, each with ten folders of 9,000 files. Nothing that a file
claims is trusted: its length and the size of its image are checked before pixels are unpacked, and its checksums too.

References:
    Darlow, Crowley, Antoniou, Storkey: CINIC-10 is not ImageNet or CIFAR-10, 2018.
"""

import contextlib
import io
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from .errors import DataError

FOLDERS = ("cinic10", "CINIC-10", "")
"""Where the three halves may lie below the folder that the user names."""

_SIZE = (32, 32)
_MAX_FILE = 2**16  # an image has 3,072 bytes of pixels; there may be words beside them
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")  # eight bits a value at most
_AGAIN = "the file is damaged or foreign to CINIC-10: unpack CINIC-10.tar.gz again."


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
    root = _root(Path(data_dir))
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
    images = np.empty((sum(map(len, files)), *_SIZE, 3), np.uint8)
    with _decoder() as pillow:
        for row, path in enumerate(path for own in files for path in own):
            images[row] = _image(pillow, path)
    return images, np.repeat(np.arange(len(files), dtype=np.int32), [len(own) for own in files])


def _root(data_dir: Path) -> Path:
    """The first folder that holds `train` and `test`."""
    candidates = [data_dir / folder for folder in FOLDERS]
    for candidate in candidates:
        if (candidate / "train").is_dir() and (candidate / "test").is_dir():
            return candidate
    raise DataError(
        f"cinic10 was not found: looked for train/ and test/ in {', '.join(map(str, candidates))}; unpack "
        "CINIC-10.tar.gz in one of them, or pass the folder that holds train/ and test/ as --data-dir."
    )


def _files(folder: Path) -> list[Path]:
    """The PNG files of a class, by name."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".png") and entry.is_file())
    except OSError as error:
        raise DataError(
            f"{folder}: can't be read ({error.strerror or error}); it must be a folder of CINIC-10's PNG files: "
            "unpack CINIC-10.tar.gz again, or check its rights."
        ) from error
    if not names:
        raise DataError(f"{folder}: holds no PNG files (*.png); unpack CINIC-10.tar.gz again.")
    return [folder / name for name in names]


@contextlib.contextmanager
def _decoder() -> Iterator[ModuleType]:
    """Pillow, with its warning of oversized images as an error: it comes from reading the size alone."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            f"cinic10: its PNG files need Pillow, which can't be imported ({error}): install it."
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield Image


def _image(pillow: ModuleType, path: Path) -> np.ndarray:
    """The pixels of one file, `UInt8[32, 32, 3]`."""
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror or error}); check its rights.") from error
    if len(content) > _MAX_FILE:
        raise DataError(f"{path}: is longer than the {_MAX_FILE} bytes that an image of CINIC-10 can need; {_AGAIN}")
    try:
        _opened(pillow, content).verify()  # checksums, after which it has to be opened again
        return np.asarray(_opened(pillow, content).convert("RGB"))
    except pillow.UnidentifiedImageError as error:
        raise DataError(f"{path}: is no PNG file, or one with a damaged header; {_AGAIN}") from error
    except Exception as error:  # what a decoder raises for damaged content is of many kinds
        raise DataError(f"{path}: {error}; {_AGAIN}") from error


def _opened(pillow: ModuleType, content: bytes):
    """An image whose size and kind are known to be right; its pixels are still packed."""
    image = pillow.open(io.BytesIO(content), formats=["PNG"])
    if image.size != _SIZE:
        expected, found = ("x".join(map(str, size)) for size in (_SIZE, image.size))
        raise ValueError(f"expected an image of {expected} pixels, found {found}")
    if image.mode not in _MODES:
        raise ValueError(f"expected a colour or grey image of eight bits a value, found mode {image.mode}")
    return image
