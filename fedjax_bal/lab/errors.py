"""Errors of output folders, and the two contexts in which their files are read and written."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

START_OVER = "start over with --fresh (for a point of a sweep: remove its folder), or in another folder with --out"
"""The remedy for a run that can't resume; its folder is changed only when the user asks for it."""

CHOOSE_ANOTHER = "restore a copy of it, or choose another folder; nothing in this one was changed"
"""The remedy for a folder whose owner can't be determined."""


class FolderError(ValueError):
    """An unusable output folder or model file; the message names the file and the remedy."""


class ForeignFolderError(FolderError):
    """A folder of a different configuration or sweep; `differences` lists how it differs from the requested one."""

    def __init__(self, message: str, differences: str) -> None:
        super().__init__(message)
        self.differences = differences


@contextlib.contextmanager
def reading(file: Path, remedy: str = f"restore a copy of it, or {START_OVER}") -> Iterator[None]:
    """Turns every exception that a file's content can cause into a `FolderError` that names the file.

    This is the only check of files that this package has written: their readers take what they need from them, and a
    missing key, a wrong type or a flipped byte surfaces here.
    """
    try:
        yield
    except (FolderError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise FolderError(f"{file}: missing; {remedy}") from error
    except Exception as error:
        if fault := disk_error(error):
            raise FolderError(
                f"{file}: can't be read ({_reason(fault)}); nothing was changed, try again once it is readable"
            ) from error
        reason = str(error).removeprefix(f"{file}: ")
        reason = reason if isinstance(error, ValueError) else f"{type(error).__name__}: {reason}"
        raise FolderError(f"{file}: damaged, or written by another version ({reason}); {remedy}") from error


@contextlib.contextmanager
def writing(place: Path, remedy: str = "choose another with --out") -> Iterator[None]:
    """Turns an `OSError` into the error for a file or folder that can't be written."""
    try:
        yield
    except OSError as error:
        raise FolderError(f"{place}: can't be written ({_reason(error)}); {remedy}") from error


def disk_error(error: BaseException | None) -> OSError | None:
    """Returns the `OSError` behind a failed read if the file itself may be intact; None if its content is at fault."""
    # Libraries wrap it in their own errors. Seeking in a damaged archive gives EINVAL.
    while error is not None:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL, errno.ENOENT):
            return error
        error = error.__cause__ or error.__context__
    return None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
