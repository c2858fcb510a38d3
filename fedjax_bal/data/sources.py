"""Loading of data sets by name: embedded, from files that the user has, or through TensorFlow Datasets."""

import difflib
import importlib.resources
import os
import zipfile
from pathlib import Path

import numpy as np

from ..types import Dataset
from .catalogue import DATASETS
from .cifar import LAYOUTS, read_cifar
from .errors import DataError
from .idx import read_labelled

_Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
_IDX_NAMES = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)


def load(name: str, data_dir: str | os.PathLike | None = None) -> Dataset:
    """Loads a data set into memory.

    `fashion_mnist_small` comes with the package. The others are read from `data_dir` in their official file formats
    (idx files for `fashion_mnist` and `mnist`, the binary version for `cifar10` and `cifar100`); without `data_dir`
    TensorFlow Datasets provides them, which downloads them once.

    Args:
        name: one of `DATASETS`.
        data_dir: the folder that holds the files, or the one that holds their folder: `fashion_mnist/`, `mnist/`,
            `cifar-10-batches-bin/`, `cifar-100-binary/`. Not needed for the embedded set.

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
        Xiao, Rasul, Vollgraf: Fashion-MNIST, 2017.
    """
    if name not in DATASETS:
        close = difflib.get_close_matches(str(name), DATASETS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"no data set is called {name!r}; there are {', '.join(DATASETS)}.{hint}")
    if name == "fashion_mnist_small":
        arrays = _read_embedded(name)
    elif data_dir is None:
        arrays = _read_tfds(name)
    elif not Path(data_dir).is_dir():
        raise DataError(f"{data_dir}: is not a folder; --data-dir must be the folder that holds the files of {name}.")
    elif name in LAYOUTS:
        arrays = read_cifar(name, data_dir)
    else:
        arrays = _read_idx_folder(name, Path(data_dir))
    return Dataset(*arrays, DATASETS[name].class_names)


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
    pairs = [(_find(name, data_dir, images), _find(name, data_dir, labels)) for images, labels in _IDX_NAMES]
    info = DATASETS[name]
    size = info.image_shape[:2]
    train, test = (read_labelled(images, labels, size, info.num_classes) for images, labels in pairs)
    return *train, *test


def _find(name: str, data_dir: Path, file: str) -> Path:
    """The first existing spelling of an idx file; archives of the data sets in circulation use all of them."""
    dotted = file.replace("-idx", ".idx")
    spellings = [spelling + ending for spelling in (file, dotted) for ending in ("", ".gz")]
    folders = (data_dir / name, data_dir)
    for folder in folders:
        for spelling in spellings:
            if (folder / spelling).is_file():
                return folder / spelling
    raise DataError(
        f"{name} was not found: looked for {', '.join(spellings)} in {folders[0]} and {folders[1]}; put the four "
        f"official files of {name} there, or pass the folder that holds them as --data-dir."
    )


def _read_tfds(name: str) -> _Arrays:
    """Reads through TensorFlow Datasets, as random-access sources, which need no TensorFlow."""
    try:
        import tensorflow_datasets as tfds

        train, test = tfds.data_source(name, split=["train", "test"])
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
    files = ", ".join(file for files in _IDX_NAMES for file in files)
    return f"{files} (each may end in .gz), or {name}/ with them"
