"""Reads the arrays of NumPy's npz files.

An npz file is a zip archive of arrays, with checksums. Nothing in it is unpickled. The sizes that the archive and the
header of an array claim must agree, and be possible for a file of its length, before NumPy allocates anything.
"""

import math
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_bal.data.memory import check_memory
from fedjax_bal.data.reading import MAX_DEFLATE_RATIO, reading
from fedjax_bal.files import open_file

_REMEDY = "write it again with numpy.savez. Pickles, also arrays of objects, can run any code and are never opened."
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_arrays(path: Path, names: Sequence[str] | None, limit: int | None = None) -> dict[str, np.ndarray]:
    """Reads the arrays of an npz file that have one of these names, or all arrays, by name.

    Raises `DataError` if the file is damaged, isn't written by NumPy, or holds a pickle, and for arrays that together
    have more than `limit` bytes, or don't fit in memory.
    """
    with reading(path, _REMEDY), open_file(path) as stream:
        if not zipfile.is_zipfile(stream):
            stream.seek(0)
            raise ValueError(f"is not an npz file, or was cut short: it begins with {stream.read(8)!r}")
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as archive:
            # Other members, such as the pickle in a PyTorch file, are not opened.
            members = {
                member.filename.removesuffix(".npy"): member
                for member in archive.zip.infolist()
                if member.filename.endswith(".npy")
            }
            wanted = [name for name in (members if names is None else names) if name in members]
            size = sum(members[name].file_size for name in wanted)
            most = os.fstat(stream.fileno()).st_size * MAX_DEFLATE_RATIO
            most = most if limit is None else min(most, limit)
            if size > most:
                raise ValueError(f"claims arrays of {size} bytes, at most {most} are read")
            check_memory(f"{path}: its arrays need", size)
            arrays = {}
            for name in wanted:
                with reading(f"{path}: {name}", _REMEDY):
                    with archive.zip.open(members[name]) as member:
                        shape, _, dtype = _HEADERS[np.lib.format.read_magic(member)](member)
                        held = members[name].file_size - member.tell()
                        claimed = math.prod(shape) * dtype.itemsize
                    if claimed != held and not dtype.hasobject:  # NumPy itself rejects objects
                        raise ValueError(f"its header claims {by(shape)} of {dtype}, {claimed} bytes, found {held}")
                    arrays[name] = archive[name]
            return arrays


def by(shape: tuple[int, ...]) -> str:
    """Returns a shape in the form 60000x28x28."""
    return "x".join(map(str, shape)) or "a single value"
