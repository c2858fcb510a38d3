"""All data sets by name. Each is declared in the file that reads it."""

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from fedjax_bal.data.readers import cifar, cinic10, embedded, idx, image_folder, inaturalist, leaf, npz, svhn
from fedjax_bal.data.readers.reader import Reader

DATASETS: Mapping[str, Reader] = MappingProxyType(
    {
        reader.name: reader
        for file in (embedded, idx, cifar, leaf, svhn, cinic10, inaturalist, npz, image_folder)
        for reader in file.READERS
    }
)
"""Name of each data set -> its reader, in the order of the lists that users see."""


def find_reader(name: str) -> Reader:
    """The reader of a data set.

    Args:
        name: what was received.

    Returns:
        Its reader.

    Raises:
        ValueError: there is no such data set; the message has the nearest name, or those that begin like that.
    """
    if name in DATASETS:
        return DATASETS[name]
    longer = [other for other in DATASETS if other.startswith(f"{name}_")]
    close = longer or difflib.get_close_matches(str(name), DATASETS, n=1)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise ValueError(f"no data set is called {name!r}; there are {', '.join(DATASETS)}.{hint}")
