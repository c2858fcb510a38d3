"""Checkpoints: npz files with a manifest of SHA-256 sums.

The two newest are kept: if the newest is damaged, the run resumes from the one before it.
"""

import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedjax_bal.files import open_file, replacing
from fedjax_bal.lab.errors import FolderError, disk_error

GENERATIONS = 2
OWNER = ".owner"
FINGERPRINT = ".fingerprint"
"""Names of the arrays that identify a checkpoint's run and data; their shapes never change."""

_NAME = re.compile(r"round-\d+\.npz")
_MANIFEST = "manifest.json"
_FORMAT = 1


class CheckpointError(FolderError):
    """A damaged checkpoint: its bytes differ from those that were saved."""


class StateError(FolderError):
    """An undamaged checkpoint that doesn't match: another format, or other array names, shapes or types."""


def save(folder: Path, round: int, tree: Any) -> Path:
    """Saves a pytree of arrays and numbers as the checkpoint of round `round`; deletes all but the newest checkpoints.

    The file appears under its name only once it is complete and on disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"round-{round:08d}.npz"
    with replacing(file) as stream:
        _write(stream, tree)
    # Kills leave temporary files, which would pile up.
    for old in [*generations(folder)[GENERATIONS:], *folder.glob(".round-*.part")]:
        old.unlink()
    return file


def read(file: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of a checkpoint by name; checks every byte and unpickles nothing.

    Raises:
        CheckpointError: the file is damaged.
        StateError: the file has another version's format.
        OSError: the file can't be read; its content may be intact.
    """
    try:
        with open_file(file) as stream, zipfile.ZipFile(stream) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            if manifest["format"] != _FORMAT:
                raise StateError(f"{file}: its format is {manifest['format']!r}, this version reads {_FORMAT}")
            arrays = {}
            for name, digest in manifest["sha256"].items():
                content = archive.read(name)
                if hashlib.sha256(content).hexdigest() != digest:
                    raise ValueError(f"the checksum of {name} is wrong")
                arrays[name.removesuffix(".npy")] = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
            return arrays
    except (StateError, MemoryError):
        raise
    except Exception as error:  # a flipped byte can make zipfile raise almost any error
        if fault := disk_error(error):
            raise fault from None
        raise CheckpointError(f"{file}: damaged ({error})") from error


def load(file: Path, template: Any) -> Any:
    """Reads a checkpoint into a pytree like the template. Raises the same errors as `read` and `fit`."""
    return fit(read(file), template)


def fit(arrays: Mapping[str, np.ndarray], template: Any) -> Any:
    """Arranges the arrays of a checkpoint in a pytree like the template; leaves are NumPy arrays.

    Args:
        arrays: the result of `read`.
        template: a pytree with the same structure whose leaves are arrays or their shapes.

    Raises:
        StateError: the names, shapes or types differ from the template's.
    """
    import jax  # late, as reports read run folders without it

    paths, structure = jax.tree_util.tree_flatten_with_path(template)
    wanted = {jax.tree_util.keystr(path): leaf for path, leaf in paths}
    if set(wanted) != set(arrays):
        odd = sorted(set(wanted) ^ set(arrays))[0]
        raise StateError(f"only one of them has {odd}")
    for name, leaf in wanted.items():
        saved, needed = (f"{_dtype(each).name}{list(np.shape(each))}" for each in (arrays[name], leaf))
        if saved != needed:
            raise StateError(f"{name} is {saved}, this program needs {needed}")
    return jax.tree_util.tree_unflatten(structure, [arrays[name] for name in wanted])


def _dtype(leaf: Any) -> np.dtype:
    """Returns the type of an array, or of a number of Python's, as a selector's state may have."""
    return np.dtype(leaf.dtype if hasattr(leaf, "dtype") else type(leaf))


def round_of(file: Path) -> int:
    """Reads the number of finished rounds from a checkpoint's name."""
    return int(file.stem.removeprefix("round-"))


def generations(folder: Path) -> list[Path]:
    """Lists the checkpoints in a folder, newest first.

    Raises `OSError` if the folder can't be read, where `glob` would find nothing.
    """
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((folder / name for name in names if _NAME.fullmatch(name)), key=round_of, reverse=True)


def _write(stream: IO[bytes], tree: Any) -> None:
    import jax

    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    members = {f"{jax.tree_util.keystr(path)}.npy": _npy(leaf) for path, leaf in leaves}
    sums = {}
    for name, pieces in members.items():
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        sums[name] = digest.hexdigest()
    with zipfile.ZipFile(stream, "w") as archive:
        # `ZipInfo` has a fixed date; the clock's could lie outside the range that an archive can store.
        archive.writestr(zipfile.ZipInfo(_MANIFEST), json.dumps({"format": _FORMAT, "sha256": sums}))
        for name, pieces in members.items():
            about = zipfile.ZipInfo(name)
            about.file_size = sum(map(len, pieces))  # sizes beyond 2 GB need another header
            with archive.open(about, "w") as member:
                for piece in pieces:
                    member.write(piece)


def _npy(leaf: Any) -> tuple[bytes, Any]:
    """Returns the header of an npy file and a view of the array's memory; states are too large to copy."""
    array = np.asarray(leaf, order="C")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return header.getvalue(), array.reshape(-1).view(np.uint8).data
