"""Shared by the benchmarks of this package: the command line, interleaved timing, files of figures, parts of pages."""

import argparse
import json
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

Name = TypeVar("Name")


def parser(description: str | None, repeats: int | None = None, *, file: bool = False) -> argparse.ArgumentParser:
    """Builds a command line, with `--repeats` if a default is given, and with `--json` if `file` is set."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if repeats is not None:
        made.add_argument("--repeats", type=int, default=repeats, help=f"how often each is timed (default {repeats})")
    if file:
        made.add_argument("--json", type=Path, help="write all figures to this file")
    return made


def commit() -> str:
    """Returns the checked-out commit, marked as dirty if anything except results has changed."""
    git = ["git", "-C", str(Path(__file__).parents[1])]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ".", ":!benchmarks/results"], capture_output=True)
    return f"{head}-dirty" if head and changed.returncode else head


def median_seconds(works: Mapping[Name, Callable[[], Any]], repeats: int) -> dict[Name, float]:
    """Measures the median seconds of each function after a compiling call; interleaved, so that drift affects all."""
    return {name: statistics.median(values) for name, values in _timed(works, repeats, time.perf_counter).items()}


def least_cpu_seconds(works: Mapping[Name, Callable[[], Any]], repeats: int) -> dict[Name, float]:
    """Measures the minimum processor time of each function, in seconds; for machines that also do other work."""
    return {name: min(values) for name, values in _timed(works, repeats, time.process_time).items()}


def _timed(
    works: Mapping[Name, Callable[[], Any]], repeats: int, clock: Callable[[], float]
) -> dict[Name, list[float]]:
    import jax

    times: dict[Name, list[float]] = {name: [] for name in works}
    for repeat in range(repeats + 1):
        for name, work in works.items():
            began = clock()
            jax.block_until_ready(work())
            if repeat:
                times[name].append(clock() - began)
    return times


def write_figures(file: Path | None, figures: Any) -> None:
    """Writes figures as JSON, each entry of a list of records on a line; does nothing without a file."""
    if file is not None:
        file.write_text(_split_records(json.loads(json.dumps(figures))) + "\n")


def _split_records(figures: Any, indent: str = "") -> str:
    text = json.dumps(figures)
    if indent and not _holds_records(figures):
        return text
    deeper = f"{indent} "
    if isinstance(figures, dict):
        entries = [f"{json.dumps(key)}: {_split_records(value, deeper)}" for key, value in figures.items()]
    else:
        entries = [_split_records(value, deeper) for value in figures]
    return f"{text[0]}\n{deeper}" + f",\n{deeper}".join(entries) + f"\n{indent}{text[-1]}"


def _holds_records(figures: Any) -> bool:
    if isinstance(figures, dict):
        return any(map(_holds_records, figures.values()))
    return isinstance(figures, list) and any(isinstance(entry, dict) or _holds_records(entry) for entry in figures)


def read_figures(file: Path) -> Any:
    """Reads the figures in a file; empty if the file doesn't exist."""
    return json.loads(file.read_text()) if file.exists() else {}


def with_part(page: str, script: str, name: str, part: str) -> str:
    """Replaces a part of a page that a script makes from results; the rest of the page is written by hand."""
    begin = f"<!-- made by benchmarks/{script}: {name} -->"
    replaced, found = re.subn(
        re.escape(begin) + ".*?<!-- end -->", lambda _: f"{begin}\n{part}\n<!-- end -->", page, flags=re.DOTALL
    )
    if found != 1:
        raise ValueError(
            f"{begin}: stands {found} times in the page, must stand there once, with <!-- end --> below it"
        )
    return replaced
