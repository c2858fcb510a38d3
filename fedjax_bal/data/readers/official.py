"""The official files of each data set: where they come from, how they are found and read."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedjax_bal.data.catalogue import DATASETS
from fedjax_bal.data.readers import cifar, grey, svhn
from fedjax_bal.data.readers.cinic10 import find_cinic10, read_cinic10
from fedjax_bal.data.readers.inaturalist import HALVES, find_inaturalist, read_inaturalist
from fedjax_bal.data.readers.leaf import find_femnist, read_femnist
from fedjax_bal.types import Dataset


class Official(NamedTuple):
    """The official files of a data set.

    Attributes:
        wanted: which files those are, in words.
        home: where they come from.
        find: from the folder that the user names to the files and folders that decide what is read; raises `DataError`
            where some are missing.
        read: from that folder to the data set.
    """

    wanted: str
    home: str
    find: Callable[[Path], list[Path]]
    read: Callable[[Path], Dataset]


def _dataset(name: str, arrays: Sequence[Any]) -> Dataset:
    """Images and labels of both halves, and perhaps whose the training images are."""
    images, labels, test_images, test_labels, *clients = arrays
    names = DATASETS[name].class_names
    return Dataset(images, labels, test_images, test_labels, names, clients[0] if clients else None)


def _grey(name: str, home: str) -> Official:
    return Official(
        grey.expected_files(name),
        home,
        lambda folder: grey.find_grey(name, folder),
        lambda folder: _dataset(name, grey.read_grey(name, folder)),
    )


def _cifar(name: str) -> Official:
    layout = cifar.LAYOUTS[name]
    files = (*layout.train, layout.test)
    return Official(
        f"{', '.join(files)} (unpacked from {layout.archive}), or {layout.folder}/ with them",
        "https://www.cs.toronto.edu/~kriz/cifar.html (binary version)",
        lambda folder: [cifar.find_cifar(name, folder) / file for file in files],
        lambda folder: _dataset(name, cifar.read_cifar(name, folder)),
    )


def _cinic10() -> Official:
    names = DATASETS["cinic10"].class_names
    halves = lambda folder: [find_cinic10(folder) / half for half in ("train", "test")]
    return Official(
        "train/ and test/ (unpacked from CINIC-10.tar.gz), or cinic10/ or CINIC-10/ with them",
        "https://datashare.ed.ac.uk/handle/10283/3192",
        lambda folder: [path for half in halves(folder) for path in (half, *(half / name for name in names))],
        lambda folder: _dataset("cinic10", read_cinic10(folder, names)),
    )


def _inaturalist(name: str) -> Official:
    side = DATASETS[name].image_shape[0]
    return Official(
        "train2019.json, val2019.json and train_val2019/ (unpacked from the archives of these names), or "
        "inaturalist2019/ with them",
        "https://github.com/visipedia/inat_comp/tree/master/2019",
        lambda folder: [find_inaturalist(folder) / half for half in HALVES],
        lambda folder: _dataset(name, read_inaturalist(folder, side)),
    )


def _femnist() -> Official:
    return Official(
        "train/*.json and test/*.json or all_data/all_data_*.json (written by LEAF's data/femnist/preprocess.sh), or "
        "femnist/ or femnist/data/ with them",
        "https://github.com/TalwalkarLab/leaf",
        lambda folder: [path for half in find_femnist(folder) for path in half],
        lambda folder: _dataset("femnist", read_femnist(folder)),
    )


def _svhn() -> Official:
    return Official(
        f"{' and '.join(svhn.FILES)}, or svhn/ with them",
        "http://ufldl.stanford.edu/housenumbers (format 2)",
        lambda folder: list(svhn.find_svhn(folder)),
        lambda folder: _dataset("svhn", svhn.read_svhn(folder)),
    )


_EMNIST_HOME = "https://www.nist.gov/itl/products-and-services/emnist-dataset (gzip.zip)"

OFFICIAL = MappingProxyType(
    {
        "fashion_mnist": _grey("fashion_mnist", "https://github.com/zalandoresearch/fashion-mnist"),
        "mnist": _grey("mnist", "http://yann.lecun.com/exdb/mnist"),
        **{name: _grey(name, _EMNIST_HOME) for name in grey.EMNIST},
        **{name: _cifar(name) for name in cifar.LAYOUTS},
        "svhn": _svhn(),
        "femnist": _femnist(),
        "cinic10": _cinic10(),
        **{name: _inaturalist(name) for name in ("inaturalist2019", "inaturalist2019_32")},
    }
)
"""Name of each data set that has official files -> those."""
