"""Checkpoints: npz files with a manifest of SHA-256 sums, two generations kept, so that a kill leaves a whole one."""

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedjax_bal.config import Config, run_digest
from fedjax_bal.files import open_file, replacing

GENERATIONS = 2
OWNER = ".owner"
FINGERPRINT = ".fingerprint"
"""The names of the arrays that say whose a checkpoint is, and on which data; their shapes never change."""

_NAME = re.compile(r"round-\d{1,19}\.npz")
_MANIFEST = "manifest.json"
_FORMAT = 1


class CheckpointError(ValueError):
    """A checkpoint that is damaged: its bytes are not those that were saved."""


class StateError(ValueError):
    """A whole checkpoint of another state: of another format, or with other names, shapes or types of arrays."""


def save(folder: Path, round: int, tree: Any) -> Path:
    """Writes a checkpoint, a pytree of arrays and numbers, `round` rounds done; drops all but the newest generations.

    The file appears under its name only once it is complete and on disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"round-{round:08d}.npz"
    with replacing(file) as stream:
        _write(stream, tree)
    # Interrupted saves leave temporary files, which must not pile up.
    for old in [*generations(folder)[GENERATIONS:], *folder.glob(".round-*.part")]:
        old.unlink()
    return file


def read(file: Path | IO[bytes]) -> dict[str, np.ndarray]:
    """Reads the arrays of a checkpoint by name, checks every byte of it, and unpickles nothing.

    Raises:
        CheckpointError: the file is damaged.
        StateError: its format is another version's.
        OSError: it can't be read, which says nothing about its content.
    """
    return dict(_members(file))


def load(file: Path | IO[bytes], template: Any) -> Any:
    """Reads a checkpoint as a pytree like the template; raises what `read` and `fit` raise."""
    return fit(read(file), template)


def fit(
    arrays: Mapping[str, np.ndarray], template: Any, restore: Callable[[Any, Any], Any] = lambda tree, template: tree
) -> Any:
    """Puts the arrays of a checkpoint into a pytree like the template; leaves are NumPy arrays.

    Args:
        arrays: what `read` returned.
        template: a pytree of the same structure, of arrays or their shapes.
        restore: `restore(tree, template)` brings what was saved in fewer rows to the template's shapes.

    Raises:
        StateError: they were saved from a tree of other names, shapes or types.
    """
    import jax  # late, as reports read run folders without it

    paths, structure = jax.tree_util.tree_flatten_with_path(template)
    wanted = {jax.tree_util.keystr(path): leaf for path, leaf in paths}
    if set(wanted) != set(arrays):
        odd = sorted(set(wanted) ^ set(arrays))[0]
        raise StateError(f"only one of them has {odd}")
    tree = restore(jax.tree_util.tree_unflatten(structure, [arrays[name] for name in wanted]), template)
    for (name, leaf), found in zip(wanted.items(), jax.tree_util.tree_leaves(tree), strict=True):
        saved, needed = (f"{np.dtype(a.dtype).name}{list(np.shape(a))}" for a in (found, leaf))
        if saved != needed:
            raise StateError(f"{name} is {saved}, this program needs {needed}")
    return tree


def disk_fault(error: BaseException | None) -> OSError | None:
    """The reason why a file can't be read for the moment, which says nothing about its content; None if it can be."""
    # Readers turn it into errors of their own. EINVAL is none: a damaged archive makes them seek before its begin.
    while error is not None:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL, errno.ENOENT):
            return error
        error = error.__cause__ or error.__context__
    return None


def owner(config: Config, method: int, seed: int) -> np.ndarray:
    """What a checkpoint holds as its owner: a hash of its configuration, its method's number and its seed."""
    return np.frombuffer(hashlib.sha256(f"{run_digest(config)} {method} {seed}".encode()).digest(), np.uint8)


def check(file: Path) -> None:
    """Checks every byte of a checkpoint, an array at a time.

    Raises:
        CheckpointError: it is damaged.
        StateError: its format is another version's.
        OSError: it can't be read.
    """
    for _ in _members(file):
        pass


def round_of(file: Path) -> int:
    """The rounds that were done, by a checkpoint's name."""
    return int(file.stem.removeprefix("round-"))


def generations(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first; raises `OSError` if it can't be read, where `glob` would find none."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((folder / name for name in names if _NAME.fullmatch(name)), key=round_of, reverse=True)


def encode(tree: Any) -> bytes:
    """The content of a checkpoint's file."""
    buffer = io.BytesIO()
    _write(buffer, tree)
    return buffer.getvalue()


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
        # Without the time of day, which a clock may have that an archive can't hold.
        archive.writestr(zipfile.ZipInfo(_MANIFEST), json.dumps({"format": _FORMAT, "sha256": sums}))
        for name, pieces in members.items():
            about = zipfile.ZipInfo(name)
            about.file_size = sum(map(len, pieces))  # beyond 2 GB the archive takes another form
            with archive.open(about, "w") as member:
                for piece in pieces:
                    member.write(piece)


def _npy(leaf: Any) -> tuple[bytes, Any]:
    """The header of an npy file, and the array's own memory, which may be most of the machine's: it isn't copied."""
    array = np.asarray(leaf, order="C")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return header.getvalue(), array.reshape(-1).view(np.uint8).data


def _members(file: Path | IO[bytes]) -> Iterator[tuple[str, np.ndarray]]:
    """The names and arrays of a checkpoint, each checked when it is read."""
    try:
        opened = open_file(file) if isinstance(file, Path) else contextlib.nullcontext(file)
        with opened as stream, zipfile.ZipFile(stream) as archive:
            length = stream.seek(0, io.SEEK_END)
            # No checkpoint is packed, so that no member can be longer than the file.
            if any(member.compress_type or member.file_size > length for member in archive.infolist()):
                raise ValueError("it is packed, which no checkpoint is")
            manifest = json.loads(archive.read(_MANIFEST))
            if manifest["format"] != _FORMAT:
                raise StateError(f"{file}: its format is {manifest['format']!r}, this version reads {_FORMAT}")
            for name, digest in manifest["sha256"].items():
                yield name.removesuffix(".npy"), _array(archive.read(name), name, digest, file)
    except (CheckpointError, StateError, MemoryError):
        raise
    except Exception as error:  # a flipped byte can make the archive's reader fail in any way
        if fault := disk_fault(error):
            raise fault from None
        raise CheckpointError(f"{file}: damaged ({error})") from error


def _array(content: bytes, name: str, digest: str, file: Path | IO[bytes]) -> np.ndarray:
    """Checks and reads an array, whose header can't claim more than the content holds."""
    if hashlib.sha256(content).hexdigest() != digest:
        raise CheckpointError(f"{file}: damaged (the checksum of {name} is wrong)")
    stream = io.BytesIO(content)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, fortran, dtype = read[np.lib.format.read_magic(stream)](stream)
    if dtype.hasobject:
        raise ValueError("an array of objects, which is a pickle")
    values = np.frombuffer(content, np.uint8, offset=stream.tell()).view(dtype)
    return values.reshape(shape, order="F" if fortran else "C").copy()
