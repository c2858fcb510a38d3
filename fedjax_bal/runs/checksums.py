"""`SHA256SUMS`: the sums of a folder's files, as `sha256sum -c SHA256SUMS` reads them."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from fedjax_bal.files import open_file, read_bytes

SUMS = "SHA256SUMS"

_LINE = re.compile(r"([0-9a-f]{64})  ([^\\\r\n]+)")
_LARGEST, _PIECE = 2**28, 2**20  # bytes


def file_sum(file: Path) -> str:
    """The SHA-256 of a file's content in hexadecimal; raises `OSError` if it can't be read."""
    digest = hashlib.sha256()
    with open_file(file) as stream:
        while piece := stream.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def read_sums(folder: Path) -> dict[str, str] | None:
    """The sums in a folder's `SHA256SUMS` by the names of files; None if there is no such file.

    Raises:
        ValueError: it is damaged.
        OSError: it can't be read.
    """
    try:
        text = read_bytes(folder / SUMS, _LARGEST).decode()
    except FileNotFoundError:
        return None
    sums = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = _LINE.fullmatch(line)
        digest, name = fields.groups() if fields else ("", "")
        if not name or name.startswith("/") or ".." in name.split("/") or name in sums:
            raise ValueError(f"line {number}: expected a SHA-256, two spaces and the name of another file in here")
        sums[name] = digest
    return sums


def as_text(sums: Mapping[str, str]) -> str:
    r"""The content of a `SHA256SUMS`.

    Example:
        >>> as_text({"b": "22", "a": "11"})
        '11  a\n22  b\n'
    """
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
