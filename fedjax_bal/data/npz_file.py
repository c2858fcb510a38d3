"""Reads the arrays of NumPy's npz files: zip archives of arrays, with checksums, of which nothing is unpickled."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_bal.data.memory import check_memory
from fedjax_bal.data.reading import reading
from fedjax_bal.files import open_file

_REMEDY = "write it again with numpy.savez. Pickles, also arrays of objects, can run any code and are never opened."


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
        with zipfile.ZipFile(stream) as archive:
            # Other members, such as the pickle in a PyTorch file, are not opened.
            sizes = {
                member.filename.removesuffix(".npy"): member.file_size
                for member in archive.infolist()
                if member.filename.endswith(".npy")
            }
            wanted = [name for name in (sizes if names is None else names) if name in sizes]
            size = sum(sizes[name] for name in wanted)
            if limit is not None and size > limit:
                raise ValueError(f"claims arrays of {size} bytes, at most {limit} are read")
            check_memory(f"{path}: its arrays need", size)
            arrays = {}
            for name in wanted:
                with reading(f"{path}: {name}", _REMEDY), archive.open(f"{name}.npy") as member:
                    arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
                    if member.read(1):  # reading to the end verifies the checksum
                        raise ValueError(f"holds more than its header's {by(arrays[name].shape)}")
            return arrays


def by(shape: tuple[int, ...]) -> str:
    """Returns a shape in the form 60000x28x28."""
    return "x".join(map(str, shape)) or "a single value"
