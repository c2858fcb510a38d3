"""The command `fedjax-bal run`: a comparison, its table, and its report."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from fedjax_bal.caches import keep_compiled_programs
from fedjax_bal.cli.console import INTERRUPTED, Output, fail, interruptible, say, stopped_message
from fedjax_bal.cli.pages import build_page
from fedjax_bal.cli.tables import ACCURACY, print_table, short_name


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


def run_command(
    config: Any,
    path: Path,
    data_dir: Path | None,
    devices: str | int | None,
    trackers: Any,
    *,
    fresh: bool,
    plain: bool,
) -> None:
    """Starts or resumes a comparison, and shows its results.

    `fresh` starts over, whatever the folder holds; `plain` shows lines in place of the live display.

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
    with folder.claimed(config), interruptible() as asked, _console(shown=first) as console:
        display = progress.PlainProgress(console) if plain or not first else progress.choose(console)
        keep_compiled_programs(display.note)
        options: Any = {"data_dir": data_dir, "devices": devices, "fresh": fresh, "should_stop": asked}
        try:
            with contextlib.closing(Mirror(trackers, tracked_runs(config), path, display.note)) as mirror:
                summary = Runner(config, folder, display, **options, mirror=mirror).run()
        except Stopped:
            display.stop()
            say(console, stopped_message(path))
            raise typer.Exit(INTERRUPTED) from None
        finally:
            display.stop()
        if first:
            _show(path, summary, console)
        _report_failures(summary)


@contextlib.contextmanager
def _console(*, shown: bool) -> Iterator[Console]:
    if shown:
        yield Output()
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        yield Output(file=nowhere)


def _show(path: Path, summary: dict[str, Any], console: Console) -> None:
    from fedjax_bal.experiments import cost_of
    from fedjax_bal.report import KL_IN_WORDS, compare, shows_divergence, table, verdict

    page = build_page(path)
    summaries = [row._replace(method=short_name(row.method, console)) for row in compare(summary["runs"])]
    print_table(table(summaries, summary["target_accuracy"], short=True), console, ACCURACY)
    if shows_divergence(summaries):
        console.print(KL_IN_WORDS, markup=False, highlight=False)
    console.print(verdict(summaries), markup=False, highlight=False)
    say(console, cost_of(summary["cost"]).in_words(summary["wall_s"]))
    say(console, f"report: {page}")


def _report_failures(summary: dict[str, Any]) -> None:
    failures = [f"{run['method']}, seed {run['seed']}: {run['failure']}" for run in summary["runs"] if run["failure"]]
    if failures:
        fail("diverged, the rest is done:\n  " + "\n  ".join(failures), 1)
