"""The commands `fedjax-bal run` and `fedjax-bal sweep`: their progress, tables and pages."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedjax_bal.caches import count_compiled_programs, keep_compiled_programs, keep_compiled_programs_by_default
from fedjax_bal.cli.arguments import most_devices
from fedjax_bal.cli.console import INTERRUPTED, Output, Showing, fail, harmless, interruptible, say, stopped_message
from fedjax_bal.cli.folders import build_page

ACCURACY = "test accuracy in %, ± standard deviation over seeds"
_WIDE = 110


def print_table(text: Any, console: Console, caption: str, title: str = "") -> None:
    """Prints a `fedjax_bal.report.Table`, with cells of several lines if need be; as lines where that has no room."""
    text = text._replace(rows=[tuple(map(harmless, cells)) for cells in text.rows])  # before widths are measured
    shown = next((own for own in (text, _folded(text)) if _width(own) <= console.width), None)
    if shown is None:
        say(console, title) if title else None
        _print_lines(text, console)
        say(console, caption) if caption else None
        return
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    grid.title, grid.title_justify, grid.title_style = Text(title) if title else None, "left", "bold"
    grid.caption, grid.caption_justify = Text(caption), "left"
    for index, name in enumerate(shown.headings):
        grid.add_column(Text(name), justify="right" if index else "left", no_wrap=True)
    for cells in shown.rows:
        grid.add_row(*map(Text, cells))
    console.print(grid)


def _width(text: Any) -> int:
    """The width of a table with its padding."""
    columns = zip(text.headings, *text.rows, strict=True)
    return sum(2 + max(len(line) for cell in column for line in cell.split("\n")) for column in columns)


def _folded(text: Any) -> Any:
    """A table with the text after a number below it, and headings broken at commas."""
    heads = tuple(_two_lines(name).replace(", ", ",\n") for name in text.headings)
    return text._replace(headings=heads, rows=[tuple(map(_two_lines, cells)) for cells in text.rows])


def with_short_names(rows: Sequence[Any], console: Console) -> list[Any]:
    """Rows whose methods' names are shortened to what a table has room for, unless no short form tells them apart."""
    longest, names = 24 if console.width >= _WIDE else 16, [row.method for row in rows]
    half = longest // 2
    forms = (lambda name: f"{name[: longest - 1]}…", lambda name: f"{name[: half - 1]}…{name[-half:]}", str)
    ways = ([name if len(name) <= longest else form(name) for name in names] for form in forms)
    found = next(way for way in ways if len(set(way)) == len(set(names)))
    return [row._replace(method=name) for row, name in zip(rows, found, strict=True)]


def _print_lines(text: Any, console: Console) -> None:
    for method, *cells in text.rows:
        say(console, method)
        for heading, cell in zip(text.headings[1:], cells, strict=True):
            say(console, f"  {heading}: {cell}")


def _two_lines(cell: str) -> str:
    """Puts the text after a number below it."""
    for mark in ("±", "[", "("):
        cell = cell.replace(f" {mark}", f"\n{mark}")
    return cell.replace(" seeds)", ")").replace("vs ", "vs\n").replace("not reached", "not\nreached")


def next_folder(name: str, what: str, conflict: Callable[[Path], str], *, shown: bool = True) -> Path:
    """The folder for a configuration or a sweep, as `what` says; says so, if `shown`, where it isn't that of its name.

    `conflict` asks a folder for what keeps this one from going on there.
    """
    from fedjax_bal.lab import choose_folder

    named = Path("runs") / name
    folder, differing = choose_folder(named, conflict)
    if differing and shown:
        say(Output(), f"{named} holds another {what}; this one goes to {folder}. They differ in\n  {differing}")
    return folder


def describe_run(config: Any, path: Path, data_dir: Path | None, devices: str | int | None, *, fresh: bool) -> None:
    """Says what `run_command` would do."""
    from fedjax_bal.lab import RunFolder, dry_run

    console = Output()
    keep_compiled_programs_by_default()
    for line in dry_run(config, RunFolder(path), data_dir, devices, fresh=fresh):
        say(console, line)


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
    """Starts or resumes a comparison, and shows its results; `fresh` starts over, whatever the folder holds.

    Raises:
        typer.Exit: the user stopped it, or a run diverged.
    """
    from fedjax_bal.contrib.trackers import Mirror, tracked_runs
    from fedjax_bal.engine.processes import processes
    from fedjax_bal.lab import Progress, RemoteFiles, RunFolder, Runner, Stopped

    first = processes().first
    folder = RunFolder(path, None if first else RemoteFiles(path))
    with folder.claimed(config), show.progress(shown=first) as console:
        display, compiled = Progress(console, plain=show.plain), count_compiled_programs()
        keep_compiled_programs(display.note)
        options: Any = {"data_dir": data_dir, "devices": devices, "fresh": fresh}
        options["detail"] = show.detail(display.note)
        try:
            with (
                contextlib.closing(Mirror(trackers, tracked_runs(config), display.note)) as mirror,
                interruptible() as asked,  # only here: once all is trained, there is nothing to wait for
            ):
                runner = Runner(config, folder, display, **options, should_stop=asked, mirror=mirror)
                for line in runner.inputs.data_lines():
                    say(console, line)
                summary = runner.run()
        except Stopped:
            display.stop()
            if first:
                say(Output(), stopped_message(path))
            raise typer.Exit(INTERRUPTED) from None
        finally:
            display.stop()
        if show.verbose:
            say(console, compiled())
        if first:
            _show(path, summary, console)
        failures = [
            f"{run['method']}, seed {run['seed']}: {run['failure']}" for run in summary["runs"] if run["failure"]
        ]
        if failures:
            fail("diverged, the rest is done:\n  " + "\n  ".join(failures), 1)


def _show(path: Path, summary: dict[str, Any], console: Console) -> None:
    from fedjax_bal.lab import cost_of
    from fedjax_bal.report import KL_IN_WORDS, compare, shows_divergence, table, verdict

    page = build_page(path)
    summaries = compare(summary["runs"])
    shown = table(with_short_names(summaries, console), summary["target_accuracy"], short=True)
    print_table(shown, console, ACCURACY)
    if shows_divergence(summaries):
        console.print(Text(KL_IN_WORDS))
    closing = Output()
    closing.print(Text(verdict(summaries)))
    say(console, cost_of(summary["cost"]).in_words(summary["wall_s"]))
    say(closing, f"report: {page}")


_MOST_ROWS, _MOST_FAILURES = 40, 20


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
    """Starts or resumes a sweep, or a part of it, in its `SweepFolder`, and shows its results.

    `engine` is the backend, "local" for this process or "ray" for a cluster, and `address` the cluster's; `together` is
    the most runs of a batch, None for as many as fit into memory.

    Raises:
        typer.Exit: the user stopped it, or some runs have no result.
    """
    compiled = count_compiled_programs()
    place = data_dir and str(data_dir.absolute())
    if engine == "ray":
        devices = _devices_per_batch(plan, devices or folder.read_devices())
    with (
        contextlib.nullcontext() if dry_run else folder.claimed(),
        _backend(engine, address, devices, place) as backend,
        interruptible() as asked,
        Showing().progress() if dry_run else show.progress() as console,
    ):
        note = functools.partial(say, console)
        keep_compiled_programs(note)
        from fedjax_bal.lab import run_sweep

        options: Any = {"data_dir": place, "devices": devices, "should_stop": asked, "most": together}
        options |= {"plain": show.plain, "detail": show.detail(note)}
        rows, stopped = run_sweep(plan, folder, console, dry_run=dry_run, backend=backend, **options)
        if show.verbose:
            say(console, compiled())
    if stopped:
        say(Output(), stopped_message(folder.path))
        raise typer.Exit(INTERRUPTED)
    if not dry_run:
        _conclude_sweep(folder, rows, Output())


def show_results(path: Path, console: Console) -> None:
    """Prints the comparison at each condition if there are a few, what a paper reports, and the result in words."""
    from fedjax_bal.report import (
        answer,
        beside_of_sweep,
        comparable,
        paper_caption,
        paper_verdict,
        read_results,
        side_by_side,
        table,
    )

    results = read_results(path)
    beside, found = beside_of_sweep(results), comparable(results)
    shown = found if len(found) * len(results.methods) <= _MOST_ROWS else found[: len(found) == 1]
    for name, groups in shown:
        group = with_short_names(groups[0], console)
        rows = group if len(groups) == 1 else list(chain(*groups))
        caption = ACCURACY * (name == shown[-1][0])
        print_table(table(rows, results.target, short=True), console, caption, name)
    if beside.entries:
        print_table(side_by_side(beside), console, paper_caption(beside))
    console.print(Text(answer(results)))
    if beside.entries:
        console.print(Text(paper_verdict(beside)))


def _devices_per_batch(plan: Any, devices: str | int | None) -> int:
    """The number of devices of one machine for each worker of a cluster."""
    if isinstance(devices, str):
        raise ValueError("--devices: received all, but with --engine ray every group asks for its own: give a number")
    return devices or most_devices([point.config for point in plan.points])


@contextlib.contextmanager
def _backend(name: str, address: str | None, devices: Any, data_dir: str | None) -> Iterator[Any]:
    if name == "local":
        yield None
        return
    import jax

    from fedjax_bal.lab import connected

    with connected(address) as ray:
        jax.config.update("jax_platforms", "cpu")  # this machine's GPUs, if any, are the workers'
        from fedjax_bal.lab import RayBackend

        yield RayBackend(ray, devices, data_dir)


def _conclude_sweep(folder: Any, rows: list[dict[str, Any]], console: Console) -> None:
    if folder.part is None:
        page = build_page(folder.path)
        show_results(folder.path, console)
        say(console, f"table: {folder.results}")
        say(console, f"page: {page}")
    else:
        number, parts = folder.part
        say(
            console,
            f"part {number} of {parts} is done, in {folder.path}; once all are, the same command without --part writes "
            "the table and the page",
        )
    lines = [
        f"{row['point']}, {row['method']}, seed {row['seed']}: {row['status']}: {row['failure']}"
        for row in rows
        if row["failure"]
    ]
    if lines:
        more = [f"and {len(lines) - _MOST_FAILURES} more, see the table"] * (len(lines) > _MOST_FAILURES)
        fail("some runs have no result, the rest is done:\n  " + "\n  ".join([*lines[:_MOST_FAILURES], *more]), 1)
