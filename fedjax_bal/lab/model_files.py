"""The formats of model files for other programs, each with a JSON description of its content."""

import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.files import open_file, read_npz, write_atomically
from fedjax_bal.lab.errors import FolderError

Tensors = Mapping[str, np.ndarray]
_ABOUT = "about"
PROGRAM = "program"
"""The name of an exported program's bytes."""


def _npz(file: Path, tensors: Tensors, about: str) -> None:
    content = io.BytesIO()
    np.savez(content, about=np.array(about), **tensors)  # type: ignore[arg-type]
    write_atomically(file, content.getvalue())


def _read_npz(file: Path) -> tuple[Tensors, Any]:
    tensors = read_npz(file)
    return tensors, json.loads(str(tensors.pop(_ABOUT, "{}")))


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
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(min(length, os.fstat(stream.fileno()).st_size)))
        about = json.loads(header.pop("__metadata__", {}).get(_ABOUT, "{}"))
        tensors = {}
        for name, entry in header.items():
            if entry["dtype"] == "BF16":  # no type of NumPy's
                raise ValueError(f"{name} is of type BF16; save it as F32")
            dtype = np.dtype(f"<{entry['dtype'][0].lower()}{int(entry['dtype'][1:]) // 8}")
            first, last = entry["data_offsets"]
            stream.seek(8 + length + first)
            tensors[name] = np.frombuffer(stream.read(last - first), dtype).reshape(entry["shape"])
    return tensors, about


def _orbax(folder: Path, tensors: Tensors, about: str) -> None:
    from flax.traverse_util import unflatten_dict

    try:
        import orbax.checkpoint as orbax
    except ImportError as error:
        raise FolderError("format: orbax needs a library: pip install orbax-checkpoint") from error
    if os.path.lexists(folder):  # Orbax could only replace it by deleting everything in it
        raise FolderError(f"{folder}: already exists; choose another folder with --out")
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
