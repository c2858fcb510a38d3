"""FEMNIST as LEAF writes it: JSON files of handwritten characters, by writer.

A file has `users`, the names of writers; `num_samples`, how many images each of them has; and `user_data`, for each of
them `x`, rows of 784 numbers from 0 to 1, and `y`, labels from 0 to 61: digits, capital and then small letters. LEAF
writes characters in black on white; so they stay, unlike those of MNIST and EMNIST.

References:
    Caldas et al.: LEAF: A Benchmark for Federated Settings, 2018.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.data.errors import DataError, MissingError
from fedjax_bal.data.memory import check_memory
from fedjax_bal.data.readers.idx import CHARACTERS
from fedjax_bal.data.readers.reader import Reader, TfdsSets
from fedjax_bal.data.readers.untrusted import check_within, read_json, shortened
from fedjax_bal.types import Dataset

FOLDERS = ("femnist", "femnist/data", "data", "")
"""Where LEAF's folders may lie below the folder that the user names."""

_SIDE = 28
_SHAPE = (_SIDE, _SIDE, 1)
_MAX_FILE = 2**31
_TEST_SHARE = 10  # one image of so many
_AGAIN = "the file is damaged or none of LEAF's: write it again with LEAF's preprocess.sh."


class LeafFiles(NamedTuple):
    """LEAF's files of the data set.

    Attributes:
        train: files of the training images, or of all images where `test` is empty.
        test: files of the test images; none where LEAF has not divided them.
    """

    train: tuple[Path, ...]
    test: tuple[Path, ...]


class Writers(NamedTuple):
    """What some files hold, writer after writer.

    Attributes:
        names: of the writers, in the order in which they come.
        images: of each of them, `UInt8[D_i, 28, 28, 1]`.
        labels: of each of them, `Int32[D_i]`.
    """

    names: list[str]
    images: list[np.ndarray]
    labels: list[np.ndarray]


def read_writers(files: Sequence[Path]) -> Writers:
    """Reads some of LEAF's files.

    Args:
        files: the files, in order.

    Returns:
        All their writers; those without images too.

    Raises:
        DataError: a file can't be read or is none of LEAF's, a value is out of range, or a writer comes twice.

    Example:
        >>> import json, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     own = {"x": [[1.0] * 784], "y": [61]}
        ...     content = {"users": ["f0_1"], "num_samples": [1], "user_data": {"f0_1": own}}
        ...     _ = Path(folder, "all_data_0.json").write_text(json.dumps(content))
        ...     writers = read_writers([Path(folder, "all_data_0.json")])
        >>> writers.names, writers.images[0].shape, writers.labels[0].tolist()
        (['f0_1'], (1, 28, 28, 1), [61])
    """
    found = Writers([], [], [])
    known: set[str] = set()
    for file in files:
        content = read_json(file, _MAX_FILE, _AGAIN)
        for name, own in _users(file, content):
            if name in known:
                raise DataError(f"{file}: writer {shortened(name)} comes twice; {_AGAIN}")
            known.add(name)
            images, labels = _samples(f"{file}: writer {shortened(name)}", own)
            found.names.append(name)
            found.images.append(images)
            found.labels.append(labels)
    return found


def _read_set(data_dir: Path) -> Dataset:
    """All images, and who wrote them, numbered in the order of the files; writers without images have no number.

    Where LEAF has not divided the images, every tenth one of each writer, the last ones in the files, is for testing.
    """
    files = _find_files(data_dir)
    if files.test:
        train, test = read_writers(files.train), read_writers(files.test)
    else:
        train, test = _divided(read_writers(files.train))
    sizes = np.array([len(own) for own in train.labels])
    writers = np.repeat(np.cumsum(sizes > 0) - 1, sizes).astype(np.int32)
    if not sizes.sum() or not sum(map(len, test.labels)):
        raise DataError(f"{files.train[0].parent}: femnist has no images for training or none for testing; {_AGAIN}")
    return Dataset(*_together(train), *_together(test), CHARACTERS, writers)


def _find_set(data_dir: Path) -> list[Path]:
    return [path for half in _find_files(data_dir) for path in half]


def _find_files(data_dir: Path) -> LeafFiles:
    """LEAF's files, in the order of their names; those of `train/` and `test/` where there are both."""
    folders = [data_dir / folder for folder in FOLDERS]
    for folder in folders:
        divided = LeafFiles(_json_files(folder / "train", "*.json"), _json_files(folder / "test", "*.json"))
        if divided.train and divided.test:
            return divided
        whole = _json_files(folder / "all_data", "all_data_*.json") or _json_files(folder, "all_data_*.json")
        if whole:
            return LeafFiles(whole, ())
    raise MissingError(
        f"femnist was not found: looked for train/*.json with test/*.json and for all_data/all_data_*.json in "
        f"{', '.join(map(str, folders))}; write them with LEAF's data/femnist/preprocess.sh, or pass the folder that "
        "holds them as --data-dir."
    )


def _json_files(folder: Path, pattern: str) -> tuple[Path, ...]:
    """The files of a folder, by name; links stay within it."""
    found = sorted(path for path in folder.glob(pattern) if path.is_file())
    for path in found:
        check_within(folder, path)
    return tuple(found)


def _users(file: Path, content: Any) -> list[tuple[str, Any]]:
    """The writers of a file with what belongs to them."""
    keys = ("users", "num_samples", "user_data")
    users, counts, data = map(content.get, keys) if isinstance(content, dict) else (None, None, None)
    if not isinstance(users, list) or not isinstance(data, dict) or not all(isinstance(name, str) for name in users):
        raise DataError(f"{file}: expected a mapping with {', '.join(keys)}, as LEAF writes it; {_AGAIN}")
    if set(users) != set(data) or len(users) != len(data):
        raise DataError(f"{file}: users lists {len(users)} writers, but user_data has {len(data)} or others; {_AGAIN}")
    if isinstance(counts, list) and counts != [_length(data[name]) for name in users]:
        raise DataError(f"{file}: num_samples says other numbers than user_data has; {_AGAIN}")
    return [(name, data[name]) for name in users]


def _length(own: Any) -> int | None:
    labels = own.get("y") if isinstance(own, Mapping) else None
    return len(labels) if isinstance(labels, list) else None


def _samples(place: str, own: Any) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of a writer."""
    pixels, labels = (own.get("x"), own.get("y")) if isinstance(own, dict) else (None, None)
    if not isinstance(pixels, list) or not isinstance(labels, list) or len(pixels) != len(labels):
        raise DataError(f"{place}: expected lists x and y of one length; {_AGAIN}")
    if not labels:
        return np.zeros((0, *_SHAPE), np.uint8), np.zeros(0, np.int32)
    whole = all(isinstance(row, list) and len(row) == _SIDE * _SIDE for row in pixels)
    # NumPy would make room for the longest text in place of each number.
    values = _array(pixels) if whole and _are_numbers(itertools.chain.from_iterable(pixels)) else None
    numbers = _array(labels) if _are_numbers(labels) else None
    if values is None or values.shape != (len(pixels), _SIDE * _SIDE):
        raise DataError(f"{place}: expected images of {_SIDE * _SIDE} numbers each; {_AGAIN}")
    if not ((values >= 0) & (values <= 1)).all():  # which finds what is no number too
        raise DataError(f"{place}: expected pixels from 0 to 1, found {values.min()} to {values.max()}; {_AGAIN}")
    if numbers is None or numbers.shape != (len(labels),) or numbers.dtype.kind != "i":
        raise DataError(f"{place}: expected whole numbers for labels; {_AGAIN}")
    if numbers.min() < 0 or numbers.max() >= len(CHARACTERS):
        raise DataError(
            f"{place}: labels lie in {numbers.min()}..{numbers.max()}, expected 0..{len(CHARACTERS) - 1}; {_AGAIN}"
        )
    images = np.rint(values * 255).astype(np.uint8)
    return images.reshape(-1, *_SHAPE), numbers.astype(np.int32)


def _are_numbers(values: Iterable[Any]) -> bool:
    return set(map(type, values)) <= {int, float}


def _array(values: list[Any]) -> np.ndarray | None:
    """The numbers; None where they are of several lengths, or other things."""
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        return None
    return array if array.dtype.kind in "if" else None


def _divided(writers: Writers) -> tuple[Writers, Writers]:
    """The first nine tenths of each writer's images, and the others."""
    cuts = [len(own) - len(own) // _TEST_SHARE for own in writers.labels]
    images, labels = (list(zip(arrays, cuts, strict=True)) for arrays in (writers.images, writers.labels))
    train = Writers(writers.names, [own[:cut] for own, cut in images], [own[:cut] for own, cut in labels])
    test = Writers(writers.names, [own[cut:] for own, cut in images], [own[cut:] for own, cut in labels])
    return train, test


def _together(writers: Writers) -> tuple[np.ndarray, np.ndarray]:
    """All images and labels, writer after writer."""
    check_memory("femnist", sum(map(len, writers.labels)), _SHAPE, "take a machine with more")
    return np.concatenate(writers.images), np.concatenate(writers.labels)


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
