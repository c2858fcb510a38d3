"""Checksums of JSON objects and of rows of tables, kept as their last value, so that a changed digit is noticed."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_CHECKSUM = "checksum"
_UNDEFINED = ("-Infinity", "Infinity", "NaN")  # which a report reads as null


class ChecksumError(ValueError):
    """Values that aren't those that were written."""


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with their checksum: 16 digits of the SHA-256 of their JSON, in one line, as `json.dumps` writes it.

    Example:
        >>> sealed({"round": 3, "test_accuracy": 0.5})
        {'round': 3, 'test_accuracy': 0.5, 'checksum': '9297beb196974aee'}
    """
    return {**values, _CHECKSUM: _digest(values)}


def unsealed(values: Any) -> Any:
    """The values without their checksum; as they are if they have none, like those of earlier versions.

    Raises:
        ChecksumError: the checksum is wrong.
    """
    if not isinstance(values, dict) or _CHECKSUM not in values:
        return values
    rest = {key: value for key, value in values.items() if key != _CHECKSUM}
    if values[_CHECKSUM] != _digest(rest):
        raise ChecksumError("its checksum is wrong")
    return rest


def _digest(values: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(values)
    except RecursionError as error:
        raise ChecksumError("nested too deep") from error
    for name in _UNDEFINED:
        text = text.replace(name, "null")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Examined(NamedTuple):
    """Values that were read back.

    Attributes:
        place: their file, and the line in it.
        values: without their checksum; None if they are damaged.
        damage: why they can't be used; empty if they can.
        has_checksum: whether they had one.
        missing: whether there is no such file.
    """

    place: str
    values: Any = None
    damage: str = ""
    has_checksum: bool = False
    missing: bool = False


def examine(place: object, read: Callable[[], Any], check: Callable[[Any], object] = lambda values: None) -> Examined:
    """Reads values, compares their checksum, and checks them; what is wrong is returned, not raised."""
    try:
        values = read()
        rest = unsealed(values)
        check(rest)
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        return Examined(str(place), damage=reason, missing=isinstance(error, FileNotFoundError))
    return Examined(str(place), rest, has_checksum=rest is not values)
