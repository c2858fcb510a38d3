"""Reading of files from any source: their size is checked before memory is allocated for it."""

import json
import os
from pathlib import Path
from typing import Any

from fedjax_bal.data.errors import MissingError, reading
from fedjax_bal.files import parse_json, read_bytes

MAX_DEFLATE_RATIO = 1032
"""The most that deflate can compress: 258 bytes to 2 bits."""


def find_folder(name: str, data_dir: Path, folders: tuple[str, ...], wanted: tuple[str, ...], remedy: str) -> Path:
    """Finds the first of some folders below `data_dir` with all wanted files, and folders, which end in a slash."""
    candidates = [data_dir / folder for folder in folders]
    for folder in candidates:
        if all((folder / item).is_dir() if item.endswith("/") else (folder / item).is_file() for item in wanted):
            return folder
    places = ", ".join(map(str, candidates))
    raise MissingError(f"{name} was not found: looked for {' and '.join(wanted)} in {places}; {remedy} as --data-dir.")


def list_files(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """Lists a folder's files with some endings, in lower case or capitals, by name."""
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.name.lower().endswith(endings) and entry.is_file())


def read_json(file: Path, limit: int, remedy: str) -> Any:
    """Reads a JSON file of at most `limit` bytes; `remedy` ends the message about a longer or damaged one."""
    with reading(file, remedy):
        content = read_bytes(file, limit)
        try:
            return parse_json(content)
        except ValueError as error:
            raise ValueError(f"is no JSON file ({error})") from error


def shortened(value: Any, limit: int = 100) -> str:
    """Returns the beginning of a text, or of another value's JSON, for a message."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= limit else f"{text[:limit]} ..."
