"""What is known about a data set, and how its files are found and read: one record for each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from fedjax_bal.types import Dataset


class StoredImage(NamedTuple):
    """An image for TensorFlow Datasets to keep as it is.

    Attributes:
        content: of the image file.
        label: number of its class.
        client: whose it is; -1 where that isn't known.
    """

    content: bytes
    label: int
    client: int


class TfdsSets(NamedTuple):
    """How TensorFlow Datasets keeps a data set.

    Attributes:
        train: its name of the set with the training images; empty where there is none.
        test: its name of the set with the test images.
        published: whether it has the set; `build_for_tfds` writes the others.
        transposed: whether rows and columns of its images are swapped.
        stored: from the folder of the official files to the images of "train" and "test", where these are kept as they
            are, whatever their size, and are made square only when they are read; None where all have the set's size.
    """

    train: str = ""
    test: str = ""
    published: bool = True
    transposed: bool = False
    stored: Callable[[Path], Mapping[str, Iterable[StoredImage]]] | None = None


_NO_SETS = TfdsSets(published=False)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A data set: what it is, where its files come from, how they are found and read.

    Attributes:
        name: what a configuration calls it.
        description: one line for the list of data sets.
        read: official files: from the folder that the user names to the data set; those of the package: without an
            argument; the user's own: from `path`, a file or folder, and options of its own.
        origin: whose files these are.
        find: from the folder that the user names to the official files and folders that decide what is read; raises
            `MissingError` where there are none.
        files: which official files those are, in words.
        home: where the official files come from.
        tfds: how TensorFlow Datasets keeps the set.
        image_shape: `(H, W, K)`; empty where the files decide.
        class_names: C names, in the order of the labels; empty where the files decide.
        counts: how many images there are for training and for testing; empty where the files decide.
        mean: per-channel mean of the pixels scaled to [0, 1]; empty where it is that of the training images.
        std: per-channel standard deviation on the same scale; empty as well.
        clients: whether it says whose each training image is, so that there is a partition by writer or user.
    """

    name: str
    description: str
    read: Callable[..., Dataset]
    origin: Literal["official", "package", "own"] = "official"
    find: Callable[[Path], Sequence[Path]] = lambda _: ()
    files: str = ""
    home: str = ""
    tfds: TfdsSets = _NO_SETS
    image_shape: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    clients: bool = False

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_names)

    @property
    def is_buildable(self) -> bool:
        """Whether `build_for_tfds` writes it: not a set of TensorFlow Datasets', nor one read from another's folder."""
        return not self.tfds.published and self.tfds.train == self.name
