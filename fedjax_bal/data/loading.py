"""Loads data sets by name: from the package, from the user's files, or through TensorFlow Datasets."""

import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_bal.data.inputs import compute_constants, num_channels
from fedjax_bal.data.inventory import find_files, folder_of, read_prepared
from fedjax_bal.data.reading import DataError, MissingError
from fedjax_bal.data.sources import find_reader, tfds
from fedjax_bal.data.sources.reader import Reader
from fedjax_bal.types import Dataset
from fedjax_bal.validate import per_channel, suggestion

OWN = "own"
"""The value of `mean` or `std` that stands for that of the training images."""


def load(
    name: str,
    data_dir: str | os.PathLike | None = None,
    *,
    mean: float | Sequence[float] | str | None = None,
    std: float | Sequence[float] | str | None = None,
    **options: Any,
) -> Dataset:
    """Loads a data set into memory.

    Sets that come with the package need no files; `load("synthetic", rows=1_000_000)` has as many rows as you ask for.
    The others are read from `data_dir`: from their official files, or from a folder that TensorFlow Datasets has
    prepared, which gives the same images in another order. A file written by `fedjax-bal data prepare` is read instead,
    until they change. Without `data_dir`, TensorFlow Datasets provides its sets, and downloads each once.
    `fedjax-bal data list` shows all sets, and whether a folder holds them.

    A user's own images, feature vectors or token ids come from an npz file, `load("npz", path="mine.npz")`; a table
    from a CSV file, `load("csv", path="mine.csv", label="y")`; images from a folder of image files for each class,
    `load("image_folder", path="mine", side=64)`; or a data set of Hugging Face from a folder or from the hub,
    `load("huggingface", path="ylecun/mnist")`. A relative path starts at `data_dir`, if that is given. `from_arrays`,
    `from_pandas`, `from_torch`, `from_tf_data` and `from_huggingface` take them from memory.

    Args:
        name: one of `DATASETS`.
        data_dir: the folder that holds the files, or the one that holds their folder.
        mean: the mean with which `federate` normalises the images: one number, one for each channel, or "own" for that
            of the training images; None for the default, see `normalisation`.
        std: the standard deviation, likewise.
        **options: for the user's own files: `path`, and the options of their reader; for `synthetic` its own.

    Returns:
        Images `UInt8[D, H, W, K]`, or the rows of a table or a user's own inputs `[D, ...]`, and labels `Int32[D]` for
        training and for testing, the names of the classes, each training image's client, if the set has clients, and K
        means and standard deviations.

    Raises:
        ValueError: the name is unknown, or an option, mean or standard deviation doesn't fit.
        DataError: files are missing or damaged, or TensorFlow Datasets can't provide the set.

    Example:
        >>> dataset = load("fashion_mnist_small")
        >>> dataset.train_images.shape, dataset.test_labels.shape, dataset.class_names[1]
        ((10000, 28, 28, 1), (2000,), 'Trouser')
        >>> dataset.mean, load("fashion_mnist_small", mean=0, std=1).mean
        ((0.1307,), (0.0,))
    """
    reader = find_reader(name)
    if reader.origin != "official":
        dataset = _read_with(reader, data_dir, options)
    elif options:
        raise ValueError(f"data set {name} takes no options, received {', '.join(options)}.")
    elif data_dir is None:
        dataset = tfds.read_tfds(reader)
    else:
        folder = folder_of(name, data_dir)
        try:
            files = find_files(reader, folder)
        except MissingError:
            dataset = read_prepared(name, folder, None)
            if dataset is None:
                raise
        else:
            dataset = read_prepared(name, folder, files.places) or files.read()
    mean = dataset.mean if mean is None else mean  # that a plug-in's reader has set
    std = dataset.std if std is None else std
    mean, std = normalisation(name, dataset.train_images, mean, std)
    return dataset._replace(mean=mean, std=std)


def stand_in(reader: Reader) -> Dataset:
    """Makes as many black images as an official data set has, with classes of equal size, for plans.

    Example:
        >>> dataset = stand_in(find_reader("cifar10"))
        >>> dataset.train_images.shape, np.bincount(dataset.test_labels).tolist()[:2]
        ((50000, 32, 32, 3), [1000, 1000])
    """
    train, test = (np.arange(count, dtype=np.int32) % reader.num_classes for count in reader.counts)
    images = [np.zeros((count, *reader.image_shape), np.uint8) for count in reader.counts]
    dataset = Dataset(images[0], train, images[1], test, reader.class_names)
    mean, std = normalisation(reader.name, dataset.train_images)
    return dataset._replace(mean=mean, std=std)


def normalisation(
    name: str,
    images: np.ndarray,
    mean: float | Sequence[float] | str | None = None,
    std: float | Sequence[float] | str | None = None,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the mean and standard deviation with which a data set's pixels, scaled to [0, 1], are normalised.

    The defaults are the constants of the reproduced papers' code, which are not always the data set's own: MNIST's
    (0.1307, 0.3081) for MNIST, Fashion-MNIST and EMNIST, as in ReBaFL's code, and CIFAR-10's for CIFAR-100 too. SVHN
    and CINIC-10 have their own published constants, iNaturalist has ImageNet's, MedMNIST's sets have 0.5 and 0.5;
    FEMNIST, the tables Shuttle and Letter, and a user's own files have the mean and standard deviation of their
    training images, or of each of K features. Token ids have 0 and 1.

    Args:
        name: the data set.
        images: its training images, `[D, H, W, K]`, bytes or floats; or other inputs, `[D, ..., K]`.
        mean: one number, K numbers, or "own" for that of the images; None for the default.
        std: the standard deviation, likewise.

    Returns:
        K means and K standard deviations; the "own" deviation of a constant channel is 1.

    Raises:
        ValueError: the name is unknown, or numbers are not finite, not one for each channel, or, for `std`, not above
            0.

    Example:
        >>> from fedjax_bal import data
        >>> images = data.load("fashion_mnist_small").train_images
        >>> normalisation("fashion_mnist_small", images)
        ((0.1307,), (0.3081,))
        >>> (mean,), (std,) = normalisation("fashion_mnist_small", images, "own", "own")
        >>> round(mean, 4), round(std, 4)
        (0.2854, 0.3526)
    """
    reader = find_reader(name)
    asked = {"mean": mean, "std": std}
    published = {"mean": reader.mean or OWN, "std": reader.std or OWN}
    constants = []
    for position, (key, value) in enumerate(asked.items()):
        value = published[key] if value is None else value
        if isinstance(value, str) and value == OWN:  # on demand, since it reads all images
            value = compute_constants(images)[position]
        channels = num_channels(images)
        per_channel(f"data set {name}: {key}", value, channels, positive=key == "std", also=f"{OWN!r}, or ")
        constants.append(tuple(np.broadcast_to(np.asarray(value, np.float64), (channels,)).tolist()))
    return constants[0], constants[1]


def _read_with(reader: Reader, data_dir: str | os.PathLike | None, options: dict[str, Any]) -> Dataset:
    """Validates the options, and reads the user's own files or a set of the package."""
    name = reader.name
    taken = inspect.signature(reader.read).parameters
    if "path" in taken and not isinstance(options.get("path"), str | os.PathLike):
        raise ValueError(f"data set {name} needs its path, as in load({name!r}, path=...), received {sorted(options)}.")
    unknown = sorted(set(options) - set(taken))
    if unknown:
        near = suggestion(unknown[0], taken)
        takes = ", ".join(taken) or "no options"
        raise ValueError(f"data set {name} takes {takes}, received {unknown[0]!r}{f'; {near}' if near else '.'}")
    missing = [key for key, option in taken.items() if option.default is option.empty and key not in options]
    if missing:
        raise ValueError(f"data set {name} needs {', '.join(missing)}, as in load({name!r}, {missing[0]}=...).")
    if "path" not in taken:
        return reader.read(**options)
    path = Path(data_dir or "", options["path"])
    if reader.on_hub and not path.exists():
        return reader.read(**options)
    if not os.path.exists(path) and not Path(options["path"]).is_absolute():
        start = "the current folder, or from --data-dir where it is given"
        counts = "the folder given with --data-dir" if data_dir else start
        raise DataError(f"dataset.path: there is no {path}; a relative path counts from {counts}.")
    return reader.read(**options | {"path": path})
