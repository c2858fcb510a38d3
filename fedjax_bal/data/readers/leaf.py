"""FEMNIST as LEAF writes it: JSON files of handwritten characters, by writer.

A file has `users`, the names of writers; `num_samples`, the number of images of each; and `user_data`, for each of them
`x`, rows of 784 numbers from 0 to 1, and `y`, labels from 0 to 61: digits, capitals and small letters. Characters are
black on white, unlike those of MNIST and EMNIST.

References:
    Caldas et al.: LEAF: A Benchmark for Federated Settings, 2018.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_bal.data.errors import DataError, MissingError
from fedjax_bal.data.memory import check_images_fit
from fedjax_bal.data.readers.idx import CHARACTERS
from fedjax_bal.data.readers.reader import Reader, TfdsSets
from fedjax_bal.data.readers.untrusted import check_within, read_json, shortened
from fedjax_bal.types import Dataset

_FOLDERS = ("femnist", "femnist/data", "data", "")
_SIDE = 28
_SHAPE = (_SIDE, _SIDE, 1)
_MAX_FILE = 2**31
_TEST_EVERY = 10  # one image in so many is for testing
_SEED = 0
_REMEDY = "the file is damaged or none of LEAF's: write it again with LEAF's preprocess.sh."


def read_writers(files: Sequence[Path]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Reads images `UInt8[D, 28, 28, 1]` and labels `Int32[D]` of each writer, in the order of the files."""
    writers = {}
    for file in files:
        for name, own in _check_writers(file, read_json(file, _MAX_FILE, _REMEDY)):
            place = f"{file}: writer {shortened(name)}"
            if name in writers:
                raise DataError(f"{place} comes twice; {_REMEDY}")
            writers[name] = _samples(place, own)
    return writers


def _read_set(data_dir: Path) -> Dataset:
    """Reads all images; their writers are numbered in the order of the files, without those who have no images.

    Unless LEAF has divided the images, a random tenth of each writer's is for testing, the same one each time: LEAF
    writes them class after class.
    """
    train_files, test_files = _find_files(data_dir)
    train = list(read_writers(train_files).values())
    if test_files:
        test = list(read_writers(test_files).values())
    else:
        rng = np.random.default_rng(_SEED)
        held = [rng.permutation(len(labels)) < len(labels) // _TEST_EVERY for _, labels in train]
        test = [(images[out], labels[out]) for (images, labels), out in zip(train, held, strict=True)]
        train = [(images[~out], labels[~out]) for (images, labels), out in zip(train, held, strict=True)]
    sizes = np.array([len(labels) for _, labels in train], np.int64)
    writers = np.repeat(np.cumsum(sizes > 0) - 1, sizes).astype(np.int32)
    if not sizes.sum() or not any(len(labels) for _, labels in test):
        raise DataError(f"{train_files[0].parent}: femnist has no images for training or none for testing; {_REMEDY}")
    return Dataset(*_joined(train), *_joined(test), CHARACTERS, writers)


def _find_set(data_dir: Path) -> list[Path]:
    return [path for half in _find_files(data_dir) for path in half]


def _find_files(data_dir: Path) -> tuple[list[Path], list[Path]]:
    """Finds the files for training and testing; the second list is empty if LEAF has not divided the images."""
    folders = [data_dir / folder for folder in _FOLDERS]
    for folder in folders:
        train, test = _json_files(folder / "train", "*.json"), _json_files(folder / "test", "*.json")
        if train and test:
            return train, test
        whole = _json_files(folder / "all_data", "all_data_*.json") or _json_files(folder, "all_data_*.json")
        if whole:
            return whole, []
    raise MissingError(
        f"femnist was not found: looked for train/*.json with test/*.json and for all_data/all_data_*.json in "
        f"{', '.join(map(str, folders))}; write them with LEAF's data/femnist/preprocess.sh, or pass the folder that "
        "holds them as --data-dir."
    )


def _json_files(folder: Path, pattern: str) -> list[Path]:
    """Lists files of a folder by name; links may not leave it."""
    found = sorted(path for path in folder.glob(pattern) if path.is_file())
    for path in found:
        check_within(folder, path)
    return found


def _check_writers(file: Path, content: Any) -> list[tuple[str, Any]]:
    """Returns each writer's name and entry, after checking that the parts of a file agree."""
    keys = ("users", "num_samples", "user_data")
    users, counts, data = map(content.get, keys) if isinstance(content, dict) else (None, None, None)
    if not isinstance(users, list) or not isinstance(data, dict) or not all(isinstance(name, str) for name in users):
        raise DataError(f"{file}: expected a mapping with {', '.join(keys)}, as LEAF writes it; {_REMEDY}")
    if set(users) != set(data) or len(users) != len(data):
        raise DataError(f"{file}: users lists {len(users)} writers, but user_data has {len(data)} or others; {_REMEDY}")
    if isinstance(counts, list) and counts != [_length(data[name]) for name in users]:
        raise DataError(f"{file}: num_samples says other numbers than user_data has; {_REMEDY}")
    return [(name, data[name]) for name in users]


def _length(own: Any) -> int | None:
    labels = own.get("y") if isinstance(own, Mapping) else None
    return len(labels) if isinstance(labels, list) else None


def _samples(place: str, own: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns a writer's images and labels, after checking them."""
    pixels, labels = (own.get("x"), own.get("y")) if isinstance(own, dict) else (None, None)
    if not isinstance(pixels, list) or not isinstance(labels, list) or len(pixels) != len(labels):
        raise DataError(f"{place}: expected lists x and y of one length; {_REMEDY}")
    if not labels:
        return np.zeros((0, *_SHAPE), np.uint8), np.zeros(0, np.int32)
    whole = all(isinstance(row, list) and len(row) == _SIDE * _SIDE for row in pixels)
    # Types first: of a list with a text NumPy would make an array of texts, each as wide as the longest.
    values = _array(pixels) if whole and _are_numbers(itertools.chain.from_iterable(pixels)) else None
    numbers = _array(labels) if _are_numbers(labels) else None
    if values is None or values.shape != (len(pixels), _SIDE * _SIDE):
        raise DataError(f"{place}: expected images of {_SIDE * _SIDE} numbers each; {_REMEDY}")
    if not ((values >= 0) & (values <= 1)).all():  # NaN fails too
        raise DataError(f"{place}: expected pixels from 0 to 1, found {values.min()} to {values.max()}; {_REMEDY}")
    if numbers is None or numbers.shape != (len(labels),) or numbers.dtype.kind != "i":
        raise DataError(f"{place}: expected integers for labels; {_REMEDY}")
    if numbers.min() < 0 or numbers.max() >= len(CHARACTERS):
        raise DataError(
            f"{place}: labels lie in {numbers.min()}..{numbers.max()}, expected 0..{len(CHARACTERS) - 1}; {_REMEDY}"
        )
    images = np.rint(values * 255).astype(np.uint8)
    return images.reshape(-1, *_SHAPE), numbers.astype(np.int32)


def _are_numbers(values: Iterable[Any]) -> bool:
    return set(map(type, values)) <= {int, float}


def _array(values: list[Any]) -> np.ndarray | None:
    """Returns an array of numbers; None if the lists differ in length or a number is too large."""
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        return None
    return array if array.dtype.kind in "if" else None


def _joined(writers: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    images, labels = zip(*writers, strict=True)
    check_images_fit("femnist", sum(map(len, labels)), _SHAPE)
    return np.concatenate(images), np.concatenate(labels)


READERS = (
    Reader(
        name="femnist",
        description=(
            "FEMNIST of LEAF: about 800,000 grey images 28x28 of digits and letters by 3,550 writers, 62 classes"
        ),
        read=_read_set,
        find=_find_set,
        files=(
            "train/*.json and test/*.json or all_data/all_data_*.json (written by LEAF's data/femnist/preprocess.sh), "
            "or femnist/ or femnist/data/ with them"
        ),
        home="https://github.com/TalwalkarLab/leaf",
        tfds=TfdsSets("femnist", "femnist", published=False),
        image_shape=_SHAPE,
        class_names=CHARACTERS,
        clients=True,
    ),
)
"""FEMNIST, normalised with the constants of its training images."""
