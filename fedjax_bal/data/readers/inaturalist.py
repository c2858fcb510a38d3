"""iNaturalist 2019: JPEG files and the annotations of the competition, in the way of COCO.

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

from fedjax_bal.data.errors import DataError, MissingError
from fedjax_bal.data.memory import check_memory
from fedjax_bal.data.readers.image_files import Kind, read_all, squared
from fedjax_bal.data.readers.reader import Reader, StoredImage, TfdsSets
from fedjax_bal.data.readers.untrusted import check_within, read_file, read_json, shortened
from fedjax_bal.types import Dataset
from fedjax_bal.validate import whole_number

FOLDERS = ("inaturalist2019", "iNaturalist2019", "inat2019", "")
"""Where the files may lie below the folder that the user names."""

CLASSES = tuple(map(str, range(1010)))
"""Species, which are called by their numbers."""

HALVES = ("train2019.json", "val2019.json")
"""Files of annotations of the images for training and, as the test set, those for validation: the competition's own
test images have no labels."""

_MAX_ANNOTATIONS = 2**28  # bytes, several times what the official ones have
_AGAIN = "the file is damaged or foreign to iNaturalist 2019: unpack its archive again."

_KIND = Kind(formats=("JPEG",), modes=("L", "RGB", "CMYK"), max_bytes=2**24, max_side=4096, size=None, again=_AGAIN)


class Entry(NamedTuple):
    """What the annotations say of one image.

    Attributes:
        file: the JPEG file.
        label: number of its species.
        holder: whose image it is; None where the annotations don't say.
    """

    file: Path
    label: int
    holder: str | None


def read_inaturalist(data_dir: str | os.PathLike, side: int) -> Dataset:
    """Reads the images for training and, as the test set, those for validation.

    Args:
        data_dir: the folder with `train2019.json`, `val2019.json` and `train_val2019/`, or one with that folder in it,
            see `FOLDERS`.
        side: what images are made: squares of this many pixels a side, see `read_half`.

    Returns:
        The data set, in the order of the annotations. Its clients are the users to whom the training images belong
        (`rights_holder`), numbered in the order of their names; None where the annotations don't name one for every
        image.

    Raises:
        DataError: files are missing, can't be read, are damaged, or don't fit each other; or the images would need
            more memory than there is.
        ValueError: a side below 1.
    """
    root = _find_root(Path(data_dir))
    train, test = (annotated(root / half) for half in HALVES)
    _check_memory(root, len(train) + len(test), side)
    clients = owners([entry.holder for entry in train])
    return Dataset(*_images(root, train, side), *_images(root, test, side), CLASSES, clients)


def read_half(annotations: str | os.PathLike, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads the images that one file of annotations names.

    Of each image the largest square in its middle is scaled to `side` pixels, by Pillow's bilinear filter, which takes
    the mean of what it leaves out.

    Args:
        annotations: the JSON file; the names in it count from its folder.
        side: of the images.

    Returns:
        Images `UInt8[D, side, side, 3]`, grey ones with three equal channels, and labels `Int32[D]`.

    Raises:
        DataError, ValueError: as for `read_inaturalist`.

    Example:
        >>> import json, tempfile
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
    entries = annotated(file)
    _check_memory(file, len(entries), side)
    return _images(file.parent, entries, side)


def annotated(file: Path) -> list[Entry]:
    """What a file of annotations says, without looking at the images.

    Args:
        file: the JSON file.

    Returns:
        An entry for each image, in the order of the file.

    Raises:
        DataError: the file can't be read, is no file of annotations, or contradicts itself.
    """
    content = read_json(file, _MAX_ANNOTATIONS, _AGAIN)
    images = _named(file, content)
    classes = _classes(file, _entries(file, content, "annotations"), images)
    if not images or len(classes) < len(images):
        names = (image["file_name"] for number, image in images.items() if number not in classes)
        raise DataError(
            f"{file}: expected images with an annotation each, found none for {shortened(next(names, 'no image'))}; "
            f"{_AGAIN}"
        )
    return [
        Entry(file.parent / image["file_name"], classes[number], image.get("rights_holder"))
        for number, image in images.items()
    ]


def owners(names: Sequence[Any]) -> np.ndarray | None:
    """Whose each image is, as numbers.

    Args:
        names: D names.

    Returns:
        `Int32[D]`, numbers in the order of the names; None unless every one of them is a text that isn't empty.

    Example:
        >>> owners(["Zoe", "Abe", "Zoe"])
        array([1, 0, 1], dtype=int32)
        >>> owners(["Zoe", ""]) is None
        True
    """
    if not all(isinstance(name, str) and name for name in names):
        return None
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    return np.array([numbers[name] for name in names], np.int32)


def _check_memory(place: Path, count: int, side: int) -> None:
    shape = (whole_number("side", side), side, 3)
    check_memory(place, count, shape, "take a machine with more, or inaturalist2019_32, which has smaller images")


def _named(file: Path, content: Any) -> dict[int, dict[str, Any]]:
    """The images by their ids; each has a file within the folder."""
    images = {}
    for image in _entries(file, content, "images"):
        number, name = image.get("id"), image.get("file_name")
        if not _is_number(number) or number in images or not isinstance(name, str) or not _is_within(name):
            raise DataError(
                f"{file}: images: found {shortened(image)}, expected an id of its own and the file_name of a JPEG "
                f"file below this folder; {_AGAIN}"
            )
        images[number] = image
    return images


def _classes(file: Path, annotations: Sequence[Mapping[str, Any]], images: Mapping[int, Any]) -> dict[int, int]:
    """The class of each annotated image."""
    classes = {}
    for annotation in annotations:
        number, own = annotation.get("image_id"), annotation.get("category_id")
        known = _is_number(number) and number in images and number not in classes
        if not known or not _is_number(own) or not 0 <= own < len(CLASSES):
            raise DataError(
                f"{file}: annotations: found {shortened(annotation)}, expected the image_id of an image without "
                f"another annotation and a category_id in 0..{len(CLASSES) - 1}; {_AGAIN}"
            )
        classes[number] = own
    return classes


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


def _images(root: Path, entries: Sequence[Entry], side: int) -> tuple[np.ndarray, np.ndarray]:
    """The pixels of all files, and their classes."""
    _check_links(root, entries)
    make = lambda pillow, image: squared(pillow, image.convert("RGB"), side)
    images = read_all("inaturalist2019", [entry.file for entry in entries], _KIND, (side, side, 3), make)
    return images, np.array([entry.label for entry in entries], np.int32)


def _check_links(root: Path, entries: Sequence[Entry]) -> None:
    """Refuses links that lead out of the folder of all images, which may lie elsewhere itself."""
    files = [entry.file for entry in entries]
    for path in (*{file.parent for file in files}, *(file for file in files if file.is_symlink())):
        inner = path.relative_to(root).parts
        check_within(root / inner[0] if len(inner) > 1 else root, path)


def _find_root(data_dir: Path) -> Path:
    """The first folder that holds both files of annotations."""
    candidates = [data_dir / folder for folder in FOLDERS]
    for candidate in candidates:
        if all((candidate / half).is_file() for half in HALVES):
            return candidate
    raise MissingError(
        f"inaturalist2019 was not found: looked for {' and '.join(HALVES)} in {', '.join(map(str, candidates))}; "
        "unpack train2019.json.tar.gz, val2019.json.tar.gz and train_val2019.tar.gz in one of them, or pass the folder "
        "that holds them as --data-dir."
    )


def _find_set(data_dir: Path) -> list[Path]:
    root = _find_root(data_dir)
    return [root / half for half in HALVES]


def _stored(data_dir: Path) -> dict[str, Iterator[StoredImage]]:
    """All files as they are, for TensorFlow Datasets."""
    root = _find_root(data_dir)
    train, test = (annotated(root / half) for half in HALVES)
    for entries in (train, test):
        _check_links(root, entries)
    return {"train": _files(train, owners([entry.holder for entry in train])), "test": _files(test, None)}


def _files(entries: Sequence[Entry], clients: np.ndarray | None) -> Iterator[StoredImage]:
    for row, entry in enumerate(entries):
        content = read_file(entry.file, _KIND.max_bytes, _KIND.again)
        yield StoredImage(content, entry.label, -1 if clients is None else int(clients[row]))


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
        tfds=TfdsSets("inaturalist2019", "inaturalist2019", published=False, stored=_stored),
        image_shape=(side, side, 3),
        class_names=CLASSES,
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
