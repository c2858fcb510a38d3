"""The errors for data files that are missing, damaged or not what their name says."""

import contextlib
import os
from collections.abc import Iterator

CHECK_PATH = "check the path and its rights."
"""The remedy for a file that can't be opened."""

FETCH_AGAIN = "the file is incomplete or damaged: fetch it again."
"""The remedy for a published file."""


class DataError(ValueError):
    """A data set can't be read: the message names the file, what was expected, what was found, and what to do."""


class MissingError(DataError):
    """None of a data set's files was found; the message says which were looked for, and where."""


@contextlib.contextmanager
def reading(file: str | os.PathLike, remedy: str = FETCH_AGAIN, closed: str = CHECK_PATH) -> Iterator[None]:
    """Turns every exception of a reader into a `DataError` that names the file.

    Damaged content makes readers fail in any way; that is why all of them read in here, and raise a plain `ValueError`
    for what doesn't fit. `remedy` ends the message; `closed` does if the file can't be opened.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:  # decoders raise those without
            raise DataError(f"{error.filename or file}: can't be read ({error.strerror}); {closed}") from error
        kind = {ValueError: "", KeyError: "lacks "}.get(type(error), f"{type(error).__name__}: ")
        text = " ".join(str(error).split())
        raise DataError(f"{file}: {kind}{text if len(text) <= 300 else f'{text[:300]} ...'}; {remedy}") from error
