"""The schema of `summary.json` and of a line of `metrics.jsonl`; other keys are allowed, missing ones are null."""

from collections.abc import Sequence
from typing import Annotated, Any, Self

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

from fedjax_bal.metrics import LARGEST_SHOWN, METRICS, TEXT

LARGEST = LARGEST_SHOWN


def numbers(*shape: str, low: float = -LARGEST, high: float = LARGEST, gaps: bool = False) -> AfterValidator:
    """Accepts null, a number, or nested lists of numbers, with null among them if `gaps` are allowed.

    `shape` gives the lengths of the lists, outermost first: "classes", or the length of the list with that key.
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


_NULL: Any = None  # of a key that must be there: null is checked like any value, and the message names the type
_Number = Annotated[Any, numbers()]
_PerClass = Annotated[list, numbers("classes", low=0)]
_Amount = Annotated[int, numbers(low=0)]
_Measured = Annotated[float, numbers()]


class JsonObject(BaseModel):
    """An object of a file; types are not converted."""

    model_config = ConfigDict(extra="allow", strict=True, validate_default=True)


class ResumableLine(JsonObject, extra="ignore"):
    """A line of metrics that a run can go on from."""

    method: str
    seed: int
    round: int
    test_accuracy: float
    bytes_up: int
    bytes_down: int
    wall_s: float


class MetricLine(JsonObject, extra="ignore"):
    """A line of metrics that a report can show."""

    method: str = _NULL
    seed: Annotated[int, numbers()] = _NULL
    round: Annotated[int, numbers()] = _NULL
    test_accuracy: _Number = None
    bytes_up: _Number = None
    bytes_down: _Number = None
    chain_kl: _Number = None
    local_test_accuracy: _Number = None
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
        """Plug-ins' metrics are registered after this class is made."""
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
    """The first error's place and expectation in words, and the value found there."""
    first = error.errors(include_url=False)[0]
    place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"]).lstrip(".")
    return f"{place or 'all of it'}: {first['msg']}", first["input"]
