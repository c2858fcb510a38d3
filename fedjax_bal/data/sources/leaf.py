"""FEMNIST as LEAF writes it: JSON files of handwritten characters, by writer.

A file has `users`, the names of writers; `num_samples`, the number of images of each; and `user_data`, for each of them
`x`, rows of 784 numbers from 0 to 1, and `y`, labels from 0 to 61: digits, capitals and small letters. Characters are
black on white, unlike those of MNIST and EMNIST.

References:
    Caldas et al.: LEAF: A Benchmark for Federated Settings, 2018.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_bal.data.memory import check_images_fit
from fedjax_bal.data.reading import DataError, MissingError, read_json, reading, shortened
from fedjax_bal.data.sources.idx import CHARACTERS
from fedjax_bal.data.sources.reader import Reader
from fedjax_bal.types import Dataset

_FOLDERS = ("femnist", "femnist/data", "data", "")
_SIDE = 28
_SHAPE = (_SIDE, _SIDE, 1)
_TEST_EVERY = 10  # one image in ten is for testing
_SEED = 0
_REMEDY = "the file is damaged or none of LEAF's: write it again with LEAF's preprocess.sh."


def read_writers(files: Sequence[Path]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Reads images `UInt8[D, 28, 28, 1]` and labels `Int32[D]` of each writer, in the order of the files."""
    writers = {}
    for file in files:
        content = read_json(file, _REMEDY)
        with reading(file, _REMEDY):
            data = content["user_data"]
            if sorted(content["users"]) != sorted(data):
                raise ValueError("users and user_data name different writers")
            for name in content["users"]:
                with reading(f"{file}: writer {shortened(name)}", _REMEDY):
                    if name in writers:
                        raise ValueError("comes twice")
                    writers[name] = _samples(data[name]["x"], data[name]["y"])
    return writers


def _read_set(data_dir: Path) -> Dataset:
    """Reads all images; writers with training images are numbered in the order of the files, then those without.

    Unless LEAF has divided the images, a tenth of each writer's is for testing, always the same one. It is drawn at
    random, since LEAF writes images class after class.
    """
    train_files, test_files = _find_files(data_dir)
    train = read_writers(train_files)
    if test_files:
        test = read_writers(test_files)
    else:
        rng = np.random.default_rng(_SEED)
        held = {name: rng.permutation(len(labels)) < len(labels) // _TEST_EVERY for name, (_, labels) in train.items()}
        test = {name: (images[held[name]], labels[held[name]]) for name, (images, labels) in train.items()}
        train = {name: (images[~held[name]], labels[~held[name]]) for name, (images, labels) in train.items()}
    halves = [{name: len(labels) for name, (_, labels) in half.items()} for half in (train, test)]
    if not all(sum(sizes.values()) for sizes in halves):
        raise DataError(f"{train_files[0].parent}: femnist has no images for training or none for testing; {_REMEDY}")
    writers = list(dict.fromkeys(name for sizes in halves for name, size in sizes.items() if size))
    number = {name: place for place, name in enumerate(writers)}
    train_clients, test_clients = (
        np.repeat([number.get(name, 0) for name in sizes], list(sizes.values())).astype(np.int32) for sizes in halves
    )
    return Dataset(
        *_joined(list(train.values())),
        *_joined(list(test.values())),
        CHARACTERS,
        train_clients,
        client_names=tuple(writers),
        test_clients=test_clients,
    )


def _find_set(data_dir: Path) -> list[Path]:
    return [path for half in _find_files(data_dir) for path in half]


def _find_files(data_dir: Path) -> tuple[list[Path], list[Path]]:
    """Finds the files for training and testing; the second list is empty if LEAF has not divided the images."""
    folders = [data_dir / folder for folder in _FOLDERS]
    for folder in folders:
        train = _json_files(folder / "train", "*.json")
        test = _json_files(folder / "test", "*.json")
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
    """Lists a folder's files that match a pattern, sorted by name."""
    return sorted(path for path in folder.glob(pattern) if path.is_file())


def _samples(x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Validates and returns a writer's images and labels."""
    # Converted to floats directly: with a text in the list, NumPy would make an array of texts as wide as the longest.
    pixels = np.array(x, np.float64).reshape(-1, _SIDE * _SIDE)
    labels = np.array(y, np.float64)
    if labels.shape != pixels.shape[:1]:
        raise ValueError("expected lists x and y of one length")
    if not ((pixels >= 0) & (pixels <= 1)).all():  # NaN fails too
        raise ValueError(f"expected pixels from 0 to 1, found {pixels.min()} to {pixels.max()}")
    if not np.isin(labels, np.arange(len(CHARACTERS))).all():
        raise ValueError(f"expected labels in 0..{len(CHARACTERS) - 1}")
    return np.rint(pixels * 255).astype(np.uint8).reshape(-1, *_SHAPE), labels.astype(np.int32)


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
        image_shape=_SHAPE,
        class_names=CHARACTERS,
        clients=True,
    ),
)
"""FEMNIST, normalised with the constants of its training images."""
