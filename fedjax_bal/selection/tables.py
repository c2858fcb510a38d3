"""Tables in users' files: CSV files with a header, and npz files of one array, which are never unpickled."""

import csv
import io
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

LARGEST_TEXT = 64_000_000
"""Largest size of a CSV file, in bytes."""

LARGEST_ARRAY = 1_000_000_000
"""Largest size of an array, in bytes."""

LARGEST_ID = 2**31 - 2


def read_csv(file: Path, headers: Sequence[tuple[str, ...]], kinds: Mapping[str, Callable[[str], Any]]) -> np.ndarray:
    """Reads a CSV file whose first line is one of the `headers`, as `Float64[lines, columns]` with at least one line.

    `kinds` converts the text of each column to a number, or raises `ValueError` with the allowed values. Raises
    `ValueError`, which names file and line, for a file that can't be read, is too large or has a wrong line.
    """
    lines = csv.reader(io.StringIO(_text(file)), strict=True)
    rows: list[list[float]] = []
    try:
        header = tuple(name.strip() for name in next(lines, []))
        if header not in headers:
            allowed = " or ".join(",".join(names) for names in headers)
            raise ValueError(f"{file}: its first line is {_quote(','.join(header))}, must be {allowed}")
        for line in lines:
            if line:
                rows.append(_numbers(line, header, kinds, f"{file}: line {lines.line_num}"))
    except csv.Error as error:
        raise ValueError(f"{file}: line {lines.line_num}: not CSV ({error})") from None
    if not rows:
        raise ValueError(f"{file}: has a header and nothing below it; give at least one line")
    return np.array(rows, np.float64)


def read_npz(file: Path, name: str, dimensions: int) -> np.ndarray:
    """Reads an npz file's only array, or the one called `name`; raises `ValueError` for any other content."""
    _check_file(file)
    try:
        with zipfile.ZipFile(file) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            if len(members) == 1:
                member = next(iter(members.values()))
            elif name in members:
                member = members[name]
            else:
                held = ", ".join(sorted(map(_quote, members))[:5]) or "nothing"
                raise ValueError(f"{file}: holds {held}, must hold one array, or one called {name}")
            with archive.open(member) as stream:
                return _array(stream, file, dimensions)
    except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, UnicodeError) as error:
        raise ValueError(f"{file}: can't be read as an npz file ({error}); write it with numpy.savez") from None


def whole(low: int = 0, high: int = LARGEST_ID) -> Callable[[str], int]:
    """Reads a column of integers in a closed range."""

    def number(text: str) -> int:
        digits = text.strip()
        value = int(digits) if digits.removeprefix("-").isdecimal() and digits.isascii() and len(digits) < 20 else None
        if value is None or not low <= value <= high:
            raise ValueError(f"must be an integer from {low} to {high}")
        return value

    return number


def positive(text: str) -> float:
    """Reads a column of finite numbers above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError("must be a finite number above 0")
    return value


def _text(file: Path) -> str:
    size = _check_file(file)
    if size > LARGEST_TEXT:
        raise ValueError(
            f"{file}: has {size:,} bytes, a CSV file may have {LARGEST_TEXT:,}; write an array into an npz file instead"
        )
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{file}: can't be read ({(error.strerror or str(error)).lower()})") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file}: is not text in UTF-8; must be a CSV file, or an npz file named so") from None


def _check_file(file: Path) -> int:
    """Raises unless the path is a regular file; returns its size in bytes."""
    try:
        if file.is_file():
            return file.stat().st_size
        reason = "is not a file" if file.exists() else "there is no such file; a path is relative to its configuration"
    except (OSError, ValueError) as error:
        reason = f"can't be read ({error})"
    raise ValueError(f"{file}: {reason}")


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


def _array(stream: Any, file: Path, dimensions: int) -> np.ndarray:
    # The header is checked first, because it decides how much memory is allocated.
    content = io.BufferedReader(stream)
    try:
        version = np.lib.format.read_magic(content)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"its array has the unknown format {version}")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(content)
        if dtype.hasobject or dtype.kind not in "biuf":
            raise ValueError(f"its array is of type {dtype}, must be of numbers; nothing is unpickled")
        if len(shape) != dimensions:
            raise ValueError(f"its array has shape {shape}, must have {dimensions} dimension(s)")
        count = math.prod(shape)
        if not 0 < count * dtype.itemsize <= LARGEST_ARRAY:
            raise ValueError(f"its array has shape {shape} of {dtype}, must have 1 to {LARGEST_ARRAY:,} bytes")
        data = content.read(count * dtype.itemsize)
    except (zipfile.BadZipFile, EOFError, OSError):
        raise
    except Exception as error:  # a damaged header, a Python literal, or damaged compressed data raise many types
        raise ValueError(f"{file}: {' '.join(str(error).split())[:200]}") from None
    if len(data) != count * dtype.itemsize:
        raise ValueError(f"{file}: is cut off; its array needs {count * dtype.itemsize:,} bytes, has {len(data):,}")
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{file}: its array holds numbers that are not finite")
    return array


def _quote(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:37] + "...")
