"""Safe reading and atomic writing of files in folders that others may have written to.

A process killed while writing leaves either the old content or the new. Writing never follows links out of a folder.
Pipes and devices in place of files are rejected, since reading them could block forever.
"""

import contextlib
import errno
import glob
import json
import os
import secrets
import stat
import time
import zipfile
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_ABANDONED_S = 24 * 3600.0  # age from which an unfinished temporary file counts as abandoned
_SPECIAL_FILES = {
    stat.S_IFDIR: "is a directory",
    stat.S_IFIFO: "is a pipe",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
    stat.S_IFSOCK: "is a socket",
}


def open_file(path: str | os.PathLike[str]) -> BufferedReader:
    """Opens a regular file for reading; raises `OSError` for pipes, devices and folders."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # doesn't wait for a pipe's writer
    except ValueError as error:  # a NUL byte or a lone surrogate in the path
        raise OSError(errno.EINVAL, str(error)) from None
    kind = stat.S_IFMT(os.fstat(handle).st_mode)
    if kind != stat.S_IFREG:
        os.close(handle)
        raise OSError(errno.EINVAL, _SPECIAL_FILES.get(kind, "is not a file"), os.fspath(path))
    return os.fdopen(handle, "rb")


def read_bytes(path: str | os.PathLike[str], limit: int = 2**62) -> bytes:
    """Reads a whole file of at most `limit` bytes; on failure raises `OSError`, which names the file."""
    with open_file(path) as stream:
        length = os.fstat(stream.fileno()).st_size  # read(n) allocates n bytes at once
        try:
            content = stream.read(min(length, limit) + 1)
        except OSError as error:  # raised by the stream, without the file's name
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"is longer than {limit} bytes", os.fspath(path))
    return content


def parse_json(content: str | bytes, undefined: Callable[[str], Any] | None = None) -> Any:
    """Parses JSON; raises `ValueError` if it is invalid or too deep, has a key twice or an integer of 5,000 digits.

    `undefined` converts the names of NaN and of infinities; by default they become floats.
    """
    try:
        return json.loads(content, parse_constant=undefined, object_pairs_hook=_each_key_once)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise ValueError(f"has the key {twice!r} twice")
    return content


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Reads the arrays of an npz file, by name; checks their checksums and unpickles nothing."""
    with open_file(path) as stream:
        if not zipfile.is_zipfile(stream):
            raise ValueError("is not an npz file, or was cut short")
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as arrays:
            return dict(arrays)


def own_folder(folder: Path, name: str) -> Path:
    """Creates a folder inside an output folder if needed; raises `OSError` for a link, which may lead out of it.

    `name` may have several parts, such as `tensorboard/fedavg`, none of which may be a link.
    """
    inner = folder
    for part in name.split("/"):
        inner = inner / part
        if inner.is_symlink():
            raise OSError(
                errno.ELOOP, f"{part} is a link, which nothing is written through: put a folder there", str(inner)
            )
        inner.mkdir(exist_ok=True)
    return inner


def open_to_append(file: Path) -> BinaryIO:
    """Opens a file for appending, creating it if needed; raises `OSError` for a link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(file, flags, 0o666), "ab")


def write_atomically(file: Path, content: bytes) -> None:
    """Replaces a file's content atomically, once the new content is on disk; on failure the old content stays."""
    with replacing(file) as stream:
        stream.write(content)


def check_replaceable(file: Path) -> None:
    """Raises `OSError` for a pipe, a device such as /dev/null, or a stream, which a file must not replace."""
    try:
        kind = stat.S_IFMT(file.stat().st_mode)
    except OSError:  # absent, or a link to nothing: the link is replaced
        return
    # /dev/stdout is a link into /proc, possibly to a regular file: the link itself would be replaced.
    stream = file.is_symlink() and os.readlink(file).startswith("/proc/")
    if stream or kind not in (stat.S_IFREG, stat.S_IFDIR):
        what = "is a stream" if stream else _SPECIAL_FILES.get(kind, "is not a file")
        raise OSError(errno.EINVAL, f"{what}, which no file is put in the place of: give the name of a file", str(file))


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[BinaryIO]:
    """Opens a stream whose content replaces a file's once all of it is on disk: `write_atomically` in pieces.

    If several processes do so at once, the file has the complete content of the last one.
    """
    check_replaceable(file)
    name = os.fsdecode(os.fsencode(file.name)[:200])  # the temporary file's name must not be too long either
    _remove_abandoned(file.parent, name)
    temporary = file.with_name(f".{name}.{secrets.token_hex(4)}.part")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o666), "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(file)) from error
        raise
    _sync_folder(file.parent)


def _remove_abandoned(folder: Path, name: str) -> None:
    """Deletes a file's temporary files that killed processes have left; those still being written are kept."""
    with contextlib.suppress(OSError):
        for left in folder.glob(f".{glob.escape(name)}.????????.part"):
            if time.time() - left.lstat().st_mtime > _ABANDONED_S:
                left.unlink()


def _sync_folder(folder: Path) -> None:
    """Flushes a folder's entries to disk if the file system can; otherwise power loss could undo a replacement."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # the folder may be written, but not listed
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF):  # some of FUSE, SMB and NFS
            raise
    finally:
        os.close(handle)
