"""Reader for iNaturalist 2019: JPEG files and the annotations of the competition, in the way of COCO.

The official archives unpack to `train_val2019/`, with a JPEG file of at most 800 pixels a side for each image, and to
`train2019.json` and `val2019.json`, which name the files and their classes. Nothing that a file claims is trusted:
names must lie within the folder, and lengths and sizes are checked before anything is unpacked. JPEG has no checksums,
so that damage within the pixels can go unnoticed.

References:
    Van Horn et al.: The iNaturalist Species Classification and Detection Dataset, 2018; the data are those of the
    competition of 2019, with 265,213 + 3,030 images of 1,010 species.
"""

import concurrent.futures
import contextlib
import io
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, TypeGuard

import numpy as np

from ._common import available_bytes, checked_count
from .errors import DataError

FOLDERS = ("inaturalist2019", "iNaturalist2019", "inat2019", "")
"""Where the files may lie below the folder that the user names."""

NUM_CLASSES = 1010
"""Species; their numbers are 0 to 1,009."""

_HALVES = ("train2019.json", "val2019.json")
_MAX_ANNOTATIONS, _MAX_IMAGE = 2**28, 2**24  # bytes of a file, several times what the official ones have
_MAX_SIDE = 4096
_MODES = ("L", "RGB", "CMYK")
_BLOCK = 64  # images that a thread does at a time
_AGAIN = "the file is damaged or foreign to iNaturalist 2019: unpack its archive again."


def read_inaturalist(
    data_dir: str | os.PathLike, side: int, num_classes: int = NUM_CLASSES
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reads the images for training and, as the test set, those for validation; the competition's own has no labels.

    Args:
        data_dir: the folder with `train2019.json`, `val2019.json` and `train_val2019/`, or one with that folder in it,
            see `FOLDERS`.
        side: what images are made: squares of this many pixels a side, see `read_half`.
        num_classes: C; classes have the numbers 0 to C - 1.

    Returns:
        Training images `UInt8[D, side, side, 3]`, labels `Int32[D]`, and both for the test set, in the order of the
        annotations.

    Raises:
        DataError: files are missing, can't be read, are damaged, or don't fit each other; or the images would need
            more memory than there is.
        ValueError: a side or number of classes below 1.
    """
    root = _root(Path(data_dir))
    halves = [(root / half, _annotated(root / half, checked_count("num_classes", num_classes))) for half in _HALVES]
    _check_memory(root, sum(len(own) for _, own in halves), checked_count("side", side))
    train, test = (_images(file, own, side) for file, own in halves)
    return *train, *test


def read_half(
    annotations: str | os.PathLike, side: int, num_classes: int = NUM_CLASSES
) -> tuple[np.ndarray, np.ndarray]:
    """Reads the images that one file of annotations names.

    Of each image the largest square in its middle is scaled to `side` pixels, by Pillow's bilinear filter, which takes
    the mean of what it leaves out.

    Args:
        annotations: the JSON file; the names in it count from its folder.
        side: of the images.
        num_classes: C.

    Returns:
        Images `UInt8[D, side, side, 3]`, grey ones with three equal channels, and labels `Int32[D]`.

    Raises:
        DataError, ValueError: as for `read_inaturalist`.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (80, 60), (7, 7, 7)).save(Path(folder, "a.jpg"))
        ...     image = {"id": 3, "file_name": "a.jpg"}
        ...     annotation = {"id": 3, "image_id": 3, "category_id": 1009}
        ...     content = json.dumps({"images": [image], "annotations": [annotation]})
        ...     _ = Path(folder, "val2019.json").write_text(content)
        ...     images, labels = read_half(Path(folder, "val2019.json"), 32)
        >>> images.shape, images[0, 0, 0].tolist(), labels.tolist()
        ((1, 32, 32, 3), [7, 7, 7], [1009])
    """
    file = Path(annotations)
    named = _annotated(file, checked_count("num_classes", num_classes))
    _check_memory(file, len(named), checked_count("side", side))
    return _images(file, named, side)


def _root(data_dir: Path) -> Path:
    """The first folder that holds both files of annotations."""
    candidates = [data_dir / folder for folder in FOLDERS]
    for candidate in candidates:
        if all((candidate / half).is_file() for half in _HALVES):
            return candidate
    raise DataError(
        f"inaturalist2019 was not found: looked for {' and '.join(_HALVES)} in {', '.join(map(str, candidates))}; "
        "unpack train2019.json.tar.gz, val2019.json.tar.gz and train_val2019.tar.gz in one of them, or pass the folder "
        "that holds them as --data-dir."
    )


def _check_memory(place: Path, count: int, side: int) -> None:
    needed, there = count * side * side * 3, available_bytes()
    if there is not None and needed > there:
        raise DataError(
            f"{place}: {count} images of {side}x{side} pixels need {needed / 2**30:.1f} GiB, but only "
            f"{there / 2**30:.1f} GiB of memory are available; take a machine with more, or inaturalist2019_32, which "
            "has smaller images."
        )


def _annotated(file: Path, num_classes: int) -> list[tuple[str, int]]:
    """Names of files and their classes, in the order of the images."""
    content = _parsed(file)
    names = {}
    for image in _entries(file, content, "images"):
        number, name = image.get("id"), image.get("file_name")
        if not _is_number(number) or number in names or not isinstance(name, str) or not _is_within(name):
            raise DataError(
                f"{file}: images: found {_shortened(image)}, expected an id of its own and the file_name of a JPEG "
                f"file below this folder; {_AGAIN}"
            )
        names[number] = name
    classes = _classes(file, _entries(file, content, "annotations"), names, num_classes)
    if not names or len(classes) < len(names):
        lacking = _shortened(next((names[number] for number in names if number not in classes), "no image"))
        raise DataError(f"{file}: expected images with an annotation each, found none for {lacking}; {_AGAIN}")
    return [(name, classes[number]) for number, name in names.items()]


def _classes(
    file: Path, annotations: Sequence[Mapping[str, Any]], names: Mapping[int, str], num_classes: int
) -> dict[int, int]:
    """The class of each annotated image."""
    classes = {}
    for annotation in annotations:
        number, own = annotation.get("image_id"), annotation.get("category_id")
        known = _is_number(number) and number in names and number not in classes
        if not known or not _is_number(own) or not 0 <= own < num_classes:
            raise DataError(
                f"{file}: annotations: found {_shortened(annotation)}, expected the image_id of an image without "
                f"another annotation and a category_id in 0..{num_classes - 1}; {_AGAIN}"
            )
        classes[number] = own
    return classes


def _parsed(file: Path) -> Any:
    try:
        return json.loads(_content(file, _MAX_ANNOTATIONS))
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file}: is no JSON file ({_shortened(str(error))}); {_AGAIN}") from error


def _entries(file: Path, content: Any, key: str) -> list[dict[str, Any]]:
    """One of the lists of a file of annotations."""
    entries = content.get(key) if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DataError(f"{file}: expected a list of mappings {key!r}, as in COCO's annotations; {_AGAIN}")
    return entries


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_within(name: str) -> bool:
    """Whether the name of a file can't lead out of the folder that it counts from."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        return False
    return not any(character in name for character in "\0\\:")


def _shortened(value: Any, limit: int = 100) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= limit else f"{text[:limit]} ..."


def _content(file: Path, limit: int) -> bytes:
    try:
        with open(file, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size  # reading sets aside as much as it is told to
            content = stream.read(min(size, limit) + 1)
    except OSError as error:
        raise DataError(
            f"{file}: can't be read ({error.strerror or error}); unpack iNaturalist's archives again, or check its "
            "rights."
        ) from error
    if len(content) > limit:
        raise DataError(f"{file}: is longer than the {limit} bytes that it can need; {_AGAIN}")
    return content


def _images(file: Path, named: Sequence[tuple[str, int]], side: int) -> tuple[np.ndarray, np.ndarray]:
    """The pixels of all files, each written where it stays, and their classes."""
    images = np.empty((len(named), side, side, 3), np.uint8)
    blocks = range(0, len(named), _BLOCK)
    with _decoder() as pillow, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:

        def fill(start: int) -> None:
            for row, (name, _) in enumerate(named[start : start + _BLOCK], start):
                images[row] = _image(pillow, file.parent / name, side)

        try:
            for _ in pool.map(fill, blocks):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return images, np.array([own for _, own in named], np.int32)


@contextlib.contextmanager
def _decoder() -> Iterator[ModuleType]:
    """Pillow, with its warning of oversized images as an error: it comes from reading the size alone."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            f"inaturalist2019: its JPEG files need Pillow, which can't be imported ({error}): install it."
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield Image


def _image(pillow: ModuleType, path: Path, side: int) -> np.ndarray:
    """The square in the middle of one file, `UInt8[side, side, 3]`."""
    content = _content(path, _MAX_IMAGE)
    try:
        image = pillow.open(io.BytesIO(content), formats=["JPEG"])
        if max(image.size) > _MAX_SIDE or image.mode not in _MODES:
            width, height = image.size
            raise ValueError(
                f"expected a colour or grey image of at most {_MAX_SIDE} pixels a side, found {width}x{height} pixels "
                f"of mode {image.mode}"
            )
        return np.asarray(_squared(pillow, image.convert("RGB"), side))
    except pillow.UnidentifiedImageError as error:
        raise DataError(f"{path}: is no JPEG file, or one with a damaged header; {_AGAIN}") from error
    except Exception as error:  # what a decoder raises for damaged content is of many kinds
        raise DataError(f"{path}: {error}; {_AGAIN}") from error


def _squared(pillow: ModuleType, image: Any, side: int) -> Any:
    shorter = min(image.size)
    left, top = ((length - shorter) / 2 for length in image.size)
    box = (left, top, left + shorter, top + shorter)
    return image.resize((side, side), pillow.Resampling.BILINEAR, box=box)
