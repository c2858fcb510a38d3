"""Writing files so that a kill leaves either the old content or the new."""

import contextlib
import os
from pathlib import Path


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
        with open(temporary, "wb") as stream:
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
