"""Implements `fedjax-bal run` and `fedjax-bal sweep`: training, and the tables and pages of results."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from fedjax_bal.caches import count_compiled_programs, drawing, keep_compiled_programs
from fedjax_bal.cli.arguments import most_devices
from fedjax_bal.cli.console import INTERRUPTED, Output, Showing, fail, interruptible

_MOST_FAILURES = 20


def next_folder(name: str, what: str, conflict: Callable[[Path], str], *, shown: bool = True) -> Path:
    """Chooses the folder for a configuration or sweep (`what`); with `shown`, says so if it isn't runs/NAME.

    `conflict` describes why this configuration or sweep can't resume in a folder.
    """
    from fedjax_bal.lab import choose_folder

    named = Path("runs") / name
    folder, differing = choose_folder(named, conflict)
    if differing and shown:
        Output().say(f"{named} holds another {what}; this one goes to {folder}. They differ in\n  {differing}")
    return folder


def build_page(path: Path) -> Path:
    """Writes the page of a run or sweep; returns its path."""
    with drawing():
        from fedjax_bal.lab import SweepFolder
        from fedjax_bal.report import build, build_sweep

        return build_sweep(path) if SweepFolder(path).exists() else build(path)


def describe(sweep: Any, folders: Any, inputs: Any, together: int | None, place: str) -> None:
    """Describes what a run or sweep has left to do, and where it would write its results."""
    from fedjax_bal.lab import dry_run

    console = Output()
    keep_compiled_programs()
    for line in dry_run(sweep, folders, inputs, together):
        console.say(line)
    console.say(place)


def describe_run(config: Any, path: Path, data_dir: Path | None, devices: Any, execution: Any, *, fresh: bool) -> None:
    """Describes what `run_command` would do."""
    from fedjax_bal.lab import Point, RunFolder, SharedInputs, Sweep, writing

    folder = RunFolder(path)
    with writing(path):  # reports a folder that couldn't be written
        folder.check_owner(config)
    inputs = SharedInputs(data_dir, devices, execution and execution.devices, plan=True)
    point = Point("", {}, config)
    describe(
        Sweep(config.name, (), (point,), ""),
        {point.label: None if fresh else folder},
        inputs,
        1,
        f"  would {'be written to' if not folder.exists() else 'start over in' if fresh else 'resume in'} {path}",
    )


def run_command(
    config: Any,
    path: Path,
    data_dir: Path | None,
    devices: str | int | None,
    trackers: Any,
    execution: Any,
    *,
    fresh: bool,
    show: Showing,
) -> None:
    """Starts or resumes a comparison, and shows its results; `fresh` starts over, regardless of the folder's content.

    `execution` is the `RecordedExecution` of the folder's sessions so far; None before the first.

    Raises:
        typer.Exit: the user stopped the command, or a run diverged.
    """
    from fedjax_bal.engine.processes import processes
    from fedjax_bal.lab import Progress, RunFolder, Stopped, Trackers, run_comparison

    first = processes().first
    folder = RunFolder(path, first=first)
    console = show.progress(shown=first)
    with folder.claimed(config):
        display = Progress(console, plain=show.plain)
        compiled = count_compiled_programs()
        keep_compiled_programs(display.note)
        options: Any = {"data_dir": data_dir, "devices": devices, "execution": execution}
        options |= {"fresh": fresh, "verbose": show.verbose}
        try:
            with (
                contextlib.closing(Trackers(trackers, config, display.note)) as tracking,
                interruptible() as asked,  # only here: after training there is nothing to wait for
            ):
                summary = run_comparison(config, folder, display, asked, callbacks=[tracking], **options)
        except Stopped:
            if first:
                _say_stopped(path)
            raise typer.Exit(INTERRUPTED) from None
        if show.verbose:
            console.say(compiled())
        if first:
            _show(path, console)
        failures = [
            f"{run['method']}, seed {run['seed']}: {run['failure']}" for run in summary["runs"] if run["failure"]
        ]
        if failures:
            fail("some runs diverged, all others are done:\n  " + "\n  ".join(failures), 1)


def _say_stopped(folder: Path) -> None:
    Output().say(f"\nStopped; all is saved in {folder}. Run the command again to resume.")


def _show(path: Path, console: Output) -> None:
    from fedjax_bal.lab import Cost, RunFolder

    page = build_page(path)
    closing = Output()
    show_results(path, console, closing)
    summary = RunFolder(path).read_summary()
    console.say(Cost.saved(summary["cost"]).in_words(summary["wall_s"]))
    closing.say(f"report: {page}")


def sweep_command(
    plan: Any,
    folder: Any,
    data_dir: Path | None,
    devices: str | int | None,
    together: int | None,
    *,
    initial_devices: int | None,
    dry_run: bool,
    show: Showing,
    engine: str = "local",
    address: str | None = None,
) -> None:
    """Starts or resumes a sweep, or one part of it, in a `SweepFolder`, and shows its results.

    `engine` is "local" for this process or "ray" for a cluster with the given `address`. `together` is the maximum
    number of runs per batch; None for as many as fit into memory.

    Raises:
        typer.Exit: the user stopped the command, or some runs have no result.
    """
    from fedjax_bal.lab import Progress, SharedInputs, run_sweep, with_chosen_forms

    if dry_run:
        part = with_chosen_forms(plan, folder).part(folder.part)
        folder.check_owner(plan.text, part.configs)
        inputs = SharedInputs(data_dir, devices, initial_devices, plan=True)
        points = {point.label: folder.point(point.label) for point in part.points}
        place = f"  would {'resume in' if folder.exists() else 'be written to'} {folder.path}"
        describe(part, points, inputs, together, place)
        return

    compiled = count_compiled_programs()
    console = show.progress()
    failures = []
    stopped = False
    with interruptible() as asked:
        if engine == "ray":
            failures, stopped = _train_on_ray(plan, folder, data_dir, devices, together, address, asked)
        if not stopped:
            with folder.claimed():
                keep_compiled_programs(console.say)
                rows, stopped = run_sweep(
                    with_chosen_forms(plan, folder),
                    folder,
                    Progress(console, plain=show.plain),
                    data_dir=data_dir and str(data_dir.absolute()),
                    devices=devices,
                    should_stop=asked,
                    most=together,
                    initial_devices=initial_devices,
                    verbose=show.verbose,
                    only_table=engine == "ray",
                )
        if show.verbose:
            console.say(compiled())
    if stopped:
        _say_stopped(folder.path)
        raise typer.Exit(INTERRUPTED)
    _conclude_sweep(folder, rows, Output())
    if failures:
        fail("some parts have failed; the same command resumes them:\n  " + "\n  ".join(failures), 1)


def _train_on_ray(
    plan: Any,
    folder: Any,
    data_dir: Path | None,
    devices: str | int | None,
    together: int | None,
    address: str | None,
    should_stop: Callable[[], bool],
) -> tuple[list[str], bool]:
    """Trains the parts of a sweep on a cluster; returns why some have failed, and whether the user has stopped it."""
    from fedjax_bal.cli.ray import train_on_ray
    from fedjax_bal.lab import with_chosen_forms
    from fedjax_bal.plugins import loaded_plugins

    if isinstance(devices, str):
        raise ValueError("--devices: received all, but with --engine ray each part has its own: give a number")
    with folder.claimed():
        folder.check_owner(plan.text, with_chosen_forms(plan, folder).configs)
        folder.begin(plan.text, plan.configs)
    options = [text for plugin in loaded_plugins() for text in ("--plugin", plugin)]
    options += ["--data-dir", str(data_dir.absolute())] if data_dir else []
    options += ["--together", str(together)] if together else []
    needed: int = devices or folder.read_devices() or most_devices([point.config for point in plan.points])
    sheet = folder.path.absolute() / folder.marker
    return train_on_ray(
        options,
        sheet,
        len(plan.points),
        address=address,
        devices=needed,
        note=Output().say,
        should_stop=should_stop,
    )


def _conclude_sweep(folder: Any, rows: list[dict[str, Any]], console: Output) -> None:
    if folder.part is None:
        page = build_page(folder.path)
        show_results(folder.path, console, console)
        console.say(f"table: {folder.results}")
        console.say(f"page: {page}")
    else:
        number, parts = folder.part
        console.say(
            f"part {number} of {parts} is done, in {folder.path}; after the last part, run the command without --part "
            "to write the table and the page"
        )
    lines = [
        f"{row['point']}, {row['method']}, seed {row['seed']}: {row['status']}: {row['failure']}"
        for row in rows
        if row["failure"]
    ]
    if lines:
        more = [f"and {len(lines) - _MOST_FAILURES} more, see the table"] * (len(lines) > _MOST_FAILURES)
        fail("some runs have no result, all others are done:\n  " + "\n  ".join([*lines[:_MOST_FAILURES], *more]), 1)


def show_results(path: Path, console: Output, closing: Output) -> None:
    """Prints the tables of the results of a run or sweep on a console, and the sentences on another."""
    from fedjax_bal.report import results

    tables, sentences = results(path)
    for table in tables:
        console.say(f"{table.text(console.room)}\n")
    for text in sentences:
        closing.print(Text(text))
