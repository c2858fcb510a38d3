"""Sweeps over the small comparison, and what they come to."""

import contextlib
import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import small_run
from rich.console import Console

from fedjax_bal.lab import Progress, SharedInputs, Stopped, SweepFolder, dry_run, run_sweep
from fedjax_bal.lab.sweep_plan import Sweep, load_sweep

BASE = small_run.TEXT.replace("rounds: 7", "rounds: 4").replace("seeds: [0, 1]", "seeds: [0]")
FEDAVG = "methods=[{recipe: fedavg}]"


def sweep(tmp_path: Path, text: str, *overrides: str) -> Sweep:
    """A sweep on top of the small comparison."""
    (tmp_path / "small.yaml").write_text(BASE)
    file = tmp_path / "sweep.yaml"
    file.write_text(f"name: mine\nbase: small.yaml\n{text}\n")
    plan = load_sweep(file, overrides)
    with SweepFolder(tmp_path / "none").claimed(plan, lock=False) as settled:
        return settled


def carry(
    wanted: Sweep, path: Path, *, should_stop=lambda: False, callbacks=(), most=None, part=None, only_table=False
):
    """A session in a folder: the rows, None if it was stopped, and what was said."""
    folder, console = SweepFolder(path, part), Console(record=True, width=400, file=io.StringIO())
    rows: Any = None
    with contextlib.suppress(Stopped), folder.claimed(wanted) as settled:
        rows = run_sweep(
            settled, folder, SharedInputs(devices=1), Progress(console, plain=True), should_stop,
            callbacks=callbacks, most=most, only_table=only_table,
        )  # fmt: skip
    return rows, console.export_text()


def describe(wanted: Sweep, path: Path) -> list[str]:
    """What a dry run says."""
    folder = SweepFolder(path)
    points = {point.label: folder.point(point.label) for point in wanted.points}
    return list(dry_run(wanted, points, SharedInputs(devices=1, plan=True), None))


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a sweep's table; none where there is no table."""
    file = path / "results.csv"
    return list(csv.DictReader(file.read_text().splitlines())) if file.exists() else []


def watch(path: Path, tables: list[list[dict[str, str]]]) -> Callable[[], bool]:
    """A `should_stop` that never stops, and keeps the table whenever it is asked: what a kill would leave."""
    return lambda: tables.append(read_table(path)) or False


def outcome(path: Path) -> dict:
    """All that a sweep's runs came to: lines of metrics, figures, and the bytes of their last states."""
    found = {}
    for folder in sorted((path / "points").iterdir()):
        runs = json.loads((folder / "summary.json").read_text())["runs"]
        states = {run.name: _arrays(max(run.glob("round-*.npz"))) for run in (folder / "checkpoints").iterdir()}
        lines = sorted(small_run.metrics(folder), key=lambda line: (line["method"], line["seed"], line["round"]))
        found[folder.name] = lines, runs, states
    return found


def _arrays(file: Path) -> dict[str, bytes]:
    with np.load(file) as archive:
        return {name: archive[name].tobytes() for name in archive.files if name != "manifest.json"}
