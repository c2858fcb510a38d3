"""The command `fedjax-bal sweep`."""

import json
from collections.abc import Callable
from typing import Any

from rich.console import Console

from fedjax_bal.config.sections import plain
from fedjax_bal.experiment.runner import Stopped
from fedjax_bal.progress.tally import duration
from fedjax_bal.sweep.engines import Engine
from fedjax_bal.sweep.estimate import Estimate, estimate
from fedjax_bal.sweep.folder import SweepFolder
from fedjax_bal.sweep.groups import Group
from fedjax_bal.sweep.plan import Sweep
from fedjax_bal.sweep.results import rows
from fedjax_bal.sweep.show import SweepProgress
from fedjax_bal.sweep.work import Work


def sweep_and_tell(
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
    engine: Engine | None = None,
) -> tuple[list[dict[str, Any]], bool]:
    """Says what there is to do, does it, and writes the table.

    Args:
        sweep: the sweep.
        folder: its folder, claimed.
        console: where to say it.
        data_dir: the folder with the data sets' files.
        devices: how many devices share the work.
        should_stop: asked between dispatches.
        plain: lines in place of the live display.
        dry_run: only say what there is to do.
        most: how many runs to train together at most; None for as many as fit.
        engine: what trains; None for this process.

    Returns:
        The rows of the table, and whether the user stopped it.
    """
    display = SweepProgress(console, plain=plain)
    options: Any = {
        "data_dir": data_dir,
        "devices": devices,
        "should_stop": should_stop,
        "most": most,
        "engine": engine,
    }
    if dry_run:
        _announce(sweep, Work(sweep, folder.path, display, **options, look=True), console)
        return [], False
    folder.begin(sweep.text)
    work = Work(sweep, folder.path, display, **options)
    _announce(sweep, work, console)
    display.start([title(sweep, own) for own in work.groups], [own.rounds // len(own.tasks) for own in work.groups])
    stopped = False
    try:
        work.run(lambda: _note_costs(sweep, folder, work))
    except Stopped:
        stopped = True
    finally:
        display.stop()
        table = _write(sweep, folder, work)
    return table, stopped


def title(sweep: Sweep, own: Group) -> str:
    """What a group of runs is called: its methods, and how many runs it has."""
    methods = [sweep.points[task.point].config.methods[task.run[0]].name for task in own.tasks]
    names = list(dict.fromkeys(methods))
    told = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    several = len(own.tasks) > 1
    return f"{told} x {len(own.tasks)}" if several else f"{told}, {sweep.points[next(iter(own.tasks)).point].label}"


def _announce(sweep: Sweep, work: Work, console: Console) -> None:
    runs = sum(len(point.config.methods) * len(point.config.seeds) for point in sweep.points)
    expected = estimate(work.groups)
    broken = sum(len(sweep.points[n].config.methods) * len(sweep.points[n].config.seeds) for n in work.broken)
    console.print(_words(sweep, runs, broken, expected, work.engine), markup=False, highlight=False, soft_wrap=True)
    if work.engine.about():
        console.print(f"  {work.engine.about()}", markup=False, highlight=False, soft_wrap=True)
    for name in unmoved(sweep):
        text = f"  {name}: sets what is swept itself, so that some of its runs are the same"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    for own in work.groups:
        first = own.tasks[0].simulation
        text = f"  program {own.program + 1}: {title(sweep, own)}, {first.rounds} rounds"
        console.print(
            f"{text}, {own.state_bytes / 1e6:,.1f} MB of state", markup=False, highlight=False, soft_wrap=True
        )


def unmoved(sweep: Sweep) -> list[str]:
    """The methods that come to the same at several points, for their entries override what is swept."""
    seen: dict[str, list[str]] = {}
    for point in sweep.points:
        for index, method in enumerate(point.config.methods):
            whole = json.dumps([plain(point.config.for_method(index)), point.config.seeds], sort_keys=True)
            seen.setdefault(method.name, []).append(whole)
    return [name for name, own in seen.items() if len(set(own)) < len(own)]


def _words(sweep: Sweep, runs: int, broken: int, expected: Estimate, engine: Engine) -> str:
    axes = " x ".join(f"{len(axis)} {'+'.join(axis.keys)}" for axis in sweep.axes)
    before = runs - broken - expected.runs
    told = [f"{before} done or given up before"] * (before > 0) + [f"{broken} can't be set up"] * (broken > 0)
    done = f" ({', '.join(told)})" if told else ""
    pace = "" if engine.home else ", group after group and at this machine's pace,"
    return (
        f"{sweep.name}: {runs} runs{done} from {len(sweep.points)} points ({axes}), {expected.programs} program(s) to "
        f"compile; about {duration(expected.seconds)} of training{pace} and {expected.device_bytes / 1e6:,.0f} MB, "
        "compiling and what methods add to a step not counted"
    )


def _note_costs(sweep: Sweep, folder: SweepFolder, work: Work) -> dict[tuple[str, str, int], dict[str, Any]]:
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


def _write(sweep: Sweep, folder: SweepFolder, work: Work) -> list[dict[str, Any]]:
    costs = _note_costs(sweep, folder, work)
    summaries = {number: runner.finish() for number, runner in work.runners.items()}
    table = rows(sweep, summaries, work.broken, work.lost, costs)
    folder.write_results(table)
    return table


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds > 0 else 0.0
