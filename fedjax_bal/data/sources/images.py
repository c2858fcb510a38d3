"""Image files: the user's own, and CINIC-10, in a folder of PNG or JPEG files for each class.

The checksums of PNG files are verified. The official archive of CINIC-10 holds `train/`, `valid/` and `test/`, each
with ten folders of 9,000 files.

References:
    Darlow, Crowley, Antoniou, Storkey: CINIC-10 is not ImageNet or CIFAR-10, 2018.
"""

import concurrent.futures
import io
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.annotations import Count, ProperShare, Seed, checked
from fedjax_bal.data.arrays import TEST_SHARE, as_read, check_distinct
from fedjax_bal.data.held_out import split_test_rows
from fedjax_bal.data.memory import check_images_fit
from fedjax_bal.data.pixels import plain_picture
from fedjax_bal.data.reading import DataError, find_folder, list_files, reading
from fedjax_bal.data.sources.cifar import CIFAR10
from fedjax_bal.data.sources.reader import Reader
from fedjax_bal.files import read_bytes
from fedjax_bal.types import Dataset

_BLOCK = 64  # images that a thread reads at a time


class ImageRules(NamedTuple):
    """The image files that a data set accepts.

    Attributes:
        remedy: the end of the message about a rejected file.
        formats: Pillow's names of the formats.
        size: width and height of every image, upright; None if they differ, and are scaled.
    """

    remedy: str
    formats: tuple[str, ...] = ("PNG", "JPEG")
    size: tuple[int, int] | None = None


def decode(content: bytes, rules: ImageRules, shape: tuple[int, ...]) -> np.ndarray:
    """Decodes an image file's content; returns its pixels, `UInt8[H, W, K]` of the given shape.

    An image of another size is an error, or is scaled, see `square`, if the rules have no size.
    """
    height, _, channels = shape
    image = open_image(content, rules, channels)
    if rules.size is None:
        image = square(image, height)
    return np.asarray(image).reshape(shape)


def open_image(content: bytes, rules: ImageRules, channels: int) -> Any:
    """Decodes a file to a grey image or one in colours, see `plain_picture`, and checks its checksums and its size."""
    from PIL import Image, UnidentifiedImageError

    def opened() -> Any:
        return Image.open(io.BytesIO(content), formats=list(rules.formats))

    try:
        image = opened()
    except UnidentifiedImageError:
        raise ValueError(f"is no {' or '.join(rules.formats)} file, or one with a damaged header") from None
    if image.format == "PNG":
        image.verify()  # verifies checksums, and leaves the image closed
        image = opened()
    image = plain_picture(image, channels)
    if rules.size is not None and image.size != rules.size:
        wanted, found = ("x".join(map(str, size)) for size in (rules.size, image.size))
        raise ValueError(f"expected an image of {wanted} pixels, found {found}")
    return image


def read_images(files: Sequence[Path], rules: ImageRules, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns the pixels of many files, `UInt8[D, H, W, K]`, decoded by as many threads as there are cores."""
    images = np.empty((len(files), *shape), np.uint8)

    def fill(start: int) -> None:
        for row, file in enumerate(files[start : start + _BLOCK], start):
            with reading(file, rules.remedy):
                images[row] = decode(read_bytes(file), rules, shape)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            for _ in pool.map(fill, range(0, len(files), _BLOCK)):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)  # after one damaged file, the others are not read
            raise
    return images


def read_classes(
    files: Sequence[Sequence[Path]], rules: ImageRules, shape: tuple[int, int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images of each class's files, `UInt8[D, H, W, K]`, and labels `Int32[D]`, class after class."""
    images = read_images([file for of_class in files for file in of_class], rules, shape)
    return images, np.repeat(np.arange(len(files), dtype=np.int32), list(map(len, files)))


def square(image: Any, side: int) -> Any:
    """Scales the largest centred square of a Pillow image; the bilinear filter averages merged pixels."""
    from PIL.Image import Resampling

    shorter = min(image.size)
    left, top = ((length - shorter) / 2 for length in image.size)
    return image.resize((side, side), Resampling.BILINEAR, box=(left, top, left + shorter, top + shorter))


_ENDINGS = (".png", ".jpg", ".jpeg", ".jpe", ".jif", ".jfif")
_OTHER_ENDINGS = (".avif", ".bmp", ".dcm", ".gif", ".heic", ".jp2", ".pgm", ".ppm", ".tga", ".tif", ".tiff", ".webp")
_OTHER_HALVES = ("val", "valid", "validation", "test", "testing")
_RULES = ImageRules(
    "replace the file, take it out, or, where only sizes differ, give a side that all images are scaled to."
)


@checked
def read_image_folder(
    path: str | os.PathLike,
    side: Count | None = None,
    channels: Count = 3,
    test: ProperShare | None = None,
    test_seed: Seed = 0,
) -> Dataset:
    """Reads the PNG and JPEG files in the folders of classes; files that aren't images are ignored.

    Classes are named after their folders and numbered in the order of these names, by value if all are integers; images
    are in the order of classes and file names, so that the same files give the same arrays.

    Args:
        path: the folder with `train/CLASS/` and `test/CLASS/`; or with `train/CLASS/` or `CLASS/` alone, whose images
            are split into training and test images.
        side: height and width in pixels to which the largest centred square of each image is scaled; None leaves the
            images unchanged, which must then all have the same size.
        channels: 3 for colour, 1 for grey; images of the other kind are converted, see `plain_picture`. Images are
            turned as their EXIF orientation says.
        test: in a folder without `test/`, the share of each class that becomes the test set, by default 0.2.
        test_seed: the seed of that split.

    Returns:
        The data set.

    Raises:
        DataError: folders or files are missing, can't be read, lead elsewhere, are damaged, or have other sizes;
            images of other formats, in folders below those of classes, or in `val/` without `test/`; names of classes
            that look the same.
        ValueError: an option is out of range.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels: received {channels}, must be 3 for colours or 1 for grey images")
    root = Path(path)
    has_test = (root / "test").is_dir()
    if has_test and test is not None:
        raise DataError(f"{root / 'test'}: is the test set; leave out test={test:g}, or remove this folder.")
    training = root / "train" if has_test or (root / "train").is_dir() else root
    names = _subfolders(training)
    with reading(training, "rename a folder."):
        check_distinct("classes", names)
        (order,) = as_read("classes", [np.array(names)])
    names = [names[place] for place in np.argsort(order, kind="stable")]
    if not has_test and training != root:
        others = [name for name in _subfolders(root) if name.lower() in _OTHER_HALVES]
        if others:
            raise DataError(
                f"{root}: has train/ and {others[0]}/, but no test/: rename {others[0]} to test, or, to hold out a "
                f"share of the training images, give path={str(training)!r}."
            )
    files = _list_classes(training, names)
    empty = [name for name, listed in zip(names, files, strict=True) if not listed]
    if empty:
        raise DataError(
            f"{training / empty[0]}: holds no image files ({', '.join(_ENDINGS)}); add some, or remove the folder."
        )
    if has_test:
        unknown = sorted(set(_subfolders(root / "test")) - set(names))
        if unknown:
            raise DataError(f"{root / 'test' / unknown[0]}: is not a class of {training}; add it there, or remove it.")
        test_files = _list_classes(root / "test", names)
        if not any(test_files):
            raise DataError(
                f"{root / 'test'}: holds no image files ({', '.join(_ENDINGS)}); add some, or remove the folder."
            )
    else:
        test = test or TEST_SHARE
        with reading(training, "add images, or give a folder test/."):
            labels = np.repeat(np.arange(len(files)), list(map(len, files)))
            _, testing = split_test_rows(labels, test, test_seed)
        every_file = list(itertools.chain(*files))
        held_out = {every_file[row] for row in testing}
        test_files = [[file for file in listed if file in held_out] for listed in files]
        files = [[file for file in listed if file not in held_out] for listed in files]

    rules = _RULES
    if side is not None:
        shape = (side, side, channels)
    else:
        first = files[0][0]
        with reading(first, _RULES.remedy):
            image = open_image(read_bytes(first), _RULES, channels)
        rules = _RULES._replace(size=image.size)
        shape = (image.height, image.width, channels)
    count = sum(map(len, [*files, *test_files]))
    check_images_fit(root, count, shape, "give a smaller side, or use a machine with more")

    train, tested = (read_classes(listed, rules, shape) for listed in (files, test_files))
    return Dataset(*train, *tested, tuple(names), test_share=test)


def _list_classes(folder: Path, names: Sequence[str]) -> list[list[Path]]:
    """Lists the image files of each class; none for a class without a folder."""
    with reading(folder):
        for name in names:
            for place, below, files in os.walk(folder / name):
                below[:] = [entry for entry in below if not entry.startswith(".")]
                if Path(place) != folder / name and any(file.lower().endswith(_ENDINGS) for file in files):
                    raise DataError(
                        f"{place}: holds images below the folder of class {name}, where none are read: move them into "
                        f"{folder / name}, or elsewhere."
                    )
                others = sorted(file for file in files if file.lower().endswith(_OTHER_ENDINGS))
                if others:
                    raise DataError(
                        f"{Path(place, others[0])}: PNG and JPEG files are read, and {len(others)} of another format "
                        "would be left out: convert them, or move them elsewhere."
                    )
        return [list_files(folder / name, _ENDINGS) if (folder / name).is_dir() else [] for name in names]


def _subfolders(folder: Path) -> list[str]:
    """Lists the names of the folders in a folder."""
    expected = "expected a folder of image files for each class there, or in train/ and test/."
    with reading(folder, expected, expected):
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        if not names:
            raise ValueError("holds no folders")
        for name in names:
            name.encode()  # raises for a name that isn't valid text
    return names


_CINIC_FOLDERS = ("cinic10", "CINIC-10", "")
_CINIC_HALVES = ("train/", "test/")
_CINIC_SIZE = (32, 32)
_CINIC_RULES = ImageRules(
    remedy="the file is damaged or foreign to CINIC-10: unpack CINIC-10.tar.gz again.",
    formats=("PNG",),
    size=_CINIC_SIZE,
)


def read_cinic(folder: str | os.PathLike, class_names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Reads the PNG files of each class's folder, sorted: images `UInt8[D, 32, 32, 3]` and labels `Int32[D]`."""
    files = []
    for of_class in (Path(folder, name) for name in class_names):
        with reading(of_class, "unpack CINIC-10.tar.gz again."):
            files.append(list_files(of_class, (".png",)))
            if not files[-1]:
                raise ValueError("holds no PNG files (*.png)")
    return read_classes(files, _CINIC_RULES, (*_CINIC_SIZE, 3))


def _read_cinic(data_dir: Path) -> Dataset:
    root = _cinic_root(data_dir)
    train, test = (read_cinic(root / half, CIFAR10) for half in _CINIC_HALVES)
    return Dataset(*train, *test, CIFAR10)


def _find_cinic(data_dir: Path) -> list[Path]:
    """Lists the folders of both halves and of their classes; their times change when files are added or removed."""
    root = _cinic_root(data_dir)
    return [path for half in _CINIC_HALVES for path in (root / half, *(root / half / name for name in CIFAR10))]


def _cinic_root(data_dir: Path) -> Path:
    remedy = "unpack CINIC-10.tar.gz in one of them, or pass the folder that holds train/ and test/ as --data-dir."
    return find_folder("cinic10", data_dir, _CINIC_FOLDERS, _CINIC_HALVES, remedy)


READERS = (
    Reader(
        name="cinic10",
        description="CINIC-10: 90,000 + 90,000 colour images 32x32 from CIFAR-10 and ImageNet, 10 classes",
        read=_read_cinic,
        find=_find_cinic,
        files="train/ and test/ (unpacked from CINIC-10.tar.gz), or cinic10/ or CINIC-10/ with them",
        home="https://datashare.ed.ac.uk/handle/10283/3192",
        image_shape=(32, 32, 3),
        class_names=CIFAR10,
        counts=(90_000, 90_000),
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
    ),
    Reader(
        name="image_folder",
        description="Your own PNG and JPEG files, a folder for each class: path has these folders, or train/ and test/",
        origin="own",
        read=read_image_folder,
    ),
)
"""CINIC-10, normalised with its published constants, without its 90,000 validation images; and the user's own."""
