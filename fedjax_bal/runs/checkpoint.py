"""Checkpoints: npz files with a manifest of SHA-256 sums, two generations kept, so that a kill leaves a whole one."""

import contextlib
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedjax_bal.config import Config, config_digest, run_digest
from fedjax_bal.files import open_file, replacing

GENERATIONS = 2
_MANIFEST = "manifest.json"
_OWNER = ".owner"
_EARLIER = re.compile(r"^\.progress")  # the earlier name of `.snapshot`


class CheckpointError(ValueError):
    """A checkpoint that is damaged, or that belongs to something else."""


def save(folder: Path, round: int, tree: Any) -> Path:
    """Writes a checkpoint, a pytree of arrays and numbers, `round` rounds done; drops all but the newest generations.

    The file appears under its name only once it is complete and on disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"round-{round:08d}.npz"
    with replacing(file) as stream:
        _write(stream, tree)
    for old in [*generations(folder)[GENERATIONS:], *_half_written(folder)]:
        old.unlink()
    return file


def load(
    file: Path | IO[bytes], template: Any, restore: Callable[[Any, Any], Any] = lambda tree, template: tree
) -> Any:
    """Reads a checkpoint and checks every byte of it; unpickles nothing. Leaves of the result are NumPy arrays.

    Args:
        file: the file, or its content.
        template: a pytree of the same structure, of arrays or their shapes.
        restore: `restore(tree, template)` brings what was saved in fewer rows to the template's shapes.

    Raises:
        CheckpointError: the file is damaged, or was saved from a tree of other names, shapes or types.
    """
    import jax  # late, as reports read run folders without it

    arrays = {_EARLIER.sub(".snapshot", name): array for name, array in _members(file)}
    paths, structure = jax.tree_util.tree_flatten_with_path(template)
    wanted = {jax.tree_util.keystr(path): leaf for path, leaf in paths}
    if set(wanted) != set(arrays):
        odd = sorted(set(wanted) ^ set(arrays))[0]
        raise CheckpointError(f"{file}: holds another state than this program's (they differ in {odd})")
    tree = restore(jax.tree_util.tree_unflatten(structure, [arrays[name] for name in wanted]), template)
    for (name, leaf), found in zip(wanted.items(), jax.tree_util.tree_leaves(tree), strict=True):
        saved, needed = (f"{np.dtype(a.dtype).name}{list(np.shape(a))}" for a in (found, leaf))
        if saved != needed:
            raise CheckpointError(f"{file}: {name} is {saved}, this program needs {needed}")
    return tree


def owner(digest: str, method: int, seed: int) -> np.ndarray:
    """What a checkpoint holds as its `owner`: a hash of its configuration, its method's number and its seed."""
    return np.frombuffer(hashlib.sha256(f"{digest} {method} {seed}".encode()).digest(), np.uint8)


def owners(config: Config, method: int, seed: int) -> list[np.ndarray]:
    """The owner of a run's checkpoints, and those of earlier versions', which know more than it depends on."""
    digests = run_digest(config), run_digest(config, whole_paths=True), config_digest(config)
    return [owner(digest, method, seed) for digest in digests]


def check(file: Path, known: Sequence[np.ndarray]) -> None:
    """Checks every byte of a checkpoint, an array at a time, and that its owner is one of those that are known, if any.

    Raises:
        CheckpointError: it is damaged, or belongs to another run.
    """
    owners = [array for name, array in _members(file) if name == _OWNER]
    if known and not any(np.array_equal(own, one) for own in owners for one in known):
        raise CheckpointError(f"{file}: belongs to another run")


def generations(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return sorted(folder.glob("round-*.npz"), reverse=True)


def clear(folder: Path) -> None:
    """Removes all checkpoints of a run."""
    for file in [*generations(folder), *_half_written(folder)]:
        file.unlink()


def _half_written(folder: Path) -> list[Path]:
    """Temporary files of interrupted saves; deleted so that they don't pile up."""
    return list(folder.glob(".round-*.npz.part"))


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
        archive.writestr(zipfile.ZipInfo(_MANIFEST), json.dumps({"format": 1, "sha256": sums}))
        for name, pieces in members.items():
            about = zipfile.ZipInfo(name)
            about.file_size = sum(map(len, pieces))  # beyond 2 GB the archive takes another form
            with archive.open(about, "w") as member:
                for piece in pieces:
                    member.write(piece)


def _npy(leaf: Any) -> tuple[bytes, Any]:
    """The header of an npy file, and the array's own memory, which may be most of the machine's: it isn't copied."""
    array, header = np.asarray(leaf, order="C"), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return header.getvalue(), array.reshape(-1).view(np.uint8).data


def _members(file: Path | IO[bytes]) -> Iterator[tuple[str, np.ndarray]]:
    """The names and arrays of a checkpoint, each checked when it is read."""
    try:
        opened = open_file(file) if isinstance(file, Path) else contextlib.nullcontext(file)
        with opened as stream, zipfile.ZipFile(stream) as archive:
            # No checkpoint is packed, so that no member can be longer than the file.
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise ValueError("it is packed, which no checkpoint is")
            sums = json.loads(archive.read(_MANIFEST))["sha256"]
            for name in sums:
                yield name.removesuffix(".npy"), _array(archive.read(name), name, sums[name], file)
    except CheckpointError:
        raise
    except Exception as error:  # a flipped byte can make the archive's reader fail in any way
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
