"""Arrays of numbers in MATLAB files of version 5, written on little-endian machines.

A file is a header of 128 bytes, then elements, each a tag of two 32-bit integers (type, bytes) and its content. An
array is an element of type 14 made of elements itself: flags, shape, name, values; or of type 15, which is one of type
14 compressed with zlib. Nothing in a tag is trusted, and types are looked up: `scipy.io.loadmat` takes them as places
in a table without a check, and ends the process for some (seen with scipy 1.17).

References:
    MathWorks: MAT-File Format.
"""

import math
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_bal.data.errors import DataError
from fedjax_bal.data.readers.untrusted import CHECK_PATH
from fedjax_bal.files import open_file

_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_ARRAY, _COMPRESSED = 14, 15
_LITTLE_ENDIAN_5 = b"\0\1IM"  # the end of the header: version and order of bytes
_REAL_NUMBERS = range(6, 16)  # classes of arrays: the others hold text, cells, objects
_COMPLEX = 0x800
_LONGEST_HEADER = 1024  # of an array, in bytes
_PADDING = 8
_REMEDY = "the file is damaged or none of MATLAB's: fetch it again."


class StoredArray(NamedTuple):
    """An array of real numbers, of which only the header was read.

    Attributes:
        path: the file.
        shape: its shape.
        dtype: the type of its values as they are stored, which may be smaller than MATLAB's for them.
        place: the byte of the file at which its element begins, after the tag.
        held: the bytes of that element.
        packed: whether that element is compressed.
        skipped: the bytes of the unpacked element before the values.
        length: the bytes of the unpacked element.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    place: int
    held: int
    packed: bool
    skipped: int
    length: int

    def read(self) -> np.ndarray:
        """Its values; raises `DataError` if they are cut short or damaged."""
        with open_file(self.path) as file:
            file.seek(self.place)
            content = file.read(min(self.held, os.fstat(file.fileno()).st_size))  # read(n) allocates n bytes at once
        try:
            content = _unpacked(content, self.length) if self.packed else content
            values = np.frombuffer(content, self.dtype, math.prod(self.shape), self.skipped)
        except (ValueError, zlib.error) as error:
            raise DataError(f"{self.path}: its arrays are cut short or damaged ({error}); {_REMEDY}") from error
        return values.reshape(self.shape, order="F")


def stored_arrays(path: Path) -> dict[str, StoredArray]:
    """Finds a file's arrays of real numbers, by name; raises `DataError` if it is no MATLAB file of version 5."""
    try:
        with open_file(path) as file:
            if file.read(128)[-4:] != _LITTLE_ENDIAN_5:
                raise ValueError("its header is none of version 5; one of version 7.3 must be saved with version 5")
            found = {}
            while tag := file.read(8):
                kind, held = struct.unpack("<II", tag)
                place = file.tell()
                start = file.read(min(held, _LONGEST_HEADER))
                if kind == _COMPRESSED:
                    start = zlib.decompressobj().decompress(start, _LONGEST_HEADER)
                if kind in (_ARRAY, _COMPRESSED):
                    found |= _array(start, path, (place, held, kind == _COMPRESSED))
                file.seek(place + held)
            return found
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror or error}); {CHECK_PATH}") from error
    except (ValueError, struct.error, zlib.error) as error:
        reason = "it ends within a header" if isinstance(error, struct.error) else error
        raise DataError(f"{path}: is no MATLAB file of version 5 that can be read ({reason}); {_REMEDY}") from error


def _array(start: bytes, path: Path, where: tuple[int, int, bool]) -> dict[str, StoredArray]:
    """The array of an element by its name, or nothing if it has no real numbers."""
    length, begin = where[1], 0
    if where[2]:  # what is compressed is a whole element, with its tag
        kind, length = struct.unpack_from("<II", start)
        length, begin = length + 8, 8
        if kind != _ARRAY:
            return {}
    parts = _parts(start, begin)
    (_, at, _), (_, shape_at, shape_size), (_, name_at, name_size) = next(parts), next(parts), next(parts)
    (flags,) = struct.unpack_from("<I", start, at)
    if flags & 0xFF not in _REAL_NUMBERS or flags & _COMPLEX:
        return {}
    kind, skipped, size = next(parts)
    shape = struct.unpack_from(f"<{shape_size // 4}I", start, shape_at)
    if kind not in _TYPES:
        raise ValueError(f"an array of the unknown type {kind}")
    dtype = np.dtype(f"<{_TYPES[kind]}")
    if size != math.prod(shape) * dtype.itemsize or not skipped + size <= length <= skipped + size + _PADDING:
        raise ValueError(f"an array's shape, {'x'.join(map(str, shape))} of {dtype}, is not that of its {size} bytes")
    name = start[name_at : name_at + name_size].decode("latin-1")
    return {name: StoredArray(path, shape, dtype, *where, skipped, length)}


def _parts(content: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """The elements of an array, each its type, the byte at which its content begins, and how many it has."""
    while True:
        kind, size = struct.unpack_from("<II", content, at)
        if kind >> 16:  # four bytes or fewer follow the halves of one integer
            yield kind & 0xFFFF, at + 4, kind >> 16
            at += 8
        else:
            yield kind, at + 8, size
            at += 8 + size + -size % 8


def _unpacked(packed: bytes, length: int) -> bytes:
    """Decompresses an element of a known length, no more; raises `ValueError` if it has another."""
    stream = zlib.decompressobj()
    content = stream.decompress(packed, length)
    more = stream.decompress(stream.unconsumed_tail, 1)  # reaching the end compares the checksum
    if len(content) != length or more or not stream.eof:
        raise ValueError(f"an element of other than {length} bytes")
    return content
