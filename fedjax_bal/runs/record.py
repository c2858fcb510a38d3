"""Reads and checks a run folder's files for a report; a message says what is wrong and what to do."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from pydantic import ValidationError

from fedjax_bal.config import LARGEST_YAML, ConfigError, parse_yaml, received_value
from fedjax_bal.files import open_file, parse_json, read_bytes
from fedjax_bal.registry import PLUGINS
from fedjax_bal.runs.output_files import LARGEST_FILE, FolderError, unreadable
from fedjax_bal.runs.schema import JsonObject, MetricLine, SummaryFile, misfit

MOST_LINES = 50_000
"""More lines of metrics are thinned out: a page can't show more, and each takes two to three kilobytes of memory."""

LARGEST_CONFUSION = 2**31
"""Bytes of all confusion matrices of a folder, enough for 1,700 runs with 50,000 test images each."""

_LARGEST_PICTURES = 2**28  # bytes of all arrays of a file
_LONGEST_LINE = 2**26  # bytes
_LARGEST_SHOWN = 10**100
_DEEPEST = 20
_AGAIN = "put back a copy of it; without one, `fedjax-bal run` with --fresh starts over"


class RunRecord(NamedTuple):
    """The content of a run folder."""

    config: dict[str, Any]  # resolved
    config_text: str
    lines: list[dict[str, Any]]  # of metrics.jsonl, one per run and round, in the order of the file
    summary: dict[str, Any]
    # The first seed's UInt8[c, S, H, W, K] by name, real ones too, of methods that have learnt to make images.
    pictures: Mapping[str, Mapping[str, np.ndarray]] = MappingProxyType({})
    left_out: int = 0  # lines of a very long metrics.jsonl that were thinned out


def read_config(path: Path) -> tuple[dict[str, Any], str]:
    """The resolved configuration, and the text that it was read from."""
    text = _decode(path, _read_bytes(path, LARGEST_YAML))
    try:
        config = parse_yaml(text, str(path))
    except ConfigError as error:
        raise FolderError(f"{error}; the file is damaged: {_AGAIN}") from error
    if not isinstance(config, dict):
        raise _damaged(path, 1, "a mapping of sections such as dataset and training", _shown(config))
    return config, text


def check_readable(path: Path, text: str) -> None:
    """Raises `FolderError` for a configuration that is too large to be read back, as of 10,000 methods."""
    try:
        if len(text) > LARGEST_YAML:
            raise ConfigError(f"{len(text):,} bytes, of which {LARGEST_YAML:,} can be read")
        if len(text) > LARGEST_YAML // 10:  # a shorter one can't hold too many values
            parse_yaml(text, str(path))
    except ConfigError as error:
        raise FolderError(f"{path}: would be too large to be read back ({error}); leave out some methods") from error


def missing_plugins(path: Path) -> list[str]:
    """The plug-ins that a configuration or a sweep has recorded and that aren't loaded; none if it can't be read."""
    try:
        recorded = read_config(path)[0].get("plugins")
    except FolderError:
        return []
    return [received_value(name) for name in recorded if name not in PLUGINS] if isinstance(recorded, dict) else []


def read_summary(path: Path) -> dict[str, Any]:
    """The summary, with null for keys that are missing."""
    if not os.path.lexists(path):
        raise FolderError(
            f"{path}: there is none: the run's first session is going on, or was killed. A session writes it when it "
            "ends, also by Ctrl-C; after a kill the same command goes on"
        )
    summary = _parse(path, 1, _decode(path, _read_bytes(path, LARGEST_FILE)))
    _refuse_extremes(path, summary)
    names = summary.get("class_names") if isinstance(summary, dict) else None
    return _checked(path, 1, SummaryFile, summary, len(names) if isinstance(names, list) else 0).model_dump()


def read_metrics(path: Path, classes: int) -> tuple[list[dict[str, Any]], int]:
    """The lines of metrics, without a last one that was cut off, and how many were left out of very many.

    Of two lines for the same run and round the later one counts. Of more than `MOST_LINES` lines every second, third,
    ... of each run is kept, and its last one; the bytes sent in those left out are added to the next one.
    """
    try:
        with open_file(path) as stream:
            stride = -(-sum(1 for _ in _raw_lines(stream)) // MOST_LINES)
            stream.seek(0)
            held: dict[tuple[str, int, int], dict[str, Any]] = {}
            last: dict[tuple[str, int], tuple[int, dict[str, Any]]] = {}
            left_out = 0
            for number, raw in enumerate(_raw_lines(stream), 1):
                line = _read_line(path, number, raw, classes)
                if line is None:
                    continue
                run = line["method"], line["seed"]
                count, before = last.get(run, (0, line))
                if count % stride and before["round"] != line["round"]:
                    for key in ("bytes_up", "bytes_down"):
                        known = None not in (before.get(key), line.get(key))
                        line[key] = before[key] + line[key] if known else None
                    del held[(*run, before["round"])]
                    left_out += 1
                held[(*run, line["round"])] = line
                last[run] = count + 1, line
            return list(held.values()), left_out
    except OSError as error:
        raise _unreadable(path, error) from error


def _raw_lines(stream: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: stream.readline(_LONGEST_LINE + 1), b"")


def read_pictures(path: Path, classes: int) -> dict[str, np.ndarray]:
    """A run's pictures, `UInt8[c, S, H, W, K]` by name."""
    from fedjax_bal.data import DataError, read_arrays  # late, as few runs have pictures

    try:
        arrays = read_arrays(path, None, _LARGEST_PICTURES)
    except DataError as error:
        raise FolderError(f"{path}: can't be read as arrays ({error}); {_AGAIN}, or remove the file") from error
    for name, pixels in arrays.items():
        if pixels.dtype != np.uint8 or pixels.ndim != 5 or len(pixels) > classes or pixels.shape[-1] not in (1, 3):
            raise FolderError(
                f"{path}: {name!r}: {pixels.dtype}{list(pixels.shape)}, must be uint8[at most {classes}, S, H, W, "
                f"1 or 3]: {_AGAIN}, or remove the file"
            )
    return arrays


def read_confusion(path: Path, classes: int) -> dict[str, Any]:
    """The confusion matrices of runs, sparse, by the names that the file has for them; none where there is no file."""
    from scipy.sparse import coo_array

    from fedjax_bal.data import DataError, read_arrays

    if not path.exists():
        return {}
    try:
        arrays = read_arrays(path, None, LARGEST_CONFUSION)
    except DataError as error:
        raise FolderError(f"{path}: can't be read as arrays ({error}); {_AGAIN}") from error
    for name, cells in arrays.items():
        fits = cells.dtype == np.int64 and cells.ndim == 2 and len(cells) == 3
        if not fits or cells.min(initial=0) < 0 or cells[:2].max(initial=0) >= classes:
            raise FolderError(
                f"{path}: {name!r}: {cells.dtype}{list(cells.shape)}, must be int64[3, K], true and predicted classes "
                f"below {classes}, and counts: {_AGAIN}"
            )
    return {name: coo_array((own[2], (own[0], own[1])), (classes, classes)) for name, own in arrays.items()}


def _read_line(path: Path, number: int, raw: bytes, classes: int) -> dict[str, Any] | None:
    if len(raw) > _LONGEST_LINE:
        raise FolderError(f"{path}, line {number}: longer than {_LONGEST_LINE:,} bytes, which no run writes; {_AGAIN}")
    if not raw.strip():
        return None
    try:
        line = _parse(path, number, _decode(path, raw.removesuffix(b"\n"), number))
    except FolderError:
        if raw.endswith(b"\n"):
            raise
        return None  # cut off
    _checked(path, number, MetricLine, line, classes)
    return line


def _checked(path: Path, line: int, kind: type[JsonObject], value: Any, classes: int) -> JsonObject:
    try:
        return kind.model_validate(value, context={"classes": classes})
    except ValidationError as error:
        expected, received = misfit(error)
        raise _damaged(path, line, expected, _shown(received)) from error


def _read_bytes(path: Path, limit: int) -> bytes:
    try:
        return read_bytes(path, limit)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> FolderError:
    if isinstance(error, FileNotFoundError):
        return FolderError(f"{path}: there is none, and a run folder holds this file; {_AGAIN}")
    return unreadable(path, error)


def _decode(path: Path, raw: bytes, line: int | None = None) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        at = line or raw[: error.start].count(b"\n") + 1
        raise _damaged(path, at, "UTF-8 text", f"the byte 0x{raw[error.start]:02x}") from error


def _parse(path: Path, line: int, text: str) -> Any:
    try:
        return parse_json(text, lambda name: None)
    except json.JSONDecodeError as error:
        raise _damaged(path, line + error.lineno - 1, "JSON", f"{error.msg} at column {error.colno}") from error
    except ValueError as error:
        raise _damaged(path, line, "JSON", "nesting or numbers beyond all bounds") from error


def _refuse_extremes(path: Path, value: Any) -> None:
    """Refuses endless nesting, and numbers of thousands of digits."""
    left = [(value, 0)]
    while left:
        item, depth = left.pop()
        if depth > _DEEPEST:
            raise _damaged(path, 1, f"values nested at most {_DEEPEST} deep", "deeper nesting")
        if isinstance(item, int) and abs(item) > _LARGEST_SHOWN:
            raise _damaged(path, 1, "numbers of at most 100 digits", "a longer one")
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        left.extend((one, depth + 1) for one in inner)


def _damaged(path: Path, line: int, expected: str, received: str) -> FolderError:
    return FolderError(f"{path}, line {line}: expected {expected}; received {received}; the file is damaged: {_AGAIN}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
