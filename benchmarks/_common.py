"""Shared by the benchmarks of this package: the command line, timing in turns, and figures in a file."""

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

Name = TypeVar("Name")


def parser(description: str | None, repeats: int | None = None, *, file: bool = False) -> argparse.ArgumentParser:
    """A command line with `--repeats`, if it has a default, and with `--json`, if asked."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if repeats is not None:
        made.add_argument("--repeats", type=int, default=repeats, help=f"how often each is timed (default {repeats})")
    if file:
        made.add_argument("--json", type=Path, help="write all figures to this file")
    return made


def commit() -> str:
    """The commit that is checked out, with a mark if anything but results was changed since."""
    git = ["git", "-C", str(Path(__file__).parents[1])]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ".", ":!benchmarks/results"], capture_output=True)
    return f"{head}-dirty" if head and changed.returncode else head


def median_seconds(works: Mapping[Name, Callable[[], Any]], repeats: int) -> dict[Name, float]:
    """Median seconds of each work, after a call that compiles; works take turns, so that drift meets all alike."""
    return {name: statistics.median(values) for name, values in _timed(works, repeats, time.perf_counter).items()}


def least_cpu_seconds(works: Mapping[Name, Callable[[], Any]], repeats: int) -> dict[Name, float]:
    """As `median_seconds`, the least seconds of the processor's time: for machines that do other work, too."""
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
    """Writes figures as JSON, if there is a file to write to."""
    if file is not None:
        file.write_text(json.dumps(figures, indent=1) + "\n")


def read_figures(file: Path) -> Any:
    """The figures in a file, none if there isn't one."""
    return json.loads(file.read_text()) if file.exists() else {}
