"""What lies in the folder that a user names: official files of a data set, or what TensorFlow Datasets prepared."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedjax_bal.data.errors import DataError
from fedjax_bal.data.readers.official import OFFICIAL
from fedjax_bal.data.readers.tfds import find_tfds, read_tfds
from fedjax_bal.types import Dataset


class FoundFiles(NamedTuple):
    """Files of a data set.

    Attributes:
        kind: what they are, in words.
        places: the files and folders that decide what is read.
        read: reads them.
    """

    kind: str
    places: tuple[Path, ...]
    read: Callable[[], Dataset]


def find(name: str, data_dir: Path) -> FoundFiles:
    """Looks for a data set.

    Args:
        name: a data set with official files.
        data_dir: an existing folder.

    Returns:
        Its official files, or else the folder that TensorFlow Datasets has prepared.

    Raises:
        DataError: neither is there; the message says what was looked for.
    """
    official = OFFICIAL[name]
    try:
        return FoundFiles("official files", tuple(official.find(data_dir)), lambda: official.read(data_dir))
    except DataError:
        folders = find_tfds(name, data_dir)
        if folders is None:
            raise
    places = sorted({file for folder in folders for file in folder.iterdir()})
    return FoundFiles("TensorFlow Datasets' folder", tuple(places), lambda: read_tfds(name, folders))
