"""iNaturalist 2019: JPEG files and the annotations of the competition, in the format of COCO.

The official archives unpack to `train_val2019/`, with a JPEG file of at most 800 pixels a side for each image, and to
`train2019.json` and `val2019.json`, which name the files and their classes. Nothing that a file claims is trusted:
names must lie within the folder, and lengths and sizes are checked before anything is unpacked. JPEG has no checksums,
so that damage within the pixels can go unnoticed.

References:
    Van Horn et al.: The iNaturalist Species Classification and Detection Dataset, 2018; the data are those of the
    competition of 2019, with 265,213 + 3,030 images of 1,010 species.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from fedjax_bal.data.errors import DataError
from fedjax_bal.data.memory import check_images_fit
from fedjax_bal.data.readers.image_files import ImageRules, read_images, square
from fedjax_bal.data.readers.reader import Reader, StoredImage, TfdsSets
from fedjax_bal.data.readers.untrusted import check_within, find_folder, read_file, read_json, shortened
from fedjax_bal.types import Dataset
from fedjax_bal.validate import whole_number

_FOLDERS = ("inaturalist2019", "iNaturalist2019", "inat2019", "")
_CLASSES = tuple(map(str, range(1010)))  # species, named by their numbers
_HALVES = ("train2019.json", "val2019.json")  # tests use the validation images: the official test set has no labels
_MAX_ANNOTATIONS = 2**28  # bytes, several times what the official ones have
_REMEDY = "the file is damaged or foreign to iNaturalist 2019: unpack its archive again."
_RULES = ImageRules(_REMEDY, formats=("JPEG",), modes=("L", "RGB", "CMYK"))


class Annotation(NamedTuple):
    """An image's file, the number of its species, and its owner as the annotations have it."""

    file: Path
    label: int
    holder: Any


def read_inaturalist(data_dir: str | os.PathLike, side: int) -> Dataset:
    """Reads the training images and, as the test set, the validation images, in the order of the annotations.

    The largest centred square of each image is scaled to `side` pixels a side. Clients are the users to whom the
    training images belong (`rights_holder`), in the order of their names; None unless every image has one.
    """
    root = _find_root(Path(data_dir))
    train, test = (_read_annotations(root / half) for half in _HALVES)
    shape = (whole_number("side", side), side, 3)
    remedy = "take a machine with more, or inaturalist2019_32, which has smaller images"
    check_images_fit(root, len(train) + len(test), shape, remedy)
    return Dataset(*_read_pixels(root, train, side), *_read_pixels(root, test, side), _CLASSES, _owners(train))


def _read_annotations(file: Path) -> list[Annotation]:
    """Returns an annotation for each image, in the order of the file's images; images aren't opened."""
    content = read_json(file, _MAX_ANNOTATIONS, _REMEDY)
    images = _images_by_id(file, content)
    classes = _classes_by_id(file, _mappings(file, content, "annotations"), images)
    if not images or len(classes) < len(images):
        names = (image["file_name"] for number, image in images.items() if number not in classes)
        raise DataError(
            f"{file}: expected images with an annotation each, found none for {shortened(next(names, 'no image'))}; "
            f"{_REMEDY}"
        )
    return [
        Annotation(file.parent / image["file_name"], classes[number], image.get("rights_holder"))
        for number, image in images.items()
    ]


def _owners(annotations: Sequence[Annotation]) -> np.ndarray | None:
    """Numbers the owners of images by name, `Int32[D]`; None unless every image has one."""
    names = [annotation.holder for annotation in annotations]
    if not all(isinstance(name, str) and name for name in names):
        return None
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    return np.array([numbers[name] for name in names], np.int32)


def _images_by_id(file: Path, content: Any) -> dict[int, dict[str, Any]]:
    """Returns the descriptions of images by id; each names a file within the folder."""
    images = {}
    for image in _mappings(file, content, "images"):
        number, name = image.get("id"), image.get("file_name")
        if not _is_number(number) or number in images or not isinstance(name, str) or not _is_within(name):
            raise DataError(
                f"{file}: images: found {shortened(image)}, expected an id of its own and the file_name of a JPEG "
                f"file below this folder; {_REMEDY}"
            )
        images[number] = image
    return images


def _classes_by_id(file: Path, annotations: Sequence[Mapping], images: Mapping[int, Any]) -> dict[int, int]:
    """Returns the class of each annotated image."""
    classes = {}
    for annotation in annotations:
        number, own = annotation.get("image_id"), annotation.get("category_id")
        known = _is_number(number) and number in images and number not in classes
        if not known or not _is_number(own) or not 0 <= own < len(_CLASSES):
            raise DataError(
                f"{file}: annotations: found {shortened(annotation)}, expected the image_id of an image without "
                f"another annotation and a category_id in 0..{len(_CLASSES) - 1}; {_REMEDY}"
            )
        classes[number] = own
    return classes


def _mappings(file: Path, content: Any, key: str) -> list[dict[str, Any]]:
    entries = content.get(key) if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DataError(f"{file}: expected a list of mappings {key!r}, as in COCO's annotations; {_REMEDY}")
    return entries


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_within(name: str) -> bool:
    """Tells whether a file name is relative, stays below its folder, and is one that file systems allow."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or not name.isprintable():
        return False
    return len(name.encode()) < 256 and not any(character in name for character in "\\:")


def _read_pixels(root: Path, annotations: Sequence[Annotation], side: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns images `UInt8[D, side, side, 3]` and labels `Int32[D]`."""
    _check_links(root, annotations)
    files, convert = [own.file for own in annotations], lambda image: square(image.convert("RGB"), side)
    images = read_images(files, _RULES, (side, side, 3), convert)
    return images, np.array([own.label for own in annotations], np.int32)


def _check_links(root: Path, annotations: Sequence[Annotation]) -> None:
    """Raises `DataError` for links out of the folder of all images, which may be a link itself."""
    files = [own.file for own in annotations]
    for path in (*{file.parent for file in files}, *(file for file in files if file.is_symlink())):
        inner = path.relative_to(root).parts
        check_within(root / inner[0] if len(inner) > 1 else root, path)


def _find_root(data_dir: Path) -> Path:
    remedy = (
        "unpack train2019.json.tar.gz, val2019.json.tar.gz and train_val2019.tar.gz in one of them, or pass the folder "
        "that holds them"
    )
    return find_folder("inaturalist2019", data_dir, _FOLDERS, _HALVES, remedy)


def _find_set(data_dir: Path) -> list[Path]:
    root = _find_root(data_dir)
    return [root / half for half in _HALVES]


def _stored_images(data_dir: Path) -> dict[str, Iterator[StoredImage]]:
    """Returns all files as they are, for TensorFlow Datasets."""
    root = _find_root(data_dir)
    train, test = (_read_annotations(root / half) for half in _HALVES)
    for annotations in (train, test):
        _check_links(root, annotations)
    return {"train": _read_stored(train, _owners(train)), "test": _read_stored(test, None)}


def _read_stored(annotations: Sequence[Annotation], clients: np.ndarray | None) -> Iterator[StoredImage]:
    for row, own in enumerate(annotations):
        content = read_file(own.file, _RULES.max_bytes, _RULES.remedy)
        yield StoredImage(content, own.label, -1 if clients is None else int(clients[row]))


def _reader(name: str, description: str, side: int) -> Reader:
    return Reader(
        name=name,
        description=description,
        read=partial(read_inaturalist, side=side),
        find=_find_set,
        files=(
            "train2019.json, val2019.json and train_val2019/ (unpacked from the archives of these names), or "
            "inaturalist2019/ with them"
        ),
        home="https://github.com/visipedia/inat_comp/tree/master/2019",
        tfds=TfdsSets("inaturalist2019", "inaturalist2019", published=False, stored=_stored_images),
        image_shape=(side, side, 3),
        class_names=_CLASSES,
        counts=(265_213, 3_030),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        clients=True,
    )


READERS = (
    _reader(
        "inaturalist2019",
        "iNaturalist 2019: 265,213 + 3,030 colour images of 1,010 species, made 224x224, which takes 38 GiB",
        224,
    ),
    _reader("inaturalist2019_32", "iNaturalist 2019, made 32x32: 265,213 + 3,030 colour images of 1,010 species", 32),
)
"""iNaturalist 2019 in two sizes, normalised with the constants of ImageNet."""
