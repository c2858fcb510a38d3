"""Reading files that nobody vouches for: what they claim is checked before memory is set aside for it."""

import json
import os
from pathlib import Path
from typing import Any

from fedjax_bal.data.errors import DataError
from fedjax_bal.files import open_file, parse_json


def read_file(file: Path, limit: int, again: str) -> bytes:
    """The content of a file that is not longer than `limit` bytes; `again` ends the message on one that is."""
    try:
        with open_file(file) as stream:
            size = os.fstat(stream.fileno()).st_size  # reading sets aside as much as it is told to
            content = stream.read(min(size, limit) + 1)
    except OSError as error:
        raise DataError(
            f"{file}: can't be read ({error.strerror or error}); unpack its archive again, or check its rights."
        ) from error
    if len(content) > limit:
        raise DataError(f"{file}: is longer than the {limit} bytes that it can need; {again}")
    return content


def read_json(file: Path, limit: int, again: str) -> Any:
    """What a JSON file holds that is not longer than `limit` bytes; `again` ends the message on one that is."""
    content = read_file(file, limit, again)
    try:
        return parse_json(content)
    except ValueError as error:
        raise DataError(f"{file}: is no JSON file ({shortened(str(error))}); {again}") from error


def shortened(value: Any, limit: int = 100) -> str:
    """A text, or what JSON makes of another value, as a message can show it.

    Args:
        value: the text or value.
        limit: characters.

    Returns:
        It, or its beginning.

    Example:
        >>> shortened([1, 2, 3], limit=3)
        '[1, ...'
    """
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= limit else f"{text[:limit]} ..."


def check_within(root: Path, path: Path) -> None:
    """Refuses a link that leads out of a folder, which may be reached by links itself."""
    real = os.path.realpath(path)
    if not Path(real).is_relative_to(os.path.realpath(root)):
        raise DataError(f"{path}: is a link that leads out of {root}, to {real}; put the file itself there.")
