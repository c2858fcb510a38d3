"""The grey data sets that come as four idx files: MNIST, Fashion-MNIST and the sets of EMNIST."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_bal.data.catalogue import DATASETS
from fedjax_bal.data.errors import MissingError
from fedjax_bal.data.readers.idx import read_labelled


class IdxFiles(NamedTuple):
    """Where the idx files of a data set lie and how they are called.

    Attributes:
        folders: where they may lie below the folder that the user names, in order.
        halves: names of the files of images and of labels, for training and for testing.
        turned: whether pixels are stored column by column, with rows and columns swapped.
    """

    folders: tuple[str, ...]
    halves: tuple[tuple[str, str], tuple[str, str]]
    turned: bool = False


def _layout(folders: tuple[str, ...], train: str, test: str, turned: bool = False) -> IdxFiles:
    first, second = ((f"{half}-images-idx3-ubyte", f"{half}-labels-idx1-ubyte") for half in (train, test))
    return IdxFiles(folders, (first, second), turned)


EMNIST = {
    "emnist_balanced": ("balanced", "balanced"),
    "emnist_bymerge": ("bymerge", "bymerge"),
    "emnist_byclass": ("byclass", "byclass"),
    "emnist_astraea": ("bymerge", "balanced"),
}
"""Of which set of EMNIST the images for training and those for testing are."""

LAYOUTS = {name: _layout((name, ""), "train", "t10k") for name in ("mnist", "fashion_mnist")} | {
    name: _layout(("emnist", "gzip", name, ""), f"emnist-{train}-train", f"emnist-{test}-test", turned=True)
    for name, (train, test) in EMNIST.items()
}
"""Name of the data set -> its layout."""


def find_grey(name: str, data_dir: str | os.PathLike) -> list[Path]:
    """The four idx files of a data set.

    Args:
        name: one of `LAYOUTS`.
        data_dir: the folder that holds them, or the one with a folder that does.

    Returns:
        Images and labels for training, then those for testing.

    Raises:
        DataError: one of them is not there.
    """
    return [_find(name, Path(data_dir), file) for half in LAYOUTS[name].halves for file in half]


def read_grey(name: str, data_dir: str | os.PathLike) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reads the four idx files of a data set.

    Args:
        name: one of `LAYOUTS`.
        data_dir: as for `find_grey`.

    Returns:
        Training images `UInt8[D, 28, 28, 1]`, upright, labels `Int32[D]`, and both for the test set.

    Raises:
        DataError: files are missing or damaged.
    """
    classes, (height, width, _) = DATASETS[name].num_classes, DATASETS[name].image_shape
    train, train_labels, test, test_labels = find_grey(name, data_dir)
    images, labels = read_labelled(train, train_labels, (height, width), classes)
    test_images, test_labels = read_labelled(test, test_labels, (height, width), classes)
    return upright(name, images), labels, upright(name, test_images), test_labels


def upright(name: str, images: np.ndarray) -> np.ndarray:
    """Turns images that are stored with rows and columns swapped, so that they read like those of MNIST.

    Args:
        name: the data set.
        images: `UInt8[D, H, W, 1]`, as they are stored.

    Returns:
        The same, upright.

    Example:
        >>> upright("emnist_balanced", np.arange(4).reshape(1, 2, 2, 1)).ravel()
        array([0, 2, 1, 3])
    """
    turned = name in LAYOUTS and LAYOUTS[name].turned
    return np.ascontiguousarray(images.swapaxes(1, 2)) if turned else images


def expected_files(name: str) -> str:
    """The files of a data set, in words.

    Args:
        name: one of `LAYOUTS`.

    Returns:
        Their names, and where they may lie.
    """
    layout = LAYOUTS[name]
    files = ", ".join(file for files in layout.halves for file in files)
    return f"{files} (each may end in .gz), or {layout.folders[0]}/ with them"


def _find(name: str, data_dir: Path, file: str) -> Path:
    """The first existing spelling of an idx file; archives of the data sets in circulation use all of them."""
    dotted = file.replace("-idx", ".idx")
    spellings = [spelling + ending for spelling in (file, dotted) for ending in ("", ".gz")]
    folders = [data_dir / folder for folder in LAYOUTS[name].folders]
    for folder in folders:
        for spelling in spellings:
            if (folder / spelling).is_file():
                return folder / spelling
    places = f"{', '.join(map(str, folders[:-1]))} and {folders[-1]}"
    raise MissingError(
        f"{name} was not found: looked for {', '.join(spellings)} in {places}; put the four "
        f"official files of {name} there, or pass the folder that holds them as --data-dir."
    )
