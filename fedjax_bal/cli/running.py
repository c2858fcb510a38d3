"""The command `fedjax-bal run`: a comparison, its table, and its report."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedjax_bal.caches import count_compiled_programs, keep_compiled_programs, keep_compiled_programs_by_default
from fedjax_bal.cli.console import INTERRUPTED, Output, Showing, fail, interruptible, say, stopped_message
from fedjax_bal.cli.pages import build_page

_WIDE = 110
_NARROW = 78


def next_folder(name: str, what: str, conflict: Callable[[Path], str], *, shown: bool = True) -> Path:
    """The folder for a configuration or a sweep, as `what` says; says so, if `shown`, where it isn't that of its name.

    `conflict` asks a folder for what keeps this one from going on there.
    """
    from fedjax_bal.runs import choose_folder

    named = Path("runs") / name
    folder, differing = choose_folder(named, conflict)
    if differing and shown:
        say(Output(), f"{named} holds another {what}; this one goes to {folder}. They differ in\n  {differing}")
    return folder


def describe_run(config: Any, path: Path, data_dir: Path | None, devices: str | int | None, *, fresh: bool) -> None:
    """Says what `run_command` would do."""
    from fedjax_bal.experiments import dry_run
    from fedjax_bal.runs import RunFolder

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
    from fedjax_bal.experiments import Runner, Stopped
    from fedjax_bal.experiments import display as progress
    from fedjax_bal.runs import RemoteFiles, RunFolder

    first = processes().first
    folder = RunFolder(path, None if first else RemoteFiles(path))
    with folder.claimed(config), interruptible() as asked, show.progress(shown=first) as console:
        display, compiled = progress.choose(console, plain=show.plain), count_compiled_programs()
        keep_compiled_programs(display.note)
        options: Any = {"data_dir": data_dir, "devices": devices, "fresh": fresh, "should_stop": asked}
        options["detail"] = show.detail(display.note)
        try:
            with contextlib.closing(Mirror(trackers, tracked_runs(config), path, display.note)) as mirror:
                summary = Runner(config, folder, display, **options, mirror=mirror).run()
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
        _report_failures(summary)


def _show(path: Path, summary: dict[str, Any], console: Console) -> None:
    from fedjax_bal.experiments import cost_of
    from fedjax_bal.report import KL_IN_WORDS, compare, shows_divergence, table, verdict

    page = build_page(path)
    longest = 24 if console.width >= _WIDE else 16
    summaries = [row._replace(method=_short(row.method, longest)) for row in compare(summary["runs"])]
    text = table(summaries, summary["target_accuracy"], short=True)
    if console.width < _NARROW:
        _print_lines(text, console)
    else:
        _print_table(text, console)
    if shows_divergence(summaries):
        console.print(KL_IN_WORDS, markup=False, highlight=False)
    closing = Output()
    closing.print(verdict(summaries), markup=False, highlight=False)
    say(console, cost_of(summary["cost"]).in_words(summary["wall_s"]))
    say(closing, f"report: {page}")


def _report_failures(summary: dict[str, Any]) -> None:
    failures = [f"{run['method']}, seed {run['seed']}: {run['failure']}" for run in summary["runs"] if run["failure"]]
    if failures:
        fail("diverged, the rest is done:\n  " + "\n  ".join(failures), 1)


def _print_table(text: Any, console: Console) -> None:
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    grid.caption, grid.caption_justify = "test accuracy in %, ± standard deviation over seeds", "left"
    fit = _two_lines if console.width < _WIDE else str
    for index, name in enumerate(map(fit, text.headings)):
        grid.add_column(escape(name), justify="right" if index else "left", no_wrap=True)
    for cells in text.rows:
        grid.add_row(*(escape(fit(cell)) for cell in cells))
    console.print(grid)


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


def _short(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
