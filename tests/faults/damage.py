"""Ways to damage a file, a checkpoint above all, each a function of its bytes."""

import random
from collections.abc import Callable
from pathlib import Path

CENTRAL_DIRECTORY = b"PK\x01\x02"


def flipped(content: bytes, at: int) -> bytes:
    """With one bit of one byte turned over."""
    return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]


def _manifest(content: bytes) -> int:
    """Where the first sum of the manifest is."""
    return content.index(b'": "') + 4


# Of a checkpoint: an archive of a manifest and arrays.
OF_AN_ARCHIVE: dict[str, Callable[[bytes], bytes]] = {
    "header": lambda content: flipped(content, 1),
    "manifest": lambda content: flipped(content, _manifest(content)),
    "body": lambda content: flipped(content, len(content) // 2),
    "central directory": lambda content: flipped(content, content.rindex(CENTRAL_DIRECTORY) + 42),
    "last bytes": lambda content: flipped(content, len(content) - 10),
    "cut in half": lambda content: content[: len(content) // 2],
    "cut by a byte": lambda content: content[:-1],
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "garbage": lambda content: random.Random(0).randbytes(len(content)),
    "another archive": lambda content: b"PK\x05\x06" + bytes(18),
}


def apply(how: Callable[[bytes], bytes], *files: Path) -> None:
    """Damages files where they are."""
    for file in files:
        file.write_bytes(how(file.read_bytes()))
