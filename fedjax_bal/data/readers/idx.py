"""Data sets in idx files: MNIST, Fashion-MNIST and the sets of EMNIST.

An idx file of bytes is: two zero bytes, the type code 0x08, the number of dimensions, each dimension as a big-endian
32-bit integer, then the values in row-major order. Nothing in the header is trusted: sizes are checked against what
the file can hold before anything of that size is allocated.

All are normalised with the constants of MNIST, as the papers do whose tables are reproduced here. Whether some of
EMNIST Balanced's test images are among ByMerge's training images, on which `emnist_astraea` trains, is not known.

References:
    LeCun, Cortes, Burges: The MNIST database of handwritten digits, section on file formats. Xiao, Rasul, Vollgraf:
    Fashion-MNIST, 2017. Cohen, Afshar, Tapson, van Schaik: EMNIST, 2017.
"""

import gzip
import math
import os
import string
import zlib
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from fedjax_bal.data.errors import DataError, MissingError
from fedjax_bal.data.readers.reader import Reader, TfdsSets
from fedjax_bal.files import open_file
from fedjax_bal.types import Dataset

MAX_BYTES = 2**31
"""Values that a file may claim; the largest relative of MNIST (EMNIST ByClass) has 0.64e9."""

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
"""The classes of Fashion-MNIST."""

MERGED_CHARACTERS = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")
"""The classes of EMNIST Balanced and ByMerge: small letters that look like their capitals are merged with them."""

CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
"""The classes of EMNIST ByClass and of FEMNIST."""

MNIST_CONSTANTS = {"mean": (0.1307,), "std": (0.3081,), "image_shape": (28, 28, 1)}
"""Mean, standard deviation and shape of the images of MNIST, which its relatives share."""

_CHUNK = 2**20
_MAX_DEFLATE_RATIO = 1032  # what deflate can reach at best: 258 bytes from 2 bits
_UNSIGNED_BYTE = 0x08
_AGAIN = "the file is incomplete or damaged: fetch it again."


def read_idx(path: str | os.PathLike, num_dims: int) -> np.ndarray:
    """Reads an idx file of unsigned bytes, plain or compressed with gzip.

    Whether it is compressed is told by its content, not by its name, because browsers unpack files without renaming
    them.

    Args:
        path: the file.
        num_dims: dimensions it must have: 3 for images, 1 for labels.

    Returns:
        `UInt8` array of the shape in the header.

    Raises:
        DataError: the file can't be opened, is no idx file of bytes with that many dimensions, or is longer or shorter
            than its header says.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "labels")
        ...     _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
        ...     read_idx(file, 1)
        array([7, 8, 9], dtype=uint8)
    """
    path = Path(path)
    try:
        with open_file(path) as file:
            if file.read(2) == b"\x1f\x8b":
                file.seek(0)
                capacity = os.fstat(file.fileno()).st_size * _MAX_DEFLATE_RATIO
                with gzip.GzipFile(fileobj=file) as stream:
                    return _parse(stream, path, num_dims, capacity)
            file.seek(0)
            return _parse(file, path, num_dims, os.fstat(file.fileno()).st_size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged gzip data ({error}); {_AGAIN}") from error
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror or error}); check the path and its rights.") from error


def read_labelled(
    images_path: str | os.PathLike,
    labels_path: str | os.PathLike,
    image_size: tuple[int, int] = (28, 28),
    num_classes: int = 10,
) -> tuple[np.ndarray, np.ndarray]:
    """Reads a file of grey images together with the file of their labels.

    Args:
        images_path: idx file of D images.
        labels_path: idx file of D labels.
        image_size: height and width that the images must have, in pixels.
        num_classes: C; labels must lie in 0..C-1.

    Returns:
        Images `UInt8[D, H, W, 1]` and labels `Int32[D]`.

    Raises:
        DataError: a file is damaged, the images have another size, the numbers of images and labels differ, there are
            none, or a label is out of range.
    """
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if images.shape[1:] != tuple(image_size):
        expected, found = "x".join(map(str, image_size)), "x".join(map(str, images.shape[1:]))
        raise DataError(f"{images_path}: expected images of {expected} pixels, found {found}; it is another data set.")
    if len(images) != len(labels) or not len(images):
        raise DataError(
            f"{images_path} holds {len(images)} images and {labels_path} holds {len(labels)} labels; there must be as "
            "many of both, and at least one: take both files from the same release and the same half (train or t10k)."
        )
    if labels.max() >= num_classes:
        at = int(np.argmax(labels >= num_classes))
        raise DataError(
            f"{labels_path}: label {labels[at]} at position {at}, expected 0..{num_classes - 1}; it is the label file "
            "of another data set, or damaged."
        )
    return images[..., None], labels.astype(np.int32)


def _parse(stream: IO[bytes] | gzip.GzipFile, path: Path, num_dims: int, capacity: int) -> np.ndarray:
    """Checks the header against what the file can hold (`capacity` bytes), then reads the values."""
    expected_magic = bytes([0, 0, _UNSIGNED_BYTE, num_dims])
    magic = _read_up_to(stream, 4)
    if magic != expected_magic:
        raise DataError(
            f"{path}: expected an idx file that begins with the bytes {expected_magic.hex(' ')} "
            f"({num_dims}-dimensional, unsigned bytes), found {magic.hex(' ') or 'nothing'}; check that images and "
            "labels are not swapped and that this is the file itself, not a web page."
        )
    header = _read_up_to(stream, 4 * num_dims)
    if len(header) < 4 * num_dims:
        raise DataError(f"{path}: expected a header of {4 + 4 * num_dims} bytes, found {4 + len(header)}; {_AGAIN}")
    shape = tuple(int(size) for size in np.frombuffer(header, ">u4"))
    count = math.prod(shape)
    if count > min(capacity, MAX_BYTES):
        raise DataError(
            f"{path}: its header claims {'x'.join(map(str, shape))} = {count} bytes, but the file can hold at most "
            f"{min(capacity, MAX_BYTES)}; {_AGAIN}"
        )
    values = _read_up_to(stream, count + 1)
    if len(values) != count:
        found = f"only {len(values)}" if len(values) < count else "more"
        raise DataError(f"{path}: its header says {'x'.join(map(str, shape))} = {count} bytes, found {found}; {_AGAIN}")
    return np.frombuffer(values, np.uint8).reshape(shape)


def _read_up_to(stream: IO[bytes] | gzip.GzipFile, count: int) -> bytearray:
    """Reads at most `count` bytes, a piece at a time: memory follows what is there, not what is asked for."""
    values = bytearray()
    while len(values) < count:
        piece = stream.read(min(_CHUNK, count - len(values)))
        if not piece:
            break
        values += piece
    return values


class IdxFiles(NamedTuple):
    """Where the four idx files of a data set lie and how they are called.

    Attributes:
        name: the data set.
        folders: where they may lie below the folder that the user names, in order.
        train: how the names of the files for training begin.
        test: how those for testing begin.
        transposed: whether pixels are stored column by column, with rows and columns swapped.
    """

    name: str
    folders: tuple[str, ...]
    train: str = "train"
    test: str = "t10k"
    transposed: bool = False

    @property
    def names(self) -> list[str]:
        """Images and labels for training, then those for testing."""
        return [f"{half}-{kind}-ubyte" for half in (self.train, self.test) for kind in ("images-idx3", "labels-idx1")]


def _read_set(files: IdxFiles, class_names: tuple[str, ...], data_dir: Path) -> Dataset:
    """Reads the four files; its images are upright."""
    train, train_labels, test, test_labels = _find_set(files, data_dir)
    images, labels = read_labelled(train, train_labels, num_classes=len(class_names))
    test_images, test_labels = read_labelled(test, test_labels, num_classes=len(class_names))
    if files.transposed:
        images, test_images = (np.ascontiguousarray(half.swapaxes(1, 2)) for half in (images, test_images))
    return Dataset(images, labels, test_images, test_labels, class_names)


def _find_set(files: IdxFiles, data_dir: Path) -> list[Path]:
    return [_find_file(files, data_dir, name) for name in files.names]


def _find_file(files: IdxFiles, data_dir: Path, name: str) -> Path:
    """The first existing spelling of an idx file; archives of the data sets in circulation use all of them."""
    spellings = [spelling + ending for spelling in (name, name.replace("-idx", ".idx")) for ending in ("", ".gz")]
    folders = [data_dir / folder for folder in files.folders]
    for folder in folders:
        for spelling in spellings:
            if (folder / spelling).is_file():
                return folder / spelling
    places = f"{', '.join(map(str, folders[:-1]))} and {folders[-1]}"
    raise MissingError(
        f"{files.name} was not found: looked for {', '.join(spellings)} in {places}; put the four "
        f"official files of {files.name} there, or pass the folder that holds them as --data-dir."
    )


def _reader(
    files: IdxFiles, description: str, class_names: tuple[str, ...], counts: tuple[int, int], home: str, tfds: TfdsSets
) -> Reader:
    return Reader(
        name=files.name,
        description=description,
        read=partial(_read_set, files, class_names),
        find=partial(_find_set, files),
        files=f"{', '.join(files.names)} (each may end in .gz), or {files.folders[0]}/ with them",
        home=home,
        tfds=tfds,
        class_names=class_names,
        counts=counts,
        **MNIST_CONSTANTS,
    )


def _mnist(name: str, description: str, class_names: tuple[str, ...], home: str) -> Reader:
    return _reader(IdxFiles(name, (name, "")), description, class_names, (60_000, 10_000), home, TfdsSets(name, name))


def _emnist(
    name: str, description: str, class_names: tuple[str, ...], counts: tuple[int, int], train: str, test: str
) -> Reader:
    files = IdxFiles(name, ("emnist", "gzip", name, ""), f"emnist-{train}-train", f"emnist-{test}-test", True)
    home = "https://www.nist.gov/itl/products-and-services/emnist-dataset (gzip.zip)"
    tfds = TfdsSets(f"emnist/{train}", f"emnist/{test}", transposed=True)
    return _reader(files, description, class_names, counts, home, tfds)


READERS = (
    _mnist(
        "fashion_mnist",
        "Fashion-MNIST: 60,000 + 10,000 grey images 28x28 of clothing, 10 classes",
        FASHION,
        "https://github.com/zalandoresearch/fashion-mnist",
    ),
    _mnist(
        "mnist",
        "MNIST: 60,000 + 10,000 grey images 28x28 of handwritten digits, 10 classes",
        tuple(string.digits),
        "http://yann.lecun.com/exdb/mnist",
    ),
    _emnist(
        "emnist_balanced",
        "EMNIST Balanced: 112,800 + 18,800 grey images 28x28 of digits and letters, 47 classes of equal size",
        MERGED_CHARACTERS,
        (112_800, 18_800),
        "balanced",
        "balanced",
    ),
    _emnist(
        "emnist_bymerge",
        "EMNIST ByMerge: 697,932 + 116,323 grey images 28x28 of digits and letters, 47 classes of unequal size",
        MERGED_CHARACTERS,
        (697_932, 116_323),
        "bymerge",
        "bymerge",
    ),
    _emnist(
        "emnist_byclass",
        "EMNIST ByClass: 697,932 + 116,323 grey images 28x28 of digits and letters, 62 classes of unequal size",
        CHARACTERS,
        (697_932, 116_323),
        "byclass",
        "byclass",
    ),
    _emnist(
        "emnist_astraea",
        "EMNIST ByMerge's training images, tested on Balanced's: 697,932 + 18,800 grey images 28x28, 47 classes",
        MERGED_CHARACTERS,
        (697_932, 18_800),
        "bymerge",
        "balanced",
    ),
)
"""The data sets that come as four idx files."""
