"""Reader for idx files, the format of MNIST and its relatives.

An idx file of bytes is: two zero bytes, the type code 0x08, the number of dimensions, each dimension as a big-endian
32-bit integer, then the values in row-major order. Nothing in the header is trusted: sizes are checked against what
the file can hold before anything of that size is allocated.

References:
    LeCun, Cortes, Burges: The MNIST database of handwritten digits, section on file formats.
"""

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from fedjax_bal.data.errors import DataError
from fedjax_bal.files import open_file

MAX_BYTES = 2**31
"""Values that a file may claim; the largest relative of MNIST (EMNIST ByClass) has 0.64e9."""

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
