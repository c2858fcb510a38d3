"""The cropped digits of SVHN, in MATLAB files of version 5, which can't execute code.

Such a file is a header of 128 bytes, then elements, each a tag of two 32-bit integers (type, bytes) and its content. An
array is an element of type 14 made of elements itself: flags, shape, name, values; or of type 15, which is one of type
14 compressed with zlib. Types are validated here: `scipy.io.loadmat` uses them as table indices without a check, and
crashes the process for some (seen with scipy 1.17).

Each file has images `X`, `[32, 32, 3, D]`, and labels `y`, `[D, 1]`, in which 10 stands for the digit 0. Headers are
checked before any pixel is unpacked. The file `extra_32x32.mat` is not used.

References:
    Netzer, Wang, Coates, Bissacco, Wu, Ng: Reading Digits in Natural Images with Unsupervised Feature Learning, 2011.
"""

import math
import os
import string
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedjax_bal.data.memory import check_images_fit, check_memory
from fedjax_bal.data.reading import find_folder, reading
from fedjax_bal.data.sources.reader import Reader, TfdsSets
from fedjax_bal.files import open_file
from fedjax_bal.types import Dataset

_DIGITS = tuple(string.digits)
_FOLDERS = ("svhn", "SVHN", "")
_FILES = ("train_32x32.mat", "test_32x32.mat")
_SHAPE = (32, 32, 3)
_REMEDY = "the file is damaged or none of SVHN's: fetch it again."
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_ARRAY = 14
_COMPRESSED = 15
_NAMES = ("X", "y")
_REAL_NUMBERS = range(6, 16)  # MATLAB's classes of arrays: the others hold text, cells, objects
_COMPLEX = 0x800
_LONGEST_HEADER = 1024  # of an array, in bytes


def read_digits(path: str | os.PathLike) -> tuple[np.ndarray, np.ndarray]:
    """Reads one of the files: images `UInt8[D, 32, 32, 3]` and labels `Int32[D]` in 0..9."""
    with reading(path, _REMEDY):
        arrays = _read_matlab(Path(path))
        images = arrays.get("X")
        labels = arrays.get("y")
        if images is None or images.shape[:-1] != _SHAPE or images.dtype != np.uint8 or not images.size:
            raise ValueError(f"expected images X of 32x32x3xD bytes, found {_shown(images)}")
        count = images.shape[-1]
        if labels is None or labels.shape not in ((count, 1), (1, count)):
            raise ValueError(f"expected {count} labels y, found {_shown(labels)}")
        outside = ~np.isin(labels, np.arange(1, 11))
        if outside.any():
            raise ValueError(f"label {labels[outside][0]}, expected 1..10 (10 for the digit 0)")
    check_images_fit(path, count, _SHAPE)  # images are copied once
    return np.ascontiguousarray(np.moveaxis(images, -1, 0)), labels.reshape(-1).astype(np.int32) % 10


def _read_matlab(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays X and y if they are real numbers, in the types in which they are stored.

    An array is unpacked only if its header agrees with the bytes that it can have. Damaged files raise errors of many
    kinds, to be caught by `reading`.
    """
    arrays = {}
    with open_file(path) as file:
        length = os.fstat(file.fileno()).st_size
        if file.read(128)[-4:] != b"\0\1IM":  # version and order of bytes
            raise ValueError("is not a MATLAB file of version 5; one of version 7.3 must be saved with version 5")
        while tag := file.read(8):
            kind, size = struct.unpack("<II", tag)
            content = file.read(min(size, length))  # read(n) allocates n bytes at once
            if kind in (_ARRAY, _COMPRESSED):
                name, values = _read_array(path, content, packed=kind == _COMPRESSED)
                arrays[name] = values
    return {name: values for name, values in arrays.items() if values is not None}


def _read_array(path: Path, content: bytes, *, packed: bool) -> tuple[str, np.ndarray | None]:
    """Returns the name and the values of an element; None for values that aren't real numbers or aren't needed."""
    stream = zlib.decompressobj()
    length = len(content)
    start = content
    if packed:  # the compressed content is a whole element, with its tag
        start = stream.decompress(content, _LONGEST_HEADER)
        length = struct.unpack_from("<II", start)[1] + 8
    parts = _parts(start, 8 if packed else 0)
    (_, at, _), (_, shape_at, shape_size), (_, name_at, name_size) = next(parts), next(parts), next(parts)
    (flags,) = struct.unpack_from("<I", start, at)
    name = start[name_at : name_at + name_size].decode("latin-1")
    if flags & 0xFF not in _REAL_NUMBERS or flags & _COMPLEX or name not in _NAMES:
        return name, None
    kind, begin, size = next(parts)
    if kind not in _TYPES:
        raise ValueError(f"an array of the unknown type {kind}")
    dtype = np.dtype(f"<{_TYPES[kind]}")
    shape = struct.unpack_from(f"<{shape_size // 4}I", start, shape_at)
    claimed = f"{'x'.join(map(str, shape))} of {dtype}"
    if size != math.prod(shape) * dtype.itemsize or not 0 <= length - begin - size <= 8:
        raise ValueError(f"an array's shape, {claimed}, is not that of its {size} bytes")
    if packed:
        check_memory(f"{path}: {claimed} need", length)
        content = start + stream.decompress(stream.unconsumed_tail, max(length - len(start), 1))
        if len(content) != length or stream.decompress(stream.unconsumed_tail, 1) or not stream.eof:  # or checksum
            raise ValueError(f"an element of other than {length} bytes")
    return name, np.frombuffer(content, dtype, math.prod(shape), begin).reshape(shape, order="F")


def _parts(content: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """Yields the elements of an array: type, first byte of the content, and number of its bytes."""
    while True:
        kind, size = struct.unpack_from("<II", content, at)
        if kind >> 16:  # at most four bytes: type and size share one integer
            yield kind & 0xFFFF, at + 4, kind >> 16
            at += 8
        else:
            yield kind, at + 8, size
            at += 8 + size + -size % 8


def _read_set(data_dir: Path) -> Dataset:
    train, test = _find_set(data_dir)
    return Dataset(*read_digits(train), *read_digits(test), _DIGITS)


def _find_set(data_dir: Path) -> list[Path]:
    remedy = (
        "put SVHN's two files of cropped digits (format 2) there, or pass the folder that holds them as --data-dir."
    )
    folder = find_folder("svhn", data_dir, _FOLDERS, _FILES, remedy)
    return [folder / file for file in _FILES]


def _shown(array: np.ndarray | None) -> str:
    return "nothing" if array is None else f"{'x'.join(map(str, array.shape))} of {array.dtype}"


READERS = (
    Reader(
        name="svhn",
        description=(
            "SVHN, cropped: 73,257 + 26,032 colour images 32x32 of house numbers' digits, 10 classes of unequal size"
        ),
        read=_read_set,
        find=_find_set,
        files=f"{' and '.join(_FILES)}, or svhn/ with them",
        home="http://ufldl.stanford.edu/housenumbers (format 2)",
        tfds=TfdsSets("svhn_cropped", "svhn_cropped"),
        image_shape=_SHAPE,
        class_names=_DIGITS,
        counts=(73_257, 26_032),
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
    ),
)
"""SVHN, normalised with its published constants."""
