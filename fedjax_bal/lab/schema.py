"""The content of `metrics.jsonl` and `summary.json`, declared once, and a reader of run folders for reports.

The types here are the only declaration of the two files: the type checker compares with them what sessions write, and
reports what they read; messages name the file, the key and the remedy. Metrics are declared in `fedjax_bal.metrics`.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, NotRequired

import numpy as np
from pydantic import AfterValidator, FailFast, Field, TypeAdapter, ValidationError, ValidationInfo
from typing_extensions import TypedDict  # pydantic refuses that of `typing` before Python 3.12

from fedjax_bal.analyses import Findings
from fedjax_bal.config import LARGEST_YAML, parse_yaml, received_value
from fedjax_bal.files import parse_json, read_bytes
from fedjax_bal.lab.output_files import LARGEST_FILE, FolderError, reading
from fedjax_bal.metrics import LARGEST_SHOWN, METRICS, TEXT
from fedjax_bal.validate import is_number

LARGEST_CONFUSION = 2**31
"""Maximum size in bytes of a folder's confusion matrices: 1,700 runs with 50,000 test images each."""

LARGEST_METRICS = 2**32  # bytes
_LARGEST_PICTURES = 2**28  # bytes of all arrays in a file
_LARGEST_INTEGER = 10**100
_DEEPEST = 20
_REMEDY = "put back a copy of it; without one, `fedjax-bal run` with --fresh starts over"


def _one_per_class(values: list[Any], info: ValidationInfo) -> list[Any]:
    classes = (info.context or {})["classes"]
    if len(values) != classes:
        raise ValueError(f"must be a list of {classes}, one for each class")
    return values


Number = Annotated[float, Field(ge=-LARGEST_SHOWN, le=LARGEST_SHOWN)]
Integer = Annotated[int, Field(ge=-_LARGEST_INTEGER, le=_LARGEST_INTEGER)]
Amount = Annotated[int, Field(ge=0, le=_LARGEST_INTEGER)]
# A damaged list stops at its first error, because a file can have ten million.
AmountPerClass = Annotated[list[Amount], FailFast(), AfterValidator(_one_per_class)]


class Line(TypedDict):
    """A line of `metrics.jsonl`: an evaluated round, with its metrics under their names."""

    method: str
    seed: Integer
    round: Integer
    per_class_accuracy: NotRequired[Annotated[list[Number | None], AfterValidator(_one_per_class)] | None]
    client_accuracies: NotRequired[list[Number | None] | None]


class ResumableLine(TypedDict):
    """The keys of a line that a run needs to resume."""

    method: str
    seed: int
    round: int
    test_accuracy: float
    bytes_up: int
    bytes_down: int
    wall_s: float


class Composition(TypedDict):
    """Estimated against true class shares of the clients."""

    clients: Amount
    rank_correlation: Annotated[float, Field(ge=-1, le=1)] | None


class Run(TypedDict):
    """A run, with its metrics under their names."""

    method: str
    seed: Integer
    composition: NotRequired[Composition]
    failure: str | None
    broken_clients: str | None


class Augmentation(TypedDict):
    """Rows of each class before and after augmentation, and what it adds."""

    before: AmountPerClass
    after: AmountPerClass
    extra_rows: Amount
    extra_bytes: Amount


class Partition(TypedDict):
    """The partition of some methods: the classes of the clients that are shown, and of all clients together."""

    methods: list[str]
    data: str
    clients: int
    mean: list[float]
    std: list[float]
    input_shape: NotRequired[list[Amount]]
    input_names: NotRequired[list[str]]
    client_names: NotRequired[list[str]]
    input_dtype: NotRequired[Annotated[str, Field(pattern="^(uint8|int32|float16|float32)$")]]
    shown: Annotated[list[Amount], FailFast()]
    class_counts: Annotated[list[AmountPerClass], FailFast()]
    samples: AmountPerClass
    augmentation: NotRequired[Augmentation]


class MiniBatches(TypedDict):
    """The divergence of the classes in mini-batches from equal shares, before and after methods add rows."""

    methods: list[str]
    kl_before: Number
    kl_after: Number


class Command(TypedDict):
    """Options with which a page's command repeats the run: its plug-ins (files or modules) and its data folder."""

    plugins: list[str]
    data_dir: str | None


class SavedCost(TypedDict):
    """The fields of a `Cost`."""

    compile_s: Number
    train_s: Number
    client_updates: Amount
    samples: Amount


class Summary(TypedDict):
    """The content of `summary.json`."""

    name: str
    finished: bool
    device: str | None
    versions: dict[str, str]
    command: Command
    compile_s: Number
    wall_s: Number
    client_updates_per_s: Number | None
    samples_per_s: Number | None
    cost: SavedCost
    target_accuracy: Number | None
    class_names: Annotated[list[str], FailFast()]
    partitions: Annotated[list[Partition], FailFast()]
    batches: Annotated[list[MiniBatches], FailFast()]
    runs: Annotated[list[Run], FailFast()]


_SUMMARY = TypeAdapter(Summary)
_LINE = TypeAdapter(Line)
_RESUMABLE_LINE = TypeAdapter(ResumableLine)


def _check(content: Any, declared: TypeAdapter, classes: int = 0) -> None:
    """Raises `ValueError` if content differs from its declaration; types are not converted."""
    try:
        declared.validate_python(content, strict=True, context={"classes": classes})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"]).lstrip(".")
        expected = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{key or 'all of it'}: {expected}; received {received_value(first['input'])}") from error


def _check_numbers(entry: Mapping[str, Any], names: Iterable[str], place: str = "") -> None:
    """Raises `ValueError` if one of the named metrics isn't a number; plug-ins can add metrics at any time."""
    for name in names:
        value = entry.get(name)
        if value is not None and not (is_number(value) and abs(value) <= LARGEST_SHOWN):
            expected = f"must be a number (within ±{LARGEST_SHOWN:g}), or null"
            raise ValueError(f"{place}{name}: {expected}; received {received_value(value)}")


class RunId(NamedTuple):
    """Identifies a run of a comparison."""

    method: str
    seed: int


class RunClients(NamedTuple):
    """The last evaluation of a run on each client's own test rows: a block of `clients.csv`, a row for each client.

    Attributes:
        method: the method's name.
        seed: the seed.
        names: the clients' names, or else their numbers, in the order of the clients.
        training_rows: `Int[N]`, without augmented copies.
        test_rows: `Int[N]`.
        accuracy: `Float[N]`; nan for a client without test rows.
        balanced_accuracy: mean over the classes of the client's test rows, `Float[N]`; nan where unknown.
    """

    method: str
    seed: int
    names: tuple[str, ...]
    training_rows: np.ndarray
    test_rows: np.ndarray
    accuracy: np.ndarray
    balanced_accuracy: np.ndarray

    @property
    def named(self) -> bool:
        """Returns whether the clients have names, not only numbers."""
        return self.names != tuple(map(str, range(len(self.names))))


class RunRecord(NamedTuple):
    """The content of a run folder."""

    config: dict[str, Any]  # resolved
    config_text: str  # names copies of files in the folder
    lines: list[dict[str, Any]]  # of metrics.jsonl, one per run and round, in file order
    summary: dict[str, Any]
    # UInt8[c, S, H, W, K] by name, of each method's first seed: generated images and real ones.
    pictures: Mapping[str, Mapping[str, np.ndarray]] = MappingProxyType({})
    clients: Sequence[RunClients] = ()
    # Of each method's first seed, by analysis and method.
    findings: Mapping[str, Mapping[str, Findings]] = MappingProxyType({})


@contextlib.contextmanager
def checking(path: Path, remedy: str = _REMEDY) -> Iterator[None]:
    """Turns errors about a file into a `FolderError` that names it."""
    with reading(path):
        try:
            yield
        except FolderError:
            raise
        except FileNotFoundError as error:
            raise FolderError(f"{path}: missing; {remedy}") from error
        except ValueError as error:
            text = str(error).removeprefix(f"{path}: ")
            raise FolderError(f"{path}: {text}; the file is damaged: {remedy}") from error


def read_config(path: Path, remedy: str = _REMEDY) -> tuple[dict[str, Any], str]:
    """Reads the resolved configuration, or a sweep's sheet, and its text."""
    with checking(path, remedy):
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


def read_summary(path: Path) -> dict[str, Any]:
    """Reads the summary as `check_summary` leaves it."""
    if not os.path.lexists(path):
        raise FolderError(
            f"{path}: missing: the run's first session is still running, or was killed. A session writes it when "
            "it ends, also by Ctrl-C; after a kill the same command resumes"
        )
    with checking(path):
        summary = parse_json(read_bytes(path, LARGEST_FILE), lambda name: None)
        check_summary(summary)
    return summary


def check_summary(summary: Any) -> None:
    """Raises `ValueError` if this isn't the content of a summary; metrics that a run doesn't have become None."""
    _refuse_extremes(summary)
    names = summary.get("class_names") if isinstance(summary, dict) else None
    _check(summary, _SUMMARY, len(names) if isinstance(names, list) else 0)
    for place, part in enumerate(summary["partitions"]):
        for key in ("class_counts", "client_names"):
            if key in part and len(part["shown"]) != len(part[key]):
                raise ValueError(
                    f"partitions[{place}].{key}: must be a list of {len(part['shown'])}, one for each client in "
                    f"`shown`; received {len(part[key])}"
                )
    metrics = [metric.name for metric in METRICS.values() if metric.of_run and metric.unit is not TEXT]
    for place, run in enumerate(summary["runs"]):
        _check_numbers(run, metrics, f"runs[{place}].")
        run |= {name: run.get(name) for name in metrics}


def parse_lines(
    content: bytes, damaged: Callable[[int, ValueError], object], classes: int | None = None
) -> list[dict[str, Any]]:
    """Parses lines of metrics for a report, given the number of classes, or without it for a run that resumes.

    NaN and infinite numbers become None. A truncated last line is dropped. Damaged lines are passed to `damaged`, with
    their number and the error, and dropped.
    """
    metrics = [metric.name for metric in METRICS.values() if metric.drawn]
    texts = content.split(b"\n")
    lines = []
    for number, text in enumerate(texts, 1):
        values = None
        try:
            if text.strip():
                values = parse_json(text, lambda name: None)
                _check(values, _RESUMABLE_LINE if classes is None else _LINE, classes or 0)
                _check_numbers(values, metrics)
                lines.append(values)
        except ValueError as error:
            if values is not None or number < len(texts):
                damaged(number, error)
    return lines


def read_metrics(path: Path, classes: int) -> list[dict[str, Any]]:
    """Reads the lines of metrics; of two lines for the same run and round the later counts."""

    def refuse(number: int, error: ValueError) -> None:
        raise FolderError(f"{path}, line {number}: {error}; the file is damaged: {_REMEDY}") from error

    with checking(path):
        lines = parse_lines(read_bytes(path, LARGEST_METRICS), refuse, classes)
    return list({(line["method"], line["seed"], line["round"]): line for line in lines}.values())


def read_pictures(path: Path, classes: int) -> dict[str, np.ndarray]:
    """Reads a run's pictures, `UInt8[c, S, H, W, K]` by name."""
    from fedjax_bal.data import read_arrays  # imported here, because few runs have pictures

    with checking(path):
        arrays = read_arrays(path, None, _LARGEST_PICTURES)
        for name, pixels in arrays.items():
            if pixels.dtype != np.uint8 or pixels.ndim != 5 or len(pixels) > classes or pixels.shape[-1] not in (1, 3):
                raise ValueError(
                    f"{name!r}: {pixels.dtype}{list(pixels.shape)}, must be uint8[at most {classes}, S, H, W, 1 or 3]"
                )
    return arrays


def read_analysed(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays that an analysis made, by name."""
    from fedjax_bal.data import read_arrays

    with checking(path):
        return read_arrays(path, None, _LARGEST_PICTURES)


def read_confusion(path: Path, classes: int) -> dict[str, Any]:
    """Reads the runs' sparse confusion matrices, by their names in the file; empty if there is no file."""
    from scipy.sparse import coo_array

    from fedjax_bal.data import read_arrays

    if not path.exists():
        return {}
    with checking(path):
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
        if isinstance(item, int) and abs(item) > _LARGEST_INTEGER:
            raise ValueError("expected numbers of at most 100 digits")
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        left.extend((one, depth + 1) for one in inner)
