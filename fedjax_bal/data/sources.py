"""Loading of data sets by name: embedded, from files that the user has, or through TensorFlow Datasets."""

import difflib
import importlib.resources
import os
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..types import Dataset
from .catalogue import DATASETS
from .cifar import LAYOUTS, read_cifar
from .errors import DataError
from .folders import read_cinic10
from .idx import read_labelled
from .inaturalist import read_inaturalist

_Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class _IdxLayout(NamedTuple):
    """Where the idx files of a grey data set lie and how they are called.

    Attributes:
        folders: where they may lie below the folder that the user names, in order.
        halves: names of the files of images and of labels, for training and for testing.
        turned: whether pixels are stored column by column, with rows and columns swapped.
    """

    folders: tuple[str, ...]
    halves: tuple[tuple[str, str], tuple[str, str]]
    turned: bool = False


def _layout(folders: tuple[str, ...], train: str, test: str, turned: bool = False) -> _IdxLayout:
    first, second = ((f"{half}-images-idx3-ubyte", f"{half}-labels-idx1-ubyte") for half in (train, test))
    return _IdxLayout(folders, (first, second), turned)


_EMNIST = {
    "emnist_balanced": ("balanced", "balanced"),
    "emnist_bymerge": ("bymerge", "bymerge"),
    "emnist_astraea": ("bymerge", "balanced"),
}
"""Of which set of EMNIST the images for training and those for testing are."""

_FILES_ALONE = {
    "cinic10": "train/ and test/ (unpacked from CINIC-10.tar.gz), or cinic10/ or CINIC-10/ with them",
    **dict.fromkeys(
        ("inaturalist2019", "inaturalist2019_32"),
        "train2019.json, val2019.json and train_val2019/ (unpacked from the archives of these names), or "
        "inaturalist2019/ with them",
    ),
}
"""Data sets that TensorFlow Datasets doesn't have, and which files they need."""

_IDX = {name: _layout((name, ""), "train", "t10k") for name in ("mnist", "fashion_mnist")} | {
    name: _layout(("emnist", "gzip", name, ""), f"emnist-{train}-train", f"emnist-{test}-test", turned=True)
    for name, (train, test) in _EMNIST.items()
}


def load(name: str, data_dir: str | os.PathLike | None = None) -> Dataset:
    """Loads a data set into memory.

    `fashion_mnist_small` comes with the package, and `labels_47` needs no files. The others are read from `data_dir` in
    their official file formats: idx files for `fashion_mnist`, `mnist` and the sets of EMNIST, the binary version
    for `cifar10` and `cifar100`, folders of PNG files for `cinic10`, JPEG files with annotations for `inaturalist2019`.
    Without `data_dir` TensorFlow Datasets provides them, which downloads them once; all but the last two, which it
    doesn't have.

    Images of EMNIST, which are stored with rows and columns swapped, are turned so that they read like those of MNIST.
    `emnist_astraea` has ByMerge's images for training and Balanced's for testing; their files lie in the same folder.
    `inaturalist2019_32` has the images of `inaturalist2019` at 32x32 pixels.

    Args:
        name: one of `DATASETS`.
        data_dir: the folder that holds the files, or the one that holds their folder: `fashion_mnist/`, `mnist/`,
            `emnist/`, `gzip/` or the set's name for EMNIST, `cifar-10-batches-bin/`, `cifar-100-binary/`, `cinic10/` or
            `CINIC-10/`, `inaturalist2019/`. Not needed for the first two.

    Returns:
        Images `UInt8[D, H, W, K]`, labels `Int32[D]`, the same for the test set, and the names of the classes.

    Raises:
        ValueError: no data set has that name.
        DataError: files are missing or damaged, or TensorFlow Datasets can't provide the set.

    Example:
        >>> dataset = load("fashion_mnist_small")
        >>> dataset.train_images.shape, dataset.test_labels.shape, dataset.class_names[1]
        ((10000, 28, 28, 1), (2000,), 'Trouser')

    References:
        Xiao, Rasul, Vollgraf: Fashion-MNIST, 2017. Cohen, Afshar, Tapson, van Schaik: EMNIST, 2017.
    """
    if name not in DATASETS:
        close = difflib.get_close_matches(str(name), DATASETS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"no data set is called {name!r}; there are {', '.join(DATASETS)}.{hint}")
    if name == "fashion_mnist_small":
        arrays = _read_embedded(name)
    elif name == "labels_47":
        arrays = _labels_only(DATASETS[name].num_classes)
    elif data_dir is None:
        arrays = _read_tfds(name)
    elif not Path(data_dir).is_dir():
        raise DataError(f"{data_dir}: is not a folder; --data-dir must be the folder that holds the files of {name}.")
    elif name in LAYOUTS:
        arrays = read_cifar(name, data_dir)
    elif name == "cinic10":
        arrays = read_cinic10(data_dir, DATASETS[name].class_names)
    elif name in _FILES_ALONE:
        arrays = read_inaturalist(data_dir, DATASETS[name].image_shape[0])
    else:
        arrays = _read_idx_folder(name, Path(data_dir))
    if name in _IDX and _IDX[name].turned:  # TensorFlow Datasets hands them on as they are
        arrays = _upright(arrays)
    return Dataset(*arrays, DATASETS[name].class_names)


def _labels_only(classes: int) -> _Arrays:
    """Blank images, a pool as large as the paper's frequencies of letters ask for."""
    train, test = (np.repeat(np.arange(classes, dtype=np.int32), count) for count in (16_000, 10))
    blank = lambda labels: np.zeros((len(labels), 1, 1, 1), np.uint8)
    return blank(train), train, blank(test), test


def _read_embedded(name: str) -> _Arrays:
    """Reads the set that comes with the package."""
    resource = importlib.resources.files("fedjax_bal.data.embedded") / f"{name}.npz"
    try:
        with resource.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            train_images, test_images = archive["train_images"], archive["test_images"]
            train_labels, test_labels = archive["train_labels"], archive["test_labels"]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{resource}: the embedded data set can't be read ({error}); install fedjax_bal again."
        ) from error
    return train_images, train_labels.astype(np.int32), test_images, test_labels.astype(np.int32)


def _read_idx_folder(name: str, data_dir: Path) -> _Arrays:
    """Reads the four idx files of a grey data set."""
    layout, info = _IDX[name], DATASETS[name]
    pairs = [(_find(name, data_dir, images), _find(name, data_dir, labels)) for images, labels in layout.halves]
    size = info.image_shape[:2]
    train, test = (read_labelled(images, labels, size, info.num_classes) for images, labels in pairs)
    return *train, *test


def _upright(arrays: _Arrays) -> _Arrays:
    """Swaps rows and columns of the images."""
    images, labels, test_images, test_labels = arrays
    turned = lambda pixels: np.ascontiguousarray(pixels.swapaxes(1, 2))
    return turned(images), labels, turned(test_images), test_labels


def _find(name: str, data_dir: Path, file: str) -> Path:
    """The first existing spelling of an idx file; archives of the data sets in circulation use all of them."""
    dotted = file.replace("-idx", ".idx")
    spellings = [spelling + ending for spelling in (file, dotted) for ending in ("", ".gz")]
    folders = [data_dir / folder for folder in _IDX[name].folders]
    for folder in folders:
        for spelling in spellings:
            if (folder / spelling).is_file():
                return folder / spelling
    places = f"{', '.join(map(str, folders[:-1]))} and {folders[-1]}"
    raise DataError(
        f"{name} was not found: looked for {', '.join(spellings)} in {places}; put the four "
        f"official files of {name} there, or pass the folder that holds them as --data-dir."
    )


def _read_tfds(name: str) -> _Arrays:
    """Reads through TensorFlow Datasets, as random-access sources, which need no TensorFlow."""
    if name in _FILES_ALONE:
        raise DataError(
            f"{name}: TensorFlow Datasets doesn't have it; pass --data-dir with the folder that holds "
            f"{_wanted_files(name)}."
        )
    try:
        import tensorflow_datasets as tfds

        if name in _EMNIST and len(set(_EMNIST[name])) == 2:
            sources = zip(_EMNIST[name], ("train", "test"), strict=True)
            train, test = (tfds.data_source(f"emnist/{own}", split=half) for own, half in sources)
        else:
            known = f"emnist/{_EMNIST[name][0]}" if name in _EMNIST else name
            train, test = tfds.data_source(known, split=["train", "test"])
        return *_stack(train), *_stack(test)
    except Exception as error:  # of any kind: network, disk, formats and optional imports all fail in there
        raise DataError(
            f"{name}: TensorFlow Datasets can't provide it ({type(error).__name__}: {_shortened(error)}). The first "
            "time it needs a network, and TensorFlow to encode the images. Without them pass --data-dir with the "
            f"folder that holds {_wanted_files(name)}."
        ) from error


def _stack(source) -> tuple[np.ndarray, np.ndarray]:
    """Gathers a random-access source into arrays."""
    examples = [source[row] for row in range(len(source))]
    images = np.stack([np.asarray(example["image"], np.uint8) for example in examples])
    return images, np.asarray([example["label"] for example in examples], np.int32)


def _shortened(error: Exception, limit: int = 300) -> str:
    """The beginning of a message; those of TensorFlow Datasets can hold a whole image."""
    text = " ".join(str(error).split())
    return text if len(text) <= limit else f"{text[:limit]} ..."


def _wanted_files(name: str) -> str:
    """The files that `data_dir` must hold, in words."""
    if name in LAYOUTS:
        layout = LAYOUTS[name]
        return (
            f"{', '.join((*layout.train, layout.test))} (unpacked from {layout.archive}), or {layout.folder}/ with them"
        )
    if name in _FILES_ALONE:
        return _FILES_ALONE[name]
    layout = _IDX[name]
    files = ", ".join(file for files in layout.halves for file in files)
    return f"{files} (each may end in .gz), or {layout.folders[0]}/ with them"
