"""Safe reading of files from any source: what they claim is checked before memory is allocated for it."""

import json
import os
from pathlib import Path
from typing import Any

from fedjax_bal.data.errors import DataError, MissingError
from fedjax_bal.files import open_file, parse_json

MAX_DEFLATE_RATIO = 1032
"""The most that deflate can compress: 258 bytes to 2 bits."""

CHECK_PATH = "check the path and its rights."
"""The remedy for a file that can't be opened."""


def find_folder(name: str, data_dir: Path, folders: tuple[str, ...], wanted: tuple[str, ...], remedy: str) -> Path:
    """Finds the first of some folders below `data_dir` with all wanted files, and folders, which end in a slash."""
    candidates = [data_dir / folder for folder in folders]
    for folder in candidates:
        if all((folder / item).is_dir() if item.endswith("/") else (folder / item).is_file() for item in wanted):
            return folder
    places = ", ".join(map(str, candidates))
    raise MissingError(f"{name} was not found: looked for {' and '.join(wanted)} in {places}; {remedy} as --data-dir.")


def list_files(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """Lists a folder's files with some endings, in lower case or capitals, by name; links may not leave its parent."""
    with os.scandir(folder) as entries:
        own = [entry for entry in entries if entry.name.lower().endswith(endings) and entry.is_file()]
    for entry in own:
        if entry.is_symlink():
            check_within(folder.parent, Path(entry.path))
    return sorted(folder / entry.name for entry in own)


def read_file(file: Path, limit: int, remedy: str) -> bytes:
    """Reads a file of at most `limit` bytes; `remedy` ends the message about a longer one."""
    try:
        with open_file(file) as stream:
            size = os.fstat(stream.fileno()).st_size  # read(n) allocates n bytes at once
            content = stream.read(min(size, limit) + 1)
    except OSError as error:
        raise DataError(
            f"{file}: can't be read ({error.strerror or error}); unpack its archive again, or check its rights."
        ) from error
    if len(content) > limit:
        raise DataError(f"{file}: is longer than the {limit} bytes that it can need; {remedy}")
    return content


def read_json(file: Path, limit: int, remedy: str) -> Any:
    """Reads a JSON file of at most `limit` bytes; `remedy` ends the message about a longer or damaged one."""
    content = read_file(file, limit, remedy)
    try:
        return parse_json(content)
    except ValueError as error:
        raise DataError(f"{file}: is no JSON file ({shortened(str(error))}); {remedy}") from error


def shortened(value: Any, limit: int = 100) -> str:
    """Returns the beginning of a text, or of another value's JSON, for a message."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= limit else f"{text[:limit]} ..."


def brief_error(error: Exception) -> str:
    """Returns an error's kind and the beginning of its message, which can be as long as an image."""
    return shortened(f"{type(error).__name__}: {' '.join(str(error).split())}", 300)


def check_within(root: Path, path: Path) -> None:
    """Raises `DataError` if a link leads out of a folder; the folder itself may be a link."""
    real = os.path.realpath(path)
    if not Path(real).is_relative_to(os.path.realpath(root)):
        raise DataError(f"{path}: is a link that leads out of {root}, to {real}; put the file itself there.")
