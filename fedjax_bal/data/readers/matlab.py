"""Arrays of numbers in MATLAB files of version 5, written on little-endian machines.

A file is a header of 128 bytes, then elements, each a tag of two 32-bit integers (type, bytes) and its content. An
array is an element of type 14 made of elements itself: flags, shape, name, values; or of type 15, which is one of type
14 compressed with zlib. Types are looked up here: `scipy.io.loadmat` takes them as places in a table without a check,
and ends the process for some (seen with scipy 1.17).

References:
    MathWorks: MAT-File Format.
"""

import math
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedjax_bal.data.memory import check_memory
from fedjax_bal.files import open_file

_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_ARRAY, _COMPRESSED = 14, 15
_REAL_NUMBERS = range(6, 16)  # classes of arrays: the others hold text, cells, objects
_COMPLEX = 0x800
_LONGEST_HEADER = 1024  # of an array, in bytes


def read_matlab(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Reads the arrays of real numbers that have one of these names; the types are those in which they are stored.

    An array is only unpacked once its header agrees with the bytes that it can have. Damaged files raise errors of many
    kinds, to be caught by `reading`.
    """
    found = {}
    with open_file(path) as file:
        length = os.fstat(file.fileno()).st_size
        if file.read(128)[-4:] != b"\0\1IM":  # version and order of bytes
            raise ValueError("is no MATLAB file of version 5; one of version 7.3 must be saved with version 5")
        while tag := file.read(8):
            kind, size = struct.unpack("<II", tag)
            content = file.read(min(size, length))  # read(n) allocates n bytes at once
            if kind in (_ARRAY, _COMPRESSED):
                name, values = _read_array(path, content, names, packed=kind == _COMPRESSED)
                found[name] = values
    return {name: values for name, values in found.items() if values is not None}


def _read_array(path: Path, content: bytes, names: Sequence[str], *, packed: bool) -> tuple[str, np.ndarray | None]:
    """The name and the values of an element; None unless they are real numbers and asked for."""
    stream = zlib.decompressobj()
    length = len(content)
    start = content
    if packed:  # what is compressed is a whole element, with its tag
        start = stream.decompress(content, _LONGEST_HEADER)
        length = struct.unpack_from("<II", start)[1] + 8
    parts = _parts(start, 8 if packed else 0)
    (_, at, _), (_, shape_at, shape_size), (_, name_at, name_size) = next(parts), next(parts), next(parts)
    (flags,) = struct.unpack_from("<I", start, at)
    name = start[name_at : name_at + name_size].decode("latin-1")
    if flags & 0xFF not in _REAL_NUMBERS or flags & _COMPLEX or name not in names:
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
        if len(content) != length or stream.decompress(stream.unconsumed_tail, 1) or not stream.eof:  # or its sum
            raise ValueError(f"an element of other than {length} bytes")
    return name, np.frombuffer(content, dtype, math.prod(shape), begin).reshape(shape, order="F")


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
