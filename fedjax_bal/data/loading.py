"""Loading of data sets by name: embedded, from files that the user has, or through TensorFlow Datasets."""

import difflib
import importlib.resources
import inspect
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fedjax_bal.data import cache
from fedjax_bal.data.catalogue import DATASETS
from fedjax_bal.data.errors import DataError, MissingError
from fedjax_bal.data.normalisation import normalisation
from fedjax_bal.data.readers import tfds
from fedjax_bal.data.readers.finding import find
from fedjax_bal.data.readers.image_folder import read_image_folder
from fedjax_bal.data.readers.npz import read_npz
from fedjax_bal.data.readers.official import OFFICIAL
from fedjax_bal.types import Dataset

OWN_FILES: Mapping[str, Callable[..., Dataset]] = MappingProxyType(
    {"npz": read_npz, "image_folder": read_image_folder},
)
"""Name of each kind of files that a user made -> what reads them; its first parameter is `path`."""


def load(
    name: str,
    data_dir: str | os.PathLike | None = None,
    *,
    mean: float | Sequence[float] | str | None = None,
    std: float | Sequence[float] | str | None = None,
    **options: Any,
) -> Dataset:
    """Loads a data set into memory.

    `fashion_mnist_small` comes with the package, and `labels_47` needs no files. The others are read from `data_dir`,
    in their official file formats: idx files for `fashion_mnist`, `mnist` and the sets of EMNIST, the binary version
    for `cifar10` and `cifar100`, MATLAB files for `svhn`, LEAF's JSON files for `femnist`, folders of PNG files for
    `cinic10`, JPEG files with annotations for `inaturalist2019`; or else from a folder there that TensorFlow Datasets
    has prepared, which gives the same arrays. What `fedjax-bal data prepare` wrote is read in place of them, as long as
    they are those that it was made from. Without `data_dir` TensorFlow Datasets provides them, which downloads them
    once; all but the last three, which it doesn't have.

    One's own images come from an npz file, `load("npz", path="mine.npz")`, or from a folder of image files for each
    class, `load("image_folder", path="mine", side=64)`; a path that isn't absolute counts from `data_dir`, where that
    is given.

    Images of EMNIST, which are stored with rows and columns swapped, are turned so that they read like those of MNIST.
    `emnist_astraea` has ByMerge's images for training and Balanced's for testing; their files lie in the same folder.
    `inaturalist2019_32` has the images of `inaturalist2019` at 32x32 pixels.

    Args:
        name: one of `DATASETS`.
        data_dir: the folder that holds the files, or the one that holds their folder: `fashion_mnist/`, `mnist/`,
            `emnist/`, `gzip/` or the set's name for EMNIST, `cifar-10-batches-bin/`, `cifar-100-binary/`, `svhn/`,
            `femnist/`, `cinic10/` or `CINIC-10/`, `inaturalist2019/`. Not needed for the first two.
        mean: with which mean `federate` normalises the images: one number, one for each channel, or "own" for that of
            the training images; None for the default of `normalisation`.
        std: the same for the standard deviation.
        **options: for `npz` and `image_folder`: `path`, and what their reader takes, see `OWN_FILES`.

    Returns:
        Images `UInt8[D, H, W, K]`, labels `Int32[D]`, the same for the test set, the names of the classes, whose
        each training image is, where the set says so, and K means and standard deviations.

    Raises:
        ValueError: no data set has that name, it takes no such option, or a mean or standard deviation that doesn't
            fit.
        DataError: files are missing or damaged, or TensorFlow Datasets can't provide the set.

    Example:
        >>> dataset = load("fashion_mnist_small")
        >>> dataset.train_images.shape, dataset.test_labels.shape, dataset.class_names[1]
        ((10000, 28, 28, 1), (2000,), 'Trouser')
        >>> dataset.mean, load("fashion_mnist_small", mean=0, std=1).mean
        ((0.1307,), (0.0,))

    References:
        Xiao, Rasul, Vollgraf: Fashion-MNIST, 2017. Cohen, Afshar, Tapson, van Schaik: EMNIST, 2017.
    """
    known_names(name)
    dataset = _read(name, data_dir, **options)
    mean, std = normalisation(name, dataset.train_images, mean, std)
    return dataset._replace(mean=mean, std=std)


def known_names(name: str) -> None:
    """Refuses a name that no data set has.

    Args:
        name: what was received.

    Raises:
        ValueError: there is no such data set; the message has the nearest name, or those that begin like that.
    """
    if name not in DATASETS:
        longer = [other for other in DATASETS if other.startswith(f"{name}_")]
        close = longer or difflib.get_close_matches(str(name), DATASETS, n=1)
        hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise ValueError(f"no data set is called {name!r}; there are {', '.join(DATASETS)}.{hint}")


def folder_of(name: str, data_dir: str | os.PathLike) -> Path:
    """The folder that the user names.

    Args:
        name: the data set, for the message.
        data_dir: what was received.

    Returns:
        The folder.

    Raises:
        DataError: there is no such folder.
    """
    if not Path(data_dir).is_dir():
        raise DataError(f"{data_dir}: is not a folder; --data-dir must be the folder that holds the files of {name}.")
    return Path(data_dir)


def _read(name: str, data_dir: str | os.PathLike | None, **options: Any) -> Dataset:
    """Reads a data set from wherever it comes from."""
    if name in OWN_FILES:
        return _read_own(name, data_dir, **options)
    if options:
        raise ValueError(f"data set {name} takes no options, received {', '.join(options)}; npz and image_folder do.")
    if name == "fashion_mnist_small":
        return _read_embedded(name)
    if name == "labels_47":
        return _labels_only(name)
    return _read_tfds(name) if data_dir is None else _read_folder(name, folder_of(name, data_dir))


def _read_own(name: str, data_dir: str | os.PathLike | None, **options: Any) -> Dataset:
    """Reads files that the user made."""
    if not isinstance(options.get("path"), str | os.PathLike):
        raise ValueError(f"data set {name} needs its path, as in load({name!r}, path=...), received {sorted(options)}.")
    reader = OWN_FILES[name]
    unknown = sorted(set(options) - set(inspect.signature(reader).parameters))
    if unknown:
        taken = ", ".join(inspect.signature(reader).parameters)
        raise ValueError(f"data set {name} takes {taken}, received {unknown[0]!r}.")
    path = Path(data_dir or "", options["path"])
    if not path.exists() and not Path(options["path"]).is_absolute():
        counts = (
            "the folder given with --data-dir"
            if data_dir
            else "the current folder, or from --data-dir where it is given"
        )
        raise DataError(f"dataset.path: there is no {path}; a relative path counts from {counts}.")
    return reader(**options | {"path": path})


def _read_folder(name: str, data_dir: Path) -> Dataset:
    """Reads what `prepare` wrote, unless the files that it was made from have changed, or else those files."""
    try:
        found = find(name, data_dir)
    except MissingError:
        kept = cache.read(name, data_dir, None)
        if kept is None:
            raise
        return kept
    return cache.read(name, data_dir, found.places) or found.read()


def _read_tfds(name: str) -> Dataset:
    """Has TensorFlow Datasets provide it."""
    wanted = OFFICIAL[name].wanted
    if not tfds.has(name):
        raise DataError(
            f"{name}: TensorFlow Datasets doesn't have it; pass --data-dir with the folder that holds {wanted}."
        )
    try:
        return tfds.download(name)
    except Exception as error:  # of any kind: network, disk, formats and optional imports all fail in there
        raise DataError(
            f"{name}: TensorFlow Datasets can't provide it ({tfds.shown(error)}). The first time it needs a "
            "network, and TensorFlow to encode the images. Without them pass --data-dir with the folder that holds "
            f"{wanted}."
        ) from error


def _labels_only(name: str) -> Dataset:
    """Blank images, a pool as large as the paper's frequencies of letters ask for."""
    names = DATASETS[name].class_names
    train, test = (np.repeat(np.arange(len(names), dtype=np.int32), count) for count in (16_000, 10))
    blank = lambda labels: np.zeros((len(labels), 1, 1, 1), np.uint8)
    return Dataset(blank(train), train, blank(test), test, names)


def _read_embedded(name: str) -> Dataset:
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
    labels, test_labels = train_labels.astype(np.int32), test_labels.astype(np.int32)
    return Dataset(train_images, labels, test_images, test_labels, DATASETS[name].class_names)
