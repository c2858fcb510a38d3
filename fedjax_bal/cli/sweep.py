"""The training of `fedjax-bal sweep`: outline, batches, table."""

from collections.abc import Callable
from typing import Any

from rich.console import Console

from fedjax_bal.experiments import (
    Backend,
    InterimTable,
    Stopped,
    Sweep,
    SweepProgress,
    SweepWork,
    batch_title,
    result_rows,
    sweep_outline,
)
from fedjax_bal.runs import SweepFolder


def run_sweep(
    sweep: Sweep,
    folder: SweepFolder,
    console: Console,
    *,
    data_dir: str | None,
    devices: str | int | None,
    should_stop: Callable[[], bool],
    plain: bool,
    dry_run: bool,
    most: int | None,
    backend: Backend | None = None,
) -> tuple[list[dict[str, Any]], bool]:
    """Prints the outline of a sweep, trains its batches, and writes the table.

    Args:
        sweep: the sweep.
        folder: its folder, claimed.
        console: prints the outline.
        data_dir: the folder with the data sets' files.
        devices: number of devices that share the work.
        should_stop: asked between dispatches.
        plain: lines in place of the live display.
        dry_run: only print the outline.
        most: the most runs of a batch; None for as many as fit into memory.
        backend: trains the batches; None for this process.

    Returns:
        The rows of the table, and whether the user stopped it.
    """
    display = SweepProgress(console, plain=plain)
    options: Any = {
        "data_dir": data_dir,
        "devices": devices,
        "should_stop": should_stop,
        "most": most,
        "backend": backend,
    }
    if dry_run:
        _announce(sweep, SweepWork(sweep, folder.path, display, **options, look=True), console)
        return [], False
    folder.begin(sweep.text)
    work = SweepWork(sweep, folder.path, display, **options)
    _announce(sweep, work, console)
    display.start(
        [batch_title(sweep, own) for own in work.batches], [own.rounds // len(own.tasks) for own in work.batches]
    )
    stopped = False
    try:
        work.run(InterimTable(sweep, folder, work, lambda: _note_costs(sweep, folder, work)).update)
    except Stopped:
        stopped = True
    finally:
        display.stop()
        table = _write(sweep, folder, work)
    return table, stopped


def _announce(sweep: Sweep, work: SweepWork, console: Console) -> None:
    for line in sweep_outline(sweep, work):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _note_costs(sweep: Sweep, folder: SweepFolder, work: SweepWork) -> dict[tuple[str, str, int], dict[str, Any]]:
    costs = folder.read_costs()
    for own, cost in work.costs:
        figures = {
            "program": cost.program + 1,
            "runs_together": cost.runs,
            "compile_s": round(cost.compile_s, 3),
            "client_updates_per_s": _rate(cost.client_updates, cost.train_s),
            "samples_per_s": _rate(cost.samples, cost.train_s),
            "device_bytes": cost.device_bytes,
        }
        for task in own.tasks:
            point = sweep.points[task.point]
            costs[point.label, point.config.methods[task.run[0]].name, task.run[1]] = figures
    folder.write_costs(costs)
    return costs


def _write(sweep: Sweep, folder: SweepFolder, work: SweepWork) -> list[dict[str, Any]]:
    costs = _note_costs(sweep, folder, work)
    summaries = {number: runner.finish() for number, runner in work.runners.items()}
    table = result_rows(sweep, summaries, work.broken, work.lost, costs)
    folder.write_results(table)
    return table


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds > 0 else 0.0
