"""Reading a run folder: its three files, checked, or one message that says what is wrong and what to do."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.files import open_file, read_bytes
from fedjax_bal.metrics import ALL_METRICS
from fedjax_bal.report.metric_lines import LONGEST_LINE, read_lines

# Far beyond any count of bytes, and small enough to be added and drawn.
LARGEST = 1e18
DEEPEST = 20
_LARGEST_SHOWN = 10**100
# Bytes: of config.yaml, summary.json and metrics.jsonl, and of the arrays of a file of pictures.
LARGEST_CONFIG = 1_000_000
LARGEST_NOTES = 2**28
LARGEST_PICTURES = 2**28
MOST_VALUES = 50_000
# As a run writes them: chains (or tested clients) of a round, and clients of a selector in a picture at most 50.
MOST_CHAINS = 100
MOST_SHOWN = 1000
MOST_TIMES = 100_000
NUMBERS_OF_A_RUN = (
    "rounds",
    "final_accuracy",
    "best_accuracy",
    "last5_accuracy",
    "rounds_to_target",
    "traffic_bytes",
    "traffic_to_target_bytes",
    "chain_kl",
    "clients_per_chain",
    "copies",
    "stopped_early",
    "best_validation_round",
    "excluded",
    "clipped",
    *(metric.name for metric in ALL_METRICS if metric.column),
)
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)
RERUN = "run `fedjax-bal run` on this folder again to write it anew"


class ReportError(ValueError):
    """A run folder lacks a file, or one is damaged; the message names the file, the line and what to do."""


class RunRecord(NamedTuple):
    """What a run left behind.

    Attributes:
        config: the resolved configuration.
        config_text: the same as the file has it.
        lines: of `metrics.jsonl`, one per run and round, in the order of the file.
        summary: `summary.json`.
        pictures: of methods that have learnt to make images, by method's name: the first seed's, by what they are,
            `UInt8[c, S, H, W, K]`; real ones are among them.
        left_out: how many lines of a very long `metrics.jsonl` were thinned out.
    """

    config: dict[str, Any]
    config_text: str
    lines: list[dict[str, Any]]
    summary: dict[str, Any]
    pictures: Mapping[str, Mapping[str, np.ndarray]] = MappingProxyType({})
    left_out: int = 0


def read(folder: Path) -> RunRecord:
    """Reads and checks a run folder.

    Args:
        folder: with `config.yaml`, `metrics.jsonl` and `summary.json`.

    Returns:
        Their content. A last line of the metrics that was cut off is left out, and of two lines for the same run and
        round the later one counts; NaN and infinite numbers are read as None.

    Raises:
        ReportError: a file is missing, can't be read, or does not hold what it should.

    >>> read(Path("no/such/folder"))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ...
    ReportError: no/such/folder: no such folder; give the folder that a run wrote
    """
    if not folder.is_dir():
        raise ReportError(f"{folder}: no such folder; give the folder that a run wrote")
    config, config_text = _read_config(folder / "config.yaml")
    summary = _read_summary(folder / "summary.json")
    lines, left_out = _read_metrics(folder / "metrics.jsonl", len(summary["class_names"]))
    return RunRecord(config, config_text, lines, summary, _read_pictures(folder / "pictures", summary), left_out)


def _read_pictures(folder: Path, summary: dict[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    first: dict[str, int] = {}
    for run in summary["runs"]:
        first.setdefault(run["method"], run["seed"])
    # Methods begin in their order, so that their places in the summary are their numbers.
    paths = {method: folder / f"method-{place}-seed-{seed}.npz" for place, (method, seed) in enumerate(first.items())}
    return {method: _pixels(path, len(summary["class_names"])) for method, path in paths.items() if path.is_file()}


def _pixels(path: Path, classes: int) -> dict[str, np.ndarray]:
    # Imported late, as all that few reports need.
    from fedjax_bal.data import DataError, read_arrays

    try:
        arrays = read_arrays(path, None, LARGEST_PICTURES)
    except DataError as error:
        raise ReportError(f"{path}: can't be read as arrays ({error}); {RERUN}, or remove the file") from error
    for name, pixels in arrays.items():
        if pixels.dtype != np.uint8 or pixels.ndim != 5 or len(pixels) > classes or pixels.shape[-1] not in (1, 3):
            raise ReportError(
                f"{path}: {name!r}: {pixels.dtype}{list(pixels.shape)}, must be uint8[at most {classes}, S, H, W, "
                f"1 or 3]: {RERUN}, or remove the file"
            )
    return arrays


def _read_config(path: Path) -> tuple[dict[str, Any], str]:
    # Imported late, as all that only the report and the command line need.
    import yaml

    text = _decode(path, _read_bytes(path, LARGEST_CONFIG))
    try:
        _refuse_knots(path, text)
        config = yaml.safe_load(text)
    except ReportError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        raise _damaged(path, mark.line + 1 if mark else 1, "YAML", "something else") from error
    if not isinstance(config, dict):
        raise _damaged(path, 1, "a mapping of sections such as dataset and training", _shown(config))
    _refuse_extremes(path, config)
    return config, text


def _refuse_knots(path: Path, text: str) -> None:
    # An alias may refer to what it stands in, and the parser takes minutes over deep nesting; no run writes either.
    import yaml

    depth = 0
    for number, event in enumerate(yaml.parse(text, yaml.SafeLoader)):
        line = event.start_mark.line + 1
        if number > MOST_VALUES:
            raise _damaged(path, line, f"YAML of at most {MOST_VALUES} keys and values", "more")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise _damaged(path, line, "YAML without aliases", f"*{event.anchor}")
        if depth > DEEPEST:
            raise _damaged(path, line, f"YAML nested at most {DEEPEST} deep", "deeper nesting")


def _read_summary(path: Path) -> dict[str, Any]:
    raw = _read_bytes(path, LARGEST_NOTES)
    summary = _parse(path, 1, _decode(path, raw))
    _check(path, 1, "", summary, {"finished": bool, "runs": list, "class_names": list})
    _refuse_extremes(path, summary)
    _check_numbers(path, 1, "target_accuracy", summary.get("target_accuracy"))
    classes = len(summary["class_names"])
    names = {str(place): name for place, name in enumerate(summary["class_names"])}
    _check(path, 1, "class_names.", names, dict.fromkeys(names, str))
    _check(path, 1, "", {"partitions": summary.setdefault("partitions", [])}, {"partitions": list})
    for place, run in enumerate(summary["runs"]):
        _check(path, 1, f"runs[{place}].", run, {"method": str, "seed": int})
        _check_numbers(path, 1, f"runs[{place}].seed", run["seed"])
        for key in NUMBERS_OF_A_RUN:
            _check_numbers(path, 1, f"runs[{place}].{key}", run.setdefault(key, None))
        _check_list(path, 1, f"runs[{place}].chosen", run.setdefault("chosen", None), MOST_TIMES, whole=True)
        _check_composition(path, f"runs[{place}].composition", run.setdefault("composition", None), classes)
        if run.setdefault("broken_clients", None) is not None:
            _check(path, 1, f"runs[{place}].", run, {"broken_clients": str})
        _check_leaks(path, f"runs[{place}].leaks", run.setdefault("leaks", None))
        # A run without an evaluation has a matrix of size 0.
        run["confusion_matrix"] = run.get("confusion_matrix") or None
        _check_numbers(path, 1, f"runs[{place}].confusion_matrix", run["confusion_matrix"], (classes, classes))
    for place, part in enumerate(summary["partitions"]):
        _check(path, 1, f"partitions[{place}].", part, {"methods": list, "clients": int, "shown": list})
        shape = (len(part["shown"]), classes)
        _check_numbers(path, 1, f"partitions[{place}].class_counts", part.get("class_counts"), shape)
        _check_augmentation(path, f"partitions[{place}].augmentation", part.setdefault("augmentation", None), classes)
    _check(path, 1, "", {"batches": summary.setdefault("batches", [])}, {"batches": list})
    for place, entry in enumerate(summary["batches"]):
        _check(path, 1, f"batches[{place}].", entry, {"methods": list, "shown": list, "before": list, "after": list})
        _check_list(path, 1, f"batches[{place}].shown", entry["shown"], MOST_SHOWN, whole=True)
        for key in ("before", "after"):
            _check_numbers(
                path, 1, f"batches[{place}].{key}", entry[key], (len(entry["shown"]), classes), within=(0, 1)
            )
    return summary


def _check_leaks(path: Path, where: str, value: Any) -> None:
    if value is None:
        return
    _check(path, 1, f"{where}.", {"it": value}, {"it": dict})
    for name, wanted in (("nearest", ("mean", "least")), ("inversion", ("truth", "others"))):
        part = value.setdefault(name, {})
        _check(path, 1, f"{where}.", value, {name: dict})
        for key in part:
            _check(path, 1, f"{where}.{name}.", part, {key: dict})
            for number in wanted:
                _check(path, 1, f"{where}.{name}.{key}.", part[key], {number: float})
                _check_numbers(path, 1, f"{where}.{name}.{key}.{number}", part[key][number])
    if value["nearest"]:
        _check(path, 1, f"{where}.nearest.", value["nearest"], {"generated": dict, "test": dict})


def _check_composition(path: Path, where: str, value: Any, classes: int) -> None:
    if value is None:
        return
    _check(path, 1, f"{where}.", value, {"clients": int, "shown": list, "estimated": list, "true": list})
    _check_list(path, 1, f"{where}.shown", value["shown"], MOST_SHOWN, whole=True)
    _check_numbers(path, 1, f"{where}.clients", value["clients"], within=(0, LARGEST))
    _check_numbers(path, 1, f"{where}.rank_correlation", value.setdefault("rank_correlation", None), within=(-1, 1))
    for key in ("estimated", "true"):
        _check_numbers(path, 1, f"{where}.{key}", value[key], (len(value["shown"]), classes), within=(0, 1))


def _check_augmentation(path: Path, where: str, value: Any, classes: int) -> None:
    if value is None:
        return
    _check(path, 1, f"{where}.", value, {"before": list, "after": list, "extra_rows": int, "extra_bytes": int})
    for key, shape in (("before", (classes,)), ("after", (classes,)), ("extra_rows", ()), ("extra_bytes", ())):
        _check_numbers(path, 1, f"{where}.{key}", value[key], shape, within=(0, LARGEST))


def _read_metrics(path: Path, classes: int) -> tuple[list[dict[str, Any]], int]:
    try:
        with open_file(path) as stream:
            return read_lines(stream, lambda number, raw: _read_line(path, number, raw, classes))
    except OSError as error:
        raise _unreadable(path, error) from error


def _read_line(path: Path, number: int, raw: bytes, classes: int) -> dict[str, Any] | None:
    if len(raw) > LONGEST_LINE:
        raise ReportError(f"{path}, line {number}: longer than {LONGEST_LINE:,} bytes, which no run writes; {RERUN}")
    if not raw.strip() or not (raw.endswith(b"\n") or _is_json(raw)):
        return None
    line = _parse(path, number, _decode(path, raw.removesuffix(b"\n"), number))
    _check(path, number, "", line, {"method": str, "seed": int, "round": int})
    for key in ("seed", "round", "test_accuracy", "bytes_up", "bytes_down", "chain_kl", "local_test_accuracy"):
        _check_numbers(path, number, key, line.get(key))
    for key in ("chain_kls", "client_accuracies"):
        _check_list(path, number, key, line.get(key), MOST_CHAINS)
    _check_numbers(path, number, "per_class_accuracy", line.get("per_class_accuracy"), (classes,), gaps=True)
    return line


def _read_bytes(path: Path, limit: int) -> bytes:
    try:
        return read_bytes(path, limit)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ReportError:
    return ReportError(f"{path}: can't be read ({error.strerror}); a run folder holds this file; {RERUN}")


def _decode(path: Path, raw: bytes, line: int | None = None) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        at = line or raw[: error.start].count(b"\n") + 1
        raise _damaged(path, at, "UTF-8 text", f"the byte 0x{raw[error.start]:02x}") from error


def _parse(path: Path, line: int, text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _damaged(path, line + error.lineno - 1, "JSON", f"{error.msg} at column {error.colno}") from error
    except (RecursionError, ValueError) as error:
        raise _damaged(path, line, "JSON", "nesting or numbers beyond all bounds") from error


def _is_json(raw: bytes) -> bool:
    try:
        json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_extremes(path: Path, value: Any) -> None:
    """Refuses what can't be shown: nesting without end, and numbers of thousands of digits."""
    left = [(value, 0)]
    while left:
        item, depth = left.pop()
        if depth > DEEPEST:
            raise _damaged(path, 1, f"values nested at most {DEEPEST} deep", "deeper nesting")
        if isinstance(item, int) and abs(item) > _LARGEST_SHOWN:
            raise _damaged(path, 1, "numbers of at most 100 digits", "a longer one")
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        left.extend((one, depth + 1) for one in inner)


def _check(path: Path, line: int, where: str, value: Any, kinds: Mapping[str, type]) -> None:
    if not isinstance(value, dict):
        raise _damaged(path, line, f"{where.rstrip('.') or 'the line'}: an object", _shown(value))
    for key, kind in kinds.items():
        if type(value.get(key)) is not kind:
            raise _damaged(path, line, f"{where}{key}: a value of type {kind.__name__}", _shown(value.get(key)))


def _check_numbers(
    path: Path,
    line: int,
    key: str,
    value: Any,
    shape: tuple[int, ...] = (),
    gaps: bool = False,
    within: tuple[float, float] = (-LARGEST, LARGEST),
) -> None:
    if value is not None and not _is_numbers(value, shape, gaps, within):
        what = " of ".join([*(f"a list of {size}" for size in shape), "a number"])
        low, high = within
        bounds = f"within ±{high:g}" if low == -high else f"from {low:g} to {high:g}"
        raise _damaged(path, line, f"{key}: {what} ({bounds}), or null", _shown(value))


def _check_list(path: Path, line: int, key: str, value: Any, most: int, whole: bool = False) -> None:
    if value is None:
        return
    fits = isinstance(value, list) and len(value) <= most and _is_numbers(value, (len(value),), False, (0, LARGEST))
    if not fits or (whole and any(type(entry) is not int for entry in value)):
        what = "whole numbers" if whole else "numbers"
        raise _damaged(
            path, line, f"{key}: a list of at most {most} {what} from 0 to {LARGEST:g}, or null", _shown(value)
        )


def _is_numbers(value: Any, shape: tuple[int, ...], gaps: bool, within: tuple[float, float]) -> bool:
    if shape:
        fits = isinstance(value, list) and len(value) == shape[0]
        return fits and all(_is_numbers(entry, shape[1:], gaps, within) for entry in value)
    if value is None:
        return gaps
    return isinstance(value, int | float) and not isinstance(value, bool) and within[0] <= value <= within[1]


def _damaged(path: Path, line: int, expected: str, received: str) -> ReportError:
    return ReportError(f"{path}, line {line}: expected {expected}; received {received}; the file is damaged: {RERUN}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
