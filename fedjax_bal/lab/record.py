"""Reads and checks a run folder's files for a report; messages name the fault and the remedy."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from fedjax_bal.config import LARGEST_YAML, parse_yaml, received_value
from fedjax_bal.files import parse_json, read_bytes
from fedjax_bal.lab.output_files import LARGEST_FILE, FolderError, unreadable
from fedjax_bal.metrics import LARGEST_SHOWN, METRICS, TEXT
from fedjax_bal.registry import PLUGINS

LARGEST = LARGEST_SHOWN


def numbers(*shape: str, low: float = -LARGEST, high: float = LARGEST, gaps: bool = False) -> AfterValidator:
    """Accepts null, a number or nested lists of numbers; lists may contain null if `gaps` is set.

    `shape` gives the lengths of the lists, outermost first: "classes", or a key whose list has the same length.
    """
    bounds = f"within ±{high:g}" if low == -high else f"from {low:g} to {high:g}"

    def check(value: Any, info: ValidationInfo) -> Any:
        sizes = [(info.context or {})[key] if key == "classes" else len(info.data.get(key) or ()) for key in shape]
        if value is not None and not _are_numbers(value, sizes, low, high, gaps):
            what = " of ".join([*(f"a list of {size}" for size in sizes), "a number"])
            raise _expected(f"{what} ({bounds}), or null")
        return value

    return AfterValidator(check)


def _are_numbers(value: Any, sizes: Sequence[int], low: float, high: float, gaps: bool = False) -> bool:
    if sizes:
        fits = isinstance(value, list) and len(value) == sizes[0]
        return fits and all(_are_numbers(entry, sizes[1:], low, high, gaps) for entry in value)
    if value is None:
        return gaps
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _expected(what: str) -> PydanticCustomError:
    return PydanticCustomError("expected", "must be {what}", {"what": what})


_NULL: Any = None  # default of a required key: null fails the type check, so that the message names the type
_Number = Annotated[Any, numbers()]
_PerClass = Annotated[list, numbers("classes", low=0)]
_Amount = Annotated[int, numbers(low=0)]
_Measured = Annotated[float, numbers()]


class JsonObject(BaseModel):
    """A JSON object of a file; types are not converted."""

    model_config = ConfigDict(extra="allow", strict=True, validate_default=True)


class ResumableLine(JsonObject, extra="ignore"):
    """A line of metrics from which a run can resume."""

    method: str
    seed: int
    round: int
    test_accuracy: float
    bytes_up: int
    bytes_down: int
    wall_s: float


_DRAWN: dict[str, Any] = {metric.name: (_Number, None) for metric in METRICS.values() if metric.drawn}


class MetricLine(create_model("Drawn", __base__=JsonObject, **_DRAWN), extra="ignore"):
    """A line of metrics that a report can show."""

    method: str = _NULL
    seed: Annotated[int, numbers()] = _NULL
    round: Annotated[int, numbers()] = _NULL
    client_accuracies: list[_Measured] | None = None
    per_class_accuracy: Annotated[Any, numbers("classes", gaps=True)] = None


class _Composition(JsonObject):
    clients: _Amount = _NULL
    rank_correlation: Annotated[Any, numbers(low=-1, high=1)] = None


class _Distance(JsonObject):
    mean: _Measured = _NULL
    least: _Measured = _NULL


class _Nearest(JsonObject):
    generated: _Distance = _NULL
    test: _Distance = _NULL


class _Attack(JsonObject):
    truth: _Measured = _NULL
    others: _Measured = _NULL


class _Leaks(JsonObject):
    nearest: _Nearest | None = None
    inversion: dict[str, _Attack] = {}


_NUMBERS = [metric.name for metric in METRICS.values() if metric.of_run and metric.unit is not TEXT]
_FIGURES: dict[str, Any] = dict.fromkeys(_NUMBERS, (_Number, None))


class _Run(create_model("Figures", __base__=JsonObject, **_FIGURES)):
    method: str = _NULL
    seed: Annotated[int, numbers()] = _NULL
    composition: _Composition | None = None
    broken_clients: str | None = None
    failure: str | None = None
    leaks: _Leaks | None = None

    @model_validator(mode="after")
    def _with_numbers(self) -> Self:
        """Checks the metrics of plug-ins, which are registered after this class is created."""
        for name, value in (self.model_extra or {}).items():
            if METRICS.plugin(name) and not (value is None or _are_numbers(value, [], -LARGEST, LARGEST)):
                raise _expected(f"{name}, a number (within ±{LARGEST:g}), or null")
        return self


class _Augmentation(JsonObject):
    before: _PerClass = _NULL
    after: _PerClass = _NULL
    extra_rows: _Amount = _NULL
    extra_bytes: _Amount = _NULL


class _Partition(JsonObject):
    methods: list = _NULL
    data: str | None = None
    clients: int = _NULL
    shown: list[_Amount] = _NULL
    class_counts: Annotated[Any, numbers("shown", "classes")] = None
    samples: _PerClass | None = None
    augmentation: _Augmentation | None = None


class _Batch(JsonObject):
    methods: list = _NULL
    kl_before: _Measured = _NULL
    kl_after: _Measured = _NULL


class SummaryFile(JsonObject):
    """The summary of a run folder."""

    finished: bool = _NULL
    class_names: Annotated[list[str], FailFast()] = _NULL
    target_accuracy: _Number = None
    runs: Annotated[list[_Run], FailFast()] = _NULL
    partitions: Annotated[list[_Partition], FailFast()] = []
    batches: Annotated[list[_Batch], FailFast()] = []


def misfit(error: ValidationError) -> tuple[str, Any]:
    """Describes the first error: its location and the expectation; also returns the value."""
    first = error.errors(include_url=False)[0]
    place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"]).lstrip(".")
    return f"{place or 'all of it'}: {first['msg']}", first["input"]


LARGEST_CONFUSION = 2**31
"""Maximum size in bytes of a folder's confusion matrices: 1,700 runs with 50,000 test images each."""

LARGEST_METRICS = 2**32  # bytes
_LARGEST_PICTURES = 2**28  # bytes of all arrays in a file
_LARGEST_SHOWN = 10**100
_DEEPEST = 20
_AGAIN = "put back a copy of it; without one, `fedjax-bal run` with --fresh starts over"


class RunRecord(NamedTuple):
    """The content of a run folder."""

    config: dict[str, Any]  # resolved
    config_text: str
    lines: list[dict[str, Any]]  # of metrics.jsonl, one per run and round, in file order
    summary: dict[str, Any]
    # UInt8[c, S, H, W, K] by name, of each method's first seed: generated images and real ones.
    pictures: Mapping[str, Mapping[str, np.ndarray]] = MappingProxyType({})


@contextlib.contextmanager
def _reading(path: Path, line: int | None = None) -> Iterator[None]:
    """Turns errors about a file, or about one line of it, into a `FolderError` that names the file."""
    try:
        yield
    except FolderError:
        raise
    except FileNotFoundError as error:
        raise FolderError(f"{path}: missing; {_AGAIN}") from error
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        text = str(error).removeprefix(f"{path}: ")
        if isinstance(error, ValidationError):
            expected, received = misfit(error)
            text = f"{expected}; received {received_value(received)}"
        place = path if line is None else f"{path}, line {line}"
        raise FolderError(f"{place}: {text}; the file is damaged: {_AGAIN}") from error


def read_config(path: Path) -> tuple[dict[str, Any], str]:
    """Reads the resolved configuration and its text."""
    with _reading(path):
        text = read_bytes(path, LARGEST_YAML).decode()
        config = parse_yaml(text, str(path))
        if not isinstance(config, dict):
            raise ValueError(
                f"expected a mapping of sections such as dataset and training; received {received_value(config)}"
            )
    return config, text


def check_readable(path: Path, text: str) -> None:
    """Raises `FolderError` for a configuration that is too large to be read back, such as one of 10,000 methods."""
    if len(text) > LARGEST_YAML:
        size = f"{len(text):,} bytes, of which {LARGEST_YAML:,} can be read"
        raise FolderError(f"{path}: would be too large to be read back ({size}); leave out some methods")


def missing_plugins(path: Path) -> list[str]:
    """Names the plug-ins recorded in a configuration or sweep that aren't loaded; none if the file can't be read."""
    try:
        recorded = read_config(path)[0].get("plugins")
    except FolderError:
        return []
    return [received_value(name) for name in recorded if name not in PLUGINS] if isinstance(recorded, dict) else []


def read_summary(path: Path) -> dict[str, Any]:
    """Reads the summary; missing keys become null."""
    if not os.path.lexists(path):
        raise FolderError(
            f"{path}: missing: the run's first session is still running, or was killed. A session writes it when it "
            "ends, also by Ctrl-C; after a kill the same command resumes"
        )
    with _reading(path):
        summary = parse_json(read_bytes(path, LARGEST_FILE), lambda name: None)
        _refuse_extremes(summary)
        names = summary.get("class_names") if isinstance(summary, dict) else None
        classes = len(names) if isinstance(names, list) else 0
        return SummaryFile.model_validate(summary, context={"classes": classes}).model_dump()


def read_metrics(path: Path, classes: int) -> list[dict[str, Any]]:
    """Reads the lines of metrics.

    A truncated last line is dropped; of two lines for the same run and round the later counts.
    """
    held: dict[tuple[str, int, int], dict[str, Any]] = {}
    with _reading(path):
        texts = read_bytes(path, LARGEST_METRICS).split(b"\n")
    for number, text in enumerate(texts, 1):
        with _reading(path, number):
            try:
                line = parse_json(text, lambda name: None) if text.strip() else None
            except ValueError:
                if number < len(texts):
                    raise
                continue  # truncated
            if line is not None:
                MetricLine.model_validate(line, context={"classes": classes})
                held[line["method"], line["seed"], line["round"]] = line
    return list(held.values())


def read_pictures(path: Path, classes: int) -> dict[str, np.ndarray]:
    """Reads a run's pictures, `UInt8[c, S, H, W, K]` by name."""
    from fedjax_bal.data import read_arrays  # imported here, because few runs have pictures

    with _reading(path):
        arrays = read_arrays(path, None, _LARGEST_PICTURES)
        for name, pixels in arrays.items():
            if pixels.dtype != np.uint8 or pixels.ndim != 5 or len(pixels) > classes or pixels.shape[-1] not in (1, 3):
                raise ValueError(
                    f"{name!r}: {pixels.dtype}{list(pixels.shape)}, must be uint8[at most {classes}, S, H, W, 1 or 3]"
                )
    return arrays


def read_confusion(path: Path, classes: int) -> dict[str, Any]:
    """Reads the runs' sparse confusion matrices, by their names in the file; empty if there is no file."""
    from scipy.sparse import coo_array

    from fedjax_bal.data import read_arrays

    if not path.exists():
        return {}
    with _reading(path):
        arrays = read_arrays(path, None, LARGEST_CONFUSION)
        for name, cells in arrays.items():
            fits = cells.dtype == np.int64 and cells.ndim == 2 and len(cells) == 3
            if not fits or cells.min(initial=0) < 0 or cells[:2].max(initial=0) >= classes:
                raise ValueError(
                    f"{name!r}: {cells.dtype}{list(cells.shape)}, must be int64[3, K], true and predicted classes "
                    f"below {classes}, and counts"
                )
    return {name: coo_array((cells[2], (cells[0], cells[1])), (classes, classes)) for name, cells in arrays.items()}


def _refuse_extremes(value: Any) -> None:
    """Rejects very deep nesting and numbers with thousands of digits."""
    left = [(value, 0)]
    while left:
        item, depth = left.pop()
        if depth > _DEEPEST:
            raise ValueError(f"expected values nested at most {_DEEPEST} deep")
        if isinstance(item, int) and abs(item) > _LARGEST_SHOWN:
            raise ValueError("expected numbers of at most 100 digits")
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        left.extend((one, depth + 1) for one in inner)
