"""The record of a data set: its description, and functions that find and read its files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from fedjax_bal.annotations import Field, parameters
from fedjax_bal.types import Dataset


class TfdsSets(NamedTuple):
    """A data set in TensorFlow Datasets.

    Attributes:
        train: the name of the set with the training images, and of its configuration: "emnist/balanced".
        test: the name of the set with the test images.
        transposed: whether rows and columns of images are swapped.
    """

    train: str
    test: str
    transposed: bool = False


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A data set: its description, the source of its files, and functions that find and read them.

    Attributes:
        name: its name in configurations.
        description: one line for the list of data sets.
        read: the function that reads the data set: for official files, from the folder that the user names; for others
            from options, such as `path`, the user's own file or folder; none for files of the package.
        origin: the owner of the files: the data set's publishers, this package, or the user.
        find: the function from the folder that the user names to the official files and folders that decide what is
            read; raises `MissingError` if none are found.
        files: the official files, in words.
        home: the source of the official files.
        tfds: the set in TensorFlow Datasets; None if it doesn't have it.
        image_shape: `(H, W, K)`, or `(F,)` for a table; empty if the files decide.
        class_names: C names, in the order of the labels; empty if the files decide.
        counts: numbers of training and test images; empty if the files decide.
        mean: per-channel mean of the pixels scaled to [0, 1]; empty for that of the training images.
        std: per-channel standard deviation on the same scale; empty for that of the training images.
        clients: whether every training image has a known writer or user, which gives a natural partition.
        on_hub: whether `path` may also be the name of a data set on huggingface.co.
    """

    name: str
    description: str
    read: Callable[..., Dataset]
    origin: Literal["official", "package", "own"] = "official"
    find: Callable[[Path], Sequence[Path]] = lambda _: ()
    files: str = ""
    home: str = ""
    tfds: TfdsSets | None = None
    image_shape: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    clients: bool = False
    on_hub: bool = False

    @property
    def options(self) -> dict[str, Field]:
        """The options that it is read with, type and default by name."""
        return {} if self.origin == "official" else parameters(self.read)

    @property
    def num_classes(self) -> int:
        """The number of classes, C."""
        return len(self.class_names)
