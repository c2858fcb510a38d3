"""Implements `fedjax-bal run` and `fedjax-bal sweep`: training, and the tables and pages of results."""

import contextlib
from collections.abc import Callable, Iterator
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


def describe_run(config: Any, path: Path, data_dir: Path | None, devices: str | int | None, *, fresh: bool) -> None:
    """Describes what `run_command` would do."""
    from fedjax_bal.lab import Progress, RunFolder, dry_run

    display = Progress(Output(), plain=True)
    keep_compiled_programs()
    for line in dry_run(config, RunFolder(path), data_dir, devices, fresh=fresh):
        display.note(line)


def run_command(
    config: Any,
    path: Path,
    data_dir: Path | None,
    devices: str | int | None,
    trackers: Any,
    *,
    fresh: bool,
    show: Showing,
) -> None:
    """Starts or resumes a comparison, and shows its results; `fresh` starts over, regardless of the folder's content.

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
        options: Any = {"data_dir": data_dir, "devices": devices, "fresh": fresh, "verbose": show.verbose}
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
    dry_run: bool,
    show: Showing,
    engine: str = "local",
    address: str | None = None,
) -> None:
    """Starts or resumes a sweep, or one part of it, in a `SweepFolder`, and shows its results.

    `engine` is the backend, "local" for this process or "ray" for a cluster with the given `address`. `together` is the
    maximum number of runs per batch; None for as many as fit into memory.

    Raises:
        typer.Exit: the user stopped the command, or some runs have no result.
    """
    compiled = count_compiled_programs()
    place = data_dir and str(data_dir.absolute())
    if engine == "ray":
        devices = _devices_per_batch(plan, devices or folder.read_devices())
    with (
        contextlib.nullcontext() if dry_run else folder.claimed(),
        _backend(engine, address, devices, place) as backend,
        interruptible() as asked,
    ):
        console = Output() if dry_run else show.progress()
        keep_compiled_programs(console.say)
        from fedjax_bal.lab import Progress, run_sweep

        display = Progress(console, plain=show.plain)
        options: Any = {"data_dir": place, "devices": devices, "most": together, "verbose": show.verbose}
        rows, stopped = run_sweep(plan, folder, display, dry_run=dry_run, should_stop=asked, backend=backend, **options)
        if show.verbose:
            console.say(compiled())
    if stopped:
        _say_stopped(folder.path)
        raise typer.Exit(INTERRUPTED)
    if not dry_run:
        _conclude_sweep(folder, rows, Output())


def _devices_per_batch(plan: Any, devices: str | int | None) -> int:
    """Returns the number of devices that each worker of a cluster needs on its machine."""
    if isinstance(devices, str):
        raise ValueError("--devices: received all, but with --engine ray every batch asks for its own: give a number")
    return devices or most_devices([point.config for point in plan.points])


@contextlib.contextmanager
def _backend(name: str, address: str | None, devices: Any, data_dir: str | None) -> Iterator[Any]:
    if name == "local":
        yield None
        return
    import jax

    from fedjax_bal.lab import connected

    with connected(address) as ray:
        jax.config.update("jax_platforms", "cpu")  # leaves this machine's GPUs to the workers
        from fedjax_bal.lab import RayBackend

        yield RayBackend(ray, devices, data_dir)


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
