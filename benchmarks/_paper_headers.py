"""Writes Expect, Time and Machine in the headers of configs/papers, from results/papers."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from _claims import METRICS, TO_TARGET, Result, Row, name_of, results, rounds_of

from fedjax_bal.metrics import spread_of_draws

CONFIGS = Path(__file__).parents[1] / "configs"
SHOWN = ("last5_accuracy", "chain_kl", "truth_correlation")
"""Metrics of a header; the first one that the runs have is shown."""


def write() -> list[Path]:
    """Writes the headers of all experiments with results; returns the changed files."""
    changed = {file: text for file, text in headers().items() if file.read_text(encoding="utf-8") != text}
    for file, text in changed.items():
        file.write_text(text, encoding="utf-8")
    return list(changed)


def headers() -> dict[Path, str]:
    """Returns the new headers by configuration file, for configurations with results."""
    return {CONFIGS / f"{name}.yaml": _with_header(name, own) for name, own in results().items()}


def _with_header(experiment: str, own: Sequence[Result]) -> str:
    text = (CONFIGS / f"{experiment}.yaml").read_text(encoding="utf-8")
    entries = {"Expect": " ".join(_expect(own))}
    # Runs stored without their duration keep the header's time.
    if any(map(_timed, own)):
        took = [_time(result, own) for result in own if _timed(result)]
        entries["Time"] = "; ".join([*took, *_length(text)])
        entries["Machine"] = "; ".join(dict.fromkeys(_machine(result) for result in own))
    for name, value in entries.items():
        lines = textwrap.wrap(value, 120 - len("#           "), break_long_words=False, break_on_hyphens=False)
        entry = f"# {name:<10}" + "\n#           ".join(lines)
        text = re.sub(_entry(name), lambda _, entry=entry: entry, text, count=1, flags=re.MULTILINE)
    return text


def _entry(name: str) -> str:
    """Returns the pattern of an entry of a header, with its continued lines."""
    return rf"^# {name} .*(?:\n# {{11}}.*)*"


def _expect(own: Sequence[Result]) -> Iterator[str]:
    for result in own:
        metric = next(key for key in SHOWN if any(row.get(key) for row in result.rows))
        changes = next((f" with {row['changes']}" for row in result.rows if row.get("changes")), "")
        unit = ", %" if METRICS[metric].unit == "%" else ""
        yield f"{result.rounds:,} rounds{changes}, {result.seeds}, {METRICS[metric].meaning}{unit}:"
        yield "; ".join(_points(result, metric)) + "."
        yield from _reached(result)
    paper = own[0].experiment.split("/")[1]
    yield f"Compared with the paper in benchmarks/papers_pages/{paper}.md"


def _points(result: Result, metric: str) -> Iterator[str]:
    """Formats the methods of each point with means and standard deviations."""
    for values in dict.fromkeys(tuple(row[key] for key in result.axes) for row in result.rows):
        point = dict(zip(result.axes, values, strict=True))
        methods = dict.fromkeys(row["method"] for row in result.rows if point.items() <= row.items())
        words = ", ".join(_words(result, {"method": name, **point}, metric) for name in methods)
        yield f"{name_of(point)}: {words}" if point else words


def _words(result: Result, side: Mapping[str, Any], metric: str) -> str:
    """Formats the mean and standard deviation of a method, or the round in which its runs failed."""
    own, places = spread_of_draws(result.values(side, metric)), METRICS[metric].places
    if own.mean is None:
        failures = [row["failure"].partition(":")[0] for row in result.rows_of(side) if row.get("failure")]
        return f"{side['method']} {f'failed in {failures[0]}' if failures else 'without a value'}"
    return f"{side['method']} {own.mean:.{places}f}" + ("" if own.std is None else f" +- {own.std:.{places}f}")


def _reached(result: Result) -> Iterator[str]:
    """Formats the rounds to the target, if there are no points and some run reached it."""
    target = result.rows[0].get("target")
    if not target or result.axes:
        return
    words = []
    for name in dict.fromkeys(row["method"] for row in result.rows):
        reached = [value for value in result.values({"method": name}, TO_TARGET[0]).values() if value > 0]
        if reached:
            words.append(f"{name} {fmean(reached):.0f}")
    if words:
        yield f"Rounds to {100 * float(target):g}%, of the runs that reach it: {', '.join(words)}."


def _time(result: Result, own: Sequence[Result]) -> str:
    """Formats the duration of runs, with their machine if the experiment's others had another one."""
    timed = _timed(result)
    # Each run has the seconds of all runs of its folder.
    seconds = sum(float(s) for _, _, s in {(row.get("point", ""), row["commit"], row["s"]) for row in timed})
    length = f"{result.rounds:,} rounds, " if result.rounds < rounds_of(result.experiment) else ""
    hours, minutes = divmod(round(seconds / 60), 60)
    took = f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes > 1 else f"{seconds:.0f} s"
    notes = ", then ".join(dict.fromkeys(row["note"] for row in timed if row.get("note")))
    where = f" on {timed[0]['machine']}" if len({other.rows[0]["machine"] for other in own}) > 1 else ""
    return f"{length}{len(timed)} runs: {took}{where}" + (f" {notes}" if notes else "")


def _timed(result: Result) -> list[Row]:
    """Selects the runs that were stored with their duration."""
    return [row for row in result.rows if row.get("s")]


def _length(header: str) -> list[str]:
    """Returns what a header's Time says on the steps of a run, which isn't measured: at most one clause."""
    (time,) = re.findall(_entry("Time"), header, flags=re.MULTILINE)
    return re.findall(r"(?<=; )a run is .*", re.sub(r"\n# +", " ", time))


def _machine(result: Result) -> str:
    length = f"{result.rounds:,} rounds: " if result.rounds < rounds_of(result.experiment) else ""
    commits: dict[str, dict[str, None]] = {}
    for row in result.rows:
        commits.setdefault(f"{row['machine']}, jax {row['jax']}", {})[row["commit"]] = None
    by_machine = (f"{where}, commit{'s' * (len(own) > 1)} {', '.join(own)}" for where, own in commits.items())
    return length + " and ".join(by_machine)
