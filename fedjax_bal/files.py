"""Safe reading and atomic writing of files in folders that others may have written to.

A kill while writing leaves either the old content or the new. Links out of a folder are never written through, and
pipes and devices in place of files are refused, since reading them could block forever.
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

_MOST_VALUES = 10_000_000  # of a JSON text; a run's summary has at most three million and a hundred for each run
_SPECIAL_FILES = {
    stat.S_IFDIR: "is a directory",
    stat.S_IFIFO: "is a pipe",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
}


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
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
    """Makes a folder inside an output folder unless it exists; refuses a link, which may lead out of it."""
    inner = folder / name
    if inner.is_symlink():
        raise OSError(
            errno.ELOOP, f"{name} is a link, which nothing is written through: put a folder there", str(inner)
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


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[BinaryIO]:
    """Opens a stream whose content replaces a file's once all of it is on disk: `write_atomically` in pieces."""
    temporary = file.with_name(f".{file.name}.part")
    try:
        with _create_fresh(temporary) as stream:
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
    handle = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _create_fresh(file: Path) -> BinaryIO:
    """Creates a new file in place of a killed process's leftover, or of a link, which is removed, not followed."""
    file.unlink(missing_ok=True)
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb")
