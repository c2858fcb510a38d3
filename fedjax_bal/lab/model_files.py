"""The formats of model files for other programs, each with a JSON description of its content."""

import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.files import open_file, parse_json, write_atomically
from fedjax_bal.lab.output_files import FolderError

Tensors = Mapping[str, np.ndarray]
_ABOUT = "about"
PROGRAM = "program"
SUMS = "sha256"
"""Names of an exported program's bytes, and of the checksums in the description."""

_LONGEST_HEADER = 2**27  # bytes, as in the safetensors library


def write_model(kind: str, file: Path, tensors: Tensors, about: Mapping[str, Any]) -> None:
    """Writes a model and its description, to which the checksums of all arrays and of the description are added."""
    sums = model_sums(tensors, about)
    MODEL_FORMATS[kind].write(file, tensors, json.dumps({**about, SUMS: sums}, indent=1))


def model_sums(tensors: Tensors, about: Mapping[str, Any]) -> dict[str, str]:
    """Returns SHA-256 checksums: of each array's type, shape and little-endian bytes, and of the JSON description."""
    text = json.dumps({key: value for key, value in about.items() if key != SUMS})
    return {_ABOUT: hashlib.sha256(text.encode()).hexdigest(), **{name: _sum(array) for name, array in tensors.items()}}


def _sum(array: np.ndarray) -> str:
    little = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    digest = hashlib.sha256(f"{little.dtype.name} {list(little.shape)} ".encode())
    digest.update(little.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _npz(file: Path, tensors: Tensors, about: str) -> None:
    content = io.BytesIO()
    np.savez(content, about=np.array(about), **tensors)  # type: ignore[arg-type]
    write_atomically(file, content.getvalue())


def _read_npz(file: Path) -> tuple[Tensors, Any]:
    from fedjax_bal.data import read_arrays  # imported here, because few commands read models

    tensors = read_arrays(file, None)
    return tensors, parse_json(str(tensors.pop(_ABOUT, "{}")))


def _safetensors(file: Path, tensors: Tensors, about: str) -> None:
    # Written by hand, so that users needn't install the library: the format is only a length, a JSON object and the
    # arrays' bytes.
    header: dict[str, Any] = {"__metadata__": {"about": about}}
    end = 0
    for name, array in tensors.items():
        begin = end
        end = end + array.nbytes
        dtype = f"{array.dtype.kind.upper()}{8 * array.itemsize}"  # F32, I32, U8
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligns the arrays
    parts = [array.astype(array.dtype.newbyteorder("<")).tobytes() for array in tensors.values()]
    write_atomically(file, b"".join([len(text).to_bytes(8, "little"), text, *parts]))


def _read_safetensors(file: Path) -> tuple[Tensors, Any]:
    with open_file(file) as stream:
        length = os.fstat(stream.fileno()).st_size
        start = stream.read(8)
        begin = 8 + int.from_bytes(start, "little")
        if begin > min(length, _LONGEST_HEADER):
            raise ValueError(f"its header would have {begin} bytes")
        header = parse_json(stream.read(begin - 8))
        tensors = {}
        about = parse_json(header.pop("__metadata__", {}).get(_ABOUT, "{}"))
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if begin + end != length:
            raise ValueError(f"{length} bytes, of which the header knows {begin + end}")
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            if entry["dtype"] == "BF16":  # no type of NumPy's
                raise ValueError(f"{name} is of type BF16; save it as F32")
            dtype = np.dtype(f"<{entry['dtype'][0].lower()}{int(entry['dtype'][1:]) // 8}")
            if last - first != dtype.itemsize * math.prod(entry["shape"]):
                raise ValueError(f"{name} has {last - first} bytes")
            # Memory-mapped, so that a model takes no memory until its arrays are used.
            empty = np.zeros(entry["shape"], dtype)
            mapped = last > first
            tensors[name] = np.memmap(stream, dtype, "r", begin + first, tuple(entry["shape"])) if mapped else empty
    return tensors, about


def _orbax(folder: Path, tensors: Tensors, about: str) -> None:
    from flax.traverse_util import unflatten_dict

    try:
        import orbax.checkpoint as orbax
    except ImportError as error:
        raise FolderError("format: orbax needs a library: pip install orbax-checkpoint") from error
    if os.path.lexists(folder):  # Orbax could only replace it by deleting everything in it
        raise FolderError(f"{folder}: is there already; choose another folder with --out")
    items = orbax.args.Composite(
        variables=orbax.args.StandardSave(unflatten_dict(tensors, sep="/")),
        about=orbax.args.JsonSave(json.loads(about)),
    )
    with orbax.Checkpointer(orbax.CompositeCheckpointHandler()) as writer:
        writer.save(folder.resolve(), items)


def _read_orbax(folder: Path) -> tuple[Tensors, Any]:
    import orbax.checkpoint as orbax
    from flax.traverse_util import flatten_dict

    items = orbax.args.Composite(variables=orbax.args.StandardRestore(), about=orbax.args.JsonRestore())
    with orbax.Checkpointer(orbax.CompositeCheckpointHandler()) as reader:
        found = reader.restore(folder.resolve(), items)
    tensors = flatten_dict(found["variables"], sep="/")
    return {name: np.asarray(array) for name, array in tensors.items()}, found[_ABOUT]


class ModelFormat(NamedTuple):
    """A format of models.

    Attributes:
        write: writes the file (Orbax: a new folder) from arrays by name such as `params/head/dense/kernel`, and a JSON
            text that describes them.
        read: reads both; raises any kind of exception if they are damaged.
    """

    write: Callable[[Path, Tensors, str], None]
    read: Callable[[Path], tuple[Tensors, Any]]


MODEL_FORMATS: Mapping[str, ModelFormat] = {
    "npz": ModelFormat(_npz, _read_npz),
    "safetensors": ModelFormat(_safetensors, _read_safetensors),
    "orbax": ModelFormat(_orbax, _read_orbax),
    "stablehlo": ModelFormat(_npz, _read_npz),  # the bytes of a program, in place of weights
}
"""The formats by name; the names are also the file extensions."""
