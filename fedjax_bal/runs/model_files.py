"""Trained models as files for other programs: npz, safetensors and Orbax, each with a text that says what it holds."""

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_bal.files import write_atomically
from fedjax_bal.runs.output_files import FolderError

Tensors = Mapping[str, np.ndarray]


def _npz(file: Path, tensors: Tensors, about: str) -> None:
    content = io.BytesIO()
    np.savez(content, about=np.array(about), **tensors)  # type: ignore[arg-type]
    write_atomically(file, content.getvalue())


def _safetensors(file: Path, tensors: Tensors, about: str) -> None:
    # Written by hand: the format is a length, a JSON object and the arrays' bytes, and is read by libraries of all
    # frameworks, so that nobody should have to install one in order to write it.
    header: dict[str, Any] = {"__metadata__": {"about": about}}
    end = 0
    for name, array in tensors.items():
        begin, end = end, end + array.nbytes
        dtype = f"{array.dtype.kind.upper()}{8 * array.itemsize}"  # F32, I32, U8
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the arrays are aligned
    parts = [array.astype(array.dtype.newbyteorder("<")).tobytes() for array in tensors.values()]
    write_atomically(file, b"".join([len(text).to_bytes(8, "little"), text, *parts]))


def _orbax(folder: Path, tensors: Tensors, about: str) -> None:
    try:
        import orbax.checkpoint as orbax
    except ImportError as error:
        raise FolderError("format: orbax needs a library: pip install orbax-checkpoint") from error
    if folder.exists():  # which Orbax could only replace by removing all that it holds
        raise FolderError(f"{folder}: is there already; choose another folder with --out")
    items = orbax.args.Composite(
        variables=orbax.args.StandardSave(_nested(tensors)), about=orbax.args.JsonSave(json.loads(about))
    )
    with orbax.Checkpointer(orbax.CompositeCheckpointHandler()) as writer:
        writer.save(folder.resolve(), items)


def _nested(tensors: Tensors) -> dict[str, Any]:
    """The tensors in dicts of dicts, as their names say."""
    tree: dict[str, Any] = {}
    for name, array in tensors.items():
        *outer, last = name.split("/")
        inner = tree
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = array
    return tree


MODEL_FORMATS: Mapping[str, Callable[[Path, Tensors, str], None]] = {
    "npz": _npz,
    "safetensors": _safetensors,
    "orbax": _orbax,
}
"""Functions that write a model, by format, from the file (Orbax: a new folder), arrays by name such as
`params/head/dense/kernel`, and a JSON text about them."""
