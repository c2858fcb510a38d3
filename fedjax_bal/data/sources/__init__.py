"""The data sets by name: one `Reader` record for each, in the module of its file format."""

from fedjax_bal.data.sources import (
    cifar,
    csv_file,
    embedded,
    huggingface,
    idx,
    images,
    inaturalist,
    leaf,
    medmnist,
    npz,
    svhn,
    synthetic,
)
from fedjax_bal.data.sources.reader import Reader
from fedjax_bal.registry import Registry
from fedjax_bal.validate import suggestion

_READERS = [
    reader
    for file in (embedded, npz, synthetic, idx, cifar, leaf, svhn, images, csv_file, inaturalist, medmnist, huggingface)
    for reader in file.READERS
]

DATASETS: Registry[Reader] = Registry(
    {reader.name: reader for reader in sorted(_READERS, key=lambda reader: reader.origin == "own")}
)
"""Name of each data set -> its reader, in the order in which lists show them."""


def find_reader(name: str) -> Reader:
    """Returns a data set's reader; the `ValueError` for an unknown name suggests the nearest ones."""
    if name in DATASETS:
        return DATASETS[name]
    near = suggestion(name, DATASETS)
    raise ValueError(
        f"no data set is called {name!r}; {near}{' ' if near else ''}`fedjax-bal list datasets` lists all of them"
    )
