"""Finds and reads data files, and turns every failure into a `DataError`; nothing is unpickled."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedjax_bal.files import parse_json, read_bytes

CHECK_PATH = "check the path and its rights."
"""The remedy for a file that can't be opened."""

FETCH_AGAIN = "the file is incomplete or damaged: fetch it again."
"""The remedy for a published file."""


class DataError(ValueError):
    """Raised if a data set can't be read; the message has the file, what was expected and found, and the remedy."""


class MissingError(DataError):
    """Raised if none of a data set's files are found; the message lists the files and the folders searched."""


@contextlib.contextmanager
def reading(file: str | os.PathLike, remedy: str = FETCH_AGAIN, closed: str = CHECK_PATH) -> Iterator[None]:
    """Turns every exception of a reader into a `DataError` that names the file.

    Damaged content can raise any exception in a reader, so all of them read inside this context manager, and raise a
    plain `ValueError` for invalid content. The message ends with `remedy`, or with `closed` if the file can't be
    opened.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:  # decoders raise OSError without it
            raise DataError(f"{error.filename or file}: can't be read ({error.strerror}); {closed}") from error
        kind = {ValueError: "", KeyError: "lacks "}.get(type(error), f"{type(error).__name__}: ")
        text = " ".join(str(error).split())
        raise DataError(f"{file}: {kind}{text if len(text) <= 300 else f'{text[:300]} ...'}; {remedy}") from error


def find_folder(name: str, data_dir: Path, folders: tuple[str, ...], wanted: tuple[str, ...], remedy: str) -> Path:
    """Finds the first of `folders` below `data_dir` that has all wanted files and folders (which end in a slash).

    Raises `MissingError` if there is none. Some of the wanted files without the others are a `DataError`: nothing else
    is read in their place. A folder such as `train/` may belong to something else.
    """
    candidates = [data_dir / folder for folder in folders]
    incomplete = ""
    for folder in candidates:
        present = [(folder / item).is_dir() if item.endswith("/") else (folder / item).is_file() for item in wanted]
        if all(present):
            return folder
        if any(present):
            lacking = [item for item, there in zip(wanted, present, strict=True) if not there]
            incomplete += f"{folder} lacks {', '.join(lacking)}; "
    kind = DataError if incomplete and not any(item.endswith("/") for item in wanted) else MissingError
    raise kind(
        f"{name} was not found: looked for {', '.join(wanted)} in {', '.join(map(str, candidates))}; "
        f"{incomplete}{remedy}"
    )


def list_files(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """Lists a folder's files with the given endings, in lower or upper case, sorted by name."""
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.name.lower().endswith(endings) and entry.is_file())


def read_json(file: Path, remedy: str) -> Any:
    """Reads a JSON file; `remedy` ends the message about a damaged one."""
    with reading(file, remedy):
        content = read_bytes(file)
        try:
            return parse_json(content)
        except ValueError as error:
            raise ValueError(f"is not a JSON file ({error})") from error


def shortened(value: Any, limit: int = 100) -> str:
    """Shortens a text, or another value's JSON, for a message."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= limit else f"{text[:limit]} ..."
