"""Files that nobody vouches for: written so that a kill leaves the old content or the new, and read with care.

A folder from elsewhere can hold links that lead out of it, which are never written through, and pipes and devices in
place of files, which are never waited for.
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

_UNWANTED = {
    stat.S_IFDIR: "is a directory",
    stat.S_IFIFO: "is a pipe",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
}


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file for reading, and nothing but a file: a pipe may never say anything, and a device never ends.

    Args:
        path: the file.

    Returns:
        Its bytes as a stream.

    Raises:
        OSError: there is no such file, it can't be read, or it is none.

    Example:
        >>> open_file("/dev/null")
        Traceback (most recent call last):
        OSError: [Errno 22] is a device: '/dev/null'
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # which doesn't wait for a pipe's other end
    except ValueError as error:  # a NUL, or what is no text
        raise OSError(errno.EINVAL, str(error)) from None
    kind = stat.S_IFMT(os.fstat(handle).st_mode)
    if kind != stat.S_IFREG:
        os.close(handle)
        raise OSError(errno.EINVAL, _UNWANTED.get(kind, "is no file"), os.fspath(path))
    return os.fdopen(handle, "rb")


def read_bytes(path: str | os.PathLike[str], limit: int) -> bytes:
    """The content of a file that is not too long.

    Args:
        path: the file.
        limit: bytes.

    Returns:
        Its content.

    Raises:
        OSError: it can't be read, is no file, or is longer.

    Example:
        >>> read_bytes(__file__, 10)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        OSError: [Errno 27] is longer than 10 bytes: ...
    """
    with open_file(path) as stream:
        length = os.fstat(stream.fileno()).st_size  # reading sets aside as much as it is told to
        try:
            content = stream.read(min(length, limit) + 1)
        except OSError as error:  # which doesn't say of which file
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"is longer than {limit} bytes", os.fspath(path))
    return content


def parse_json(content: str | bytes, undefined: Callable[[str], Any] | None = None) -> Any:
    """Reads JSON; what is damaged, nested without end or has numbers of thousands of digits is a `ValueError`.

    `undefined` says what NaN and infinite numbers are read as, given their names; None for floats.
    """
    try:
        return json.loads(content, parse_constant=undefined)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def own_folder(folder: Path, name: str) -> Path:
    """Makes a folder within another one, where there is none.

    Args:
        folder: an output folder.
        name: of the folder in it.

    Returns:
        The folder in it.

    Raises:
        OSError: it can't be made, or a link is in its place: what lies behind that is somebody else's.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     own_folder(Path(folder), "plots").name
        'plots'
    """
    inner = folder / name
    if inner.is_symlink():
        raise OSError(
            errno.ELOOP, f"{name} is a link, which nothing is written through: put a folder there", str(inner)
        )
    inner.mkdir(exist_ok=True)
    return inner


def open_to_append(file: Path) -> BinaryIO:
    """Opens a file to write at its end; makes it where there is none.

    Args:
        file: the file; its folder must exist.

    Returns:
        A stream.

    Raises:
        OSError: it can't be written, or is a link.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(file, flags, 0o666), "ab")


def write_atomically(file: Path, content: bytes) -> None:
    """Replaces a file by new content, on disk before it takes the old one's place.

    Args:
        file: the file; its folder must exist.
        content: its new content.

    Raises:
        OSError: it can't be written; the old content is still there.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "notes.txt"
        ...     write_atomically(file, b"new")
        ...     file.read_bytes()
        b'new'
    """
    temporary = file.with_name(f".{file.name}.part")
    try:
        with _anew(temporary) as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OSError(error.errno, error.strerror, str(file)) from error
    handle = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _anew(file: Path) -> BinaryIO:
    """A file that wasn't there before: what is left of a killed process goes, and so does a link to somewhere else."""
    file.unlink(missing_ok=True)
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb")
