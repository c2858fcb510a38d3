"""Safe reading and atomic writing of files in folders that others may have written to.

A kill while writing leaves either the old content or the new. Links out of a folder are never written through, and
pipes and devices in place of files are refused, since reading them could block forever.
"""

import contextlib
import errno
import glob
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

_ABANDONED_S = 24 * 3600.0  # a temporary file that nothing was written to for so long has lost its writer
_MOST_VALUES = 10_000_000  # of a JSON text; a run's summary has at most three million and a hundred for each run
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
        raise OSError(errno.EINVAL, _SPECIAL_FILES.get(kind, "is no file"), os.fspath(path))
    return os.fdopen(handle, "rb")


def read_bytes(path: str | os.PathLike[str], limit: int) -> bytes:
    """Reads a whole file of at most `limit` bytes; raises `OSError`, which names the file, if that fails."""
    with open_file(path) as stream:
        length = os.fstat(stream.fileno()).st_size  # read(n) allocates n bytes at once
        try:
            content = stream.read(min(length, limit) + 1)
        except OSError as error:  # of a stream, which names no file
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"is longer than {limit} bytes", os.fspath(path))
    return content


def parse_json(content: str | bytes, undefined: Callable[[str], Any] | None = None) -> Any:
    """Reads JSON; raises `ValueError` if it is damaged, nested too deep, too large, or has a number of 5,000 digits.

    `undefined` converts the names of NaN and infinite numbers; None for floats.
    """
    # Three bytes of a file can become sixty in memory.
    signs = (",", "[", "{") if isinstance(content, str) else (b",", b"[", b"{")
    if sum(content.count(sign) for sign in signs) > _MOST_VALUES:  # type: ignore[arg-type]
        raise ValueError(f"holds more than {_MOST_VALUES:,} values")
    try:
        return json.loads(content, parse_constant=undefined)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def own_folder(folder: Path, name: str) -> Path:
    """Makes a folder inside an output folder unless it exists; refuses a link, which may lead out of it.

    `name` may have several parts, as `tensorboard/fedavg`: none of them may be a link.
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
    """Opens a file for appending and makes it if needed; raises `OSError` for a link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(file, flags, 0o666), "ab")


def write_atomically(file: Path, content: bytes) -> None:
    """Replaces a file's content in one step, once the new content is on disk; if that fails, the old one stays."""
    with replacing(file) as stream:
        stream.write(content)


def check_replaceable(file: Path) -> None:
    """Raises `OSError` for a pipe, a device or a stream, such as /dev/null, which a file must not take the place of."""
    try:
        kind = stat.S_IFMT(file.stat().st_mode)
    except OSError:  # absent, or a link to nothing: the link is replaced
        return
    # /dev/stdout is a link into /proc, possibly to a regular file: the link itself would be replaced.
    stream = file.is_symlink() and os.readlink(file).startswith("/proc/")
    if stream or kind not in (stat.S_IFREG, stat.S_IFDIR):
        what = "is a stream" if stream else _SPECIAL_FILES.get(kind, "is no file")
        raise OSError(errno.EINVAL, f"{what}, which no file is put in the place of: give the name of a file", str(file))


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[BinaryIO]:
    """Opens a stream whose content replaces a file's once all of it is on disk: `write_atomically` in pieces.

    Several processes may do so at once: the last one's content stays, whole.
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
    """Removes what killed processes have left of a file; a process that is still writing keeps its own."""
    with contextlib.suppress(OSError):
        for left in folder.glob(f".{glob.escape(name)}.????????.part"):
            if time.time() - left.lstat().st_mtime > _ABANDONED_S:
                left.unlink()


def _sync_folder(folder: Path) -> None:
    """Brings a new name of a folder to disk, where the file system can: without it, power loss brings back the old."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # may be written, but not listed
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF):  # some of FUSE, SMB and NFS
            raise
    finally:
        os.close(handle)
