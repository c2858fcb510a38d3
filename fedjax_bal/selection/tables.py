"""Tables in users' files: CSV files with a header, and npz files with one array, which are never unpickled."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_bal.files import read_bytes

LARGEST_TEXT = 64_000_000
"""Largest size of a CSV file, in bytes."""

LARGEST_ARRAY = 1_000_000_000
"""Largest size of an array, in bytes."""

LARGEST_ID = 2**31 - 2


_CLOSED = "check the path, which is relative to its configuration, and its rights."


def read_csv(file: Path, headers: Sequence[tuple[str, ...]], kinds: Mapping[str, Callable[[str], Any]]) -> np.ndarray:
    """Reads a CSV file whose first line is one of the `headers`, as `Float64[lines, columns]` with at least one line.

    `kinds` converts the text of each column to a number, or raises `ValueError` with the allowed values. A file that
    can't be read, is too large or has an invalid line raises `ValueError`, which names file and line.
    """
    from fedjax_bal.data import reading  # imported late, as few selectors and laws read files

    with reading(file, "correct the file, or write an array into an npz file instead.", _CLOSED):
        lines = csv.reader(io.StringIO(read_bytes(file, LARGEST_TEXT).decode("utf-8-sig")), strict=True)
        rows: list[list[float]] = []
        header = tuple(name.strip() for name in next(lines, []))
        if header not in headers:
            allowed = " or ".join(",".join(names) for names in headers)
            raise ValueError(f"its first line is {_quote(','.join(header))}, must be {allowed}")
        for line in lines:
            if line:
                rows.append(_numbers(line, header, kinds, f"line {lines.line_num}"))
        if not rows:
            raise ValueError("has a header and nothing below it; give at least one line")
    return np.array(rows, np.float64)


def read_npz(file: Path, name: str, dimensions: int) -> np.ndarray:
    """Reads an npz file's only array, or the one called `name`; raises `ValueError` for any other content."""
    from fedjax_bal.data import read_arrays, reading

    with reading(file, "write it again with numpy.savez.", _CLOSED):
        arrays = read_arrays(file, None, LARGEST_ARRAY)
        array = next(iter(arrays.values())) if len(arrays) == 1 else arrays.get(name)
        if array is None:
            held = ", ".join(sorted(map(_quote, arrays))[:5]) or "nothing"
            raise ValueError(f"holds {held}, must hold one array, or one called {name}")
        if array.dtype.kind not in "biuf" or array.ndim != dimensions or not array.size:
            raise ValueError(
                f"its array has shape {array.shape} of {array.dtype}, must have {dimensions} dimension(s) of numbers"
            )
        if not np.isfinite(array).all():
            raise ValueError("its array holds numbers that are not finite")
    return array


def whole(low: int = 0, high: int = LARGEST_ID) -> Callable[[str], int]:
    """Returns a converter for a column of integers in a closed range."""

    def number(text: str) -> int:
        digits = text.strip()
        value = int(digits) if digits.removeprefix("-").isdecimal() and digits.isascii() and len(digits) < 20 else None
        if value is None or not low <= value <= high:
            raise ValueError(f"must be an integer from {low} to {high}")
        return value

    return number


def positive(text: str) -> float:
    """Converts an entry of a column of finite numbers above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError("must be a finite number above 0")
    return value


def _numbers(line: Sequence[str], header: Sequence[str], kinds: Mapping[str, Any], place: str) -> list[float]:
    if len(line) != len(header):
        raise ValueError(f"{place}: has {len(line)} values, must have {len(header)} ({','.join(header)})")
    numbers = []
    for name, text in zip(header, line, strict=True):
        try:
            numbers.append(kinds[name](text))
        except ValueError as error:
            raise ValueError(f"{place}: {name}: received {_quote(text)}, {error}") from None
    return numbers


def _quote(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:37] + "...")
