"""Data sets in idx files: MNIST, Fashion-MNIST and the sets of EMNIST.

An idx file of bytes is: two zero bytes, the type code 0x08, the number of dimensions, each dimension as a big-endian
32-bit integer, then the values in row-major order.

All are normalised with the constants of MNIST, as in the papers whose tables are reproduced here. It is not known
whether ByMerge's training images, on which `emnist_astraea` trains, include test images of EMNIST Balanced.

References:
    LeCun, Cortes, Burges: The MNIST database of handwritten digits, section on file formats. Xiao, Rasul, Vollgraf:
    Fashion-MNIST, 2017. Cohen, Afshar, Tapson, van Schaik: EMNIST, 2017.
"""

import gzip
import math
import os
import string
from functools import partial
from pathlib import Path

import numpy as np

from fedjax_bal.data.reading import DataError, MissingError, reading
from fedjax_bal.data.sources.reader import Reader, TfdsSets
from fedjax_bal.files import open_file
from fedjax_bal.types import Dataset

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
"""The classes of Fashion-MNIST."""

MERGED_CHARACTERS = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")
"""The classes of EMNIST Balanced and ByMerge, which merge small letters with capitals that look like them."""

CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
"""The classes of EMNIST ByClass and of FEMNIST."""

MNIST_CONSTANTS = {"mean": (0.1307,), "std": (0.3081,), "image_shape": (28, 28, 1)}
"""Mean, standard deviation and shape of MNIST's images, used for all similar sets."""


def read_idx(path: str | os.PathLike, num_dims: int) -> np.ndarray:
    """Reads an idx file of unsigned bytes with 3 dimensions (images) or 1 (labels), plain or compressed with gzip."""
    magic = bytes([0, 0, 8, num_dims])  # 8 stands for unsigned bytes
    with reading(path), open_file(path) as file:
        content = file.read()
        if content.startswith(b"\x1f\x8b"):  # not from the name: browsers unpack files without renaming them
            content = gzip.decompress(content)
        header = content[: 4 + 4 * num_dims]
        if header[:4] != magic or len(header) < 4 + 4 * num_dims:
            raise ValueError(
                f"expected an idx file that begins with the bytes {magic.hex(' ')} ({num_dims}-dimensional, unsigned "
                f"bytes) and {num_dims} sizes, found {header.hex(' ') or 'nothing'}; check that images and labels are "
                "not swapped and that this is the file itself, not a web page"
            )
        shape = np.frombuffer(header, ">u4", offset=4).tolist()
        count = math.prod(shape)
        found = len(content) - len(header)
        if found != count:
            raise ValueError(f"its header says {'x'.join(map(str, shape))} = {count} bytes, found {found}")
        return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape).copy()


def read_labelled(
    images_path: str | os.PathLike,
    labels_path: str | os.PathLike,
    image_size: tuple[int, int] = (28, 28),
    num_classes: int = 10,
) -> tuple[np.ndarray, np.ndarray]:
    """Reads a file of grey images and the file of their labels: `UInt8[D, H, W, 1]` and `Int32[D]`, below C."""
    images = read_idx(images_path, 3)
    labels = read_idx(labels_path, 1)
    if images.shape[1:] != image_size:
        size = "x".join(map(str, images.shape[1:]))
        raise DataError(
            f"{images_path}: expected images of {'x'.join(map(str, image_size))} pixels, found {size}; it is another "
            "data set."
        )
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


def _find_set(name: str, folders: tuple[str, ...], files: list[str], data_dir: Path) -> list[Path]:
    """Finds the four files, all in one folder, since other data sets have files of the same names."""
    for folder in (data_dir / folder for folder in folders):
        paths = []
        for file in files:
            # Names in use: with a dash or a dot, plain or compressed.
            spellings = [folder / (stem + end) for stem in (file, file.replace("-idx", ".idx")) for end in ("", ".gz")]
            paths += [path for path in spellings if path.is_file()][:1]
        if len(paths) == len(files):
            return paths
    places = ", ".join(str(data_dir / folder) for folder in folders)
    raise MissingError(
        f"{name} was not found: looked for {', '.join(files)} (each may end in .gz) in {places}; put the four official "
        "files in one of these folders, or pass the folder that holds them as --data-dir."
    )


def _reader(
    name: str,
    description: str,
    class_names: tuple[str, ...],
    home: str,
    counts: tuple[int, int] = (60_000, 10_000),
    folders: tuple[str, ...] = (),
    halves: tuple[str, str] = ("train", "t10k"),
    tfds: TfdsSets | None = None,
) -> Reader:
    files = [f"{half}-{kind}-ubyte" for half in halves for kind in ("images-idx3", "labels-idx1")]
    tfds = tfds or TfdsSets(name, name)
    find = partial(_find_set, name, (*folders, name, ""), files)

    def read(data_dir: Path) -> Dataset:
        train, train_labels, test, test_labels = find(data_dir)
        arrays = (
            *read_labelled(train, train_labels, num_classes=len(class_names)),
            *read_labelled(test, test_labels, num_classes=len(class_names)),
        )
        if tfds.transposed:  # pixels are stored column by column
            arrays = [np.ascontiguousarray(array.swapaxes(1, 2)) if array.ndim > 1 else array for array in arrays]
        return Dataset(*arrays, class_names)

    return Reader(
        name=name,
        description=description,
        read=read,
        find=find,
        files=f"{', '.join(files)} (each may end in .gz), or {(*folders, name)[0]}/ with them",
        home=home,
        tfds=tfds,
        class_names=class_names,
        counts=counts,
        **MNIST_CONSTANTS,
    )


def _emnist(name: str, train: str, test: str, description: str) -> Reader:
    counts = {"balanced": (112_800, 18_800), "bymerge": (697_932, 116_323), "byclass": (697_932, 116_323)}
    return _reader(
        name,
        description,
        CHARACTERS if train == "byclass" else MERGED_CHARACTERS,
        "https://www.nist.gov/itl/products-and-services/emnist-dataset (gzip.zip)",
        (counts[train][0], counts[test][1]),
        ("emnist", "gzip"),
        (f"emnist-{train}-train", f"emnist-{test}-test"),
        TfdsSets(f"emnist/{train}", f"emnist/{test}", transposed=True),
    )


READERS = (
    _reader(
        "fashion_mnist",
        "Fashion-MNIST: 60,000 + 10,000 grey images 28x28 of clothing, 10 classes",
        FASHION,
        "https://github.com/zalandoresearch/fashion-mnist",
    ),
    _reader(
        "mnist",
        "MNIST: 60,000 + 10,000 grey images 28x28 of handwritten digits, 10 classes",
        tuple(string.digits),
        "http://yann.lecun.com/exdb/mnist",
    ),
    _emnist(
        "emnist_balanced",
        "balanced",
        "balanced",
        "EMNIST Balanced: 112,800 + 18,800 grey images 28x28 of digits and letters, 47 classes of equal size",
    ),
    _emnist(
        "emnist_bymerge",
        "bymerge",
        "bymerge",
        "EMNIST ByMerge: 697,932 + 116,323 grey images 28x28 of digits and letters, 47 classes of unequal size",
    ),
    _emnist(
        "emnist_byclass",
        "byclass",
        "byclass",
        "EMNIST ByClass: 697,932 + 116,323 grey images 28x28 of digits and letters, 62 classes of unequal size",
    ),
    _emnist(
        "emnist_astraea",
        "bymerge",
        "balanced",
        "EMNIST ByMerge's training images, tested on Balanced's: 697,932 + 18,800 grey images 28x28, 47 classes",
    ),
)
"""The data sets that consist of four idx files."""
