"""The command `fedjax-bal run`: a comparison, its table, and its report."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from fedjax_bal.caches import count_compiled_programs, keep_compiled_programs, keep_compiled_programs_by_default
from fedjax_bal.cli.console import INTERRUPTED, Output, Showing, fail, interruptible, say, stopped_message
from fedjax_bal.cli.pages import build_page
from fedjax_bal.cli.tables import ACCURACY, print_table, with_short_names


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
    from fedjax_bal.experiments import Progress, Runner, Stopped
    from fedjax_bal.runs import RemoteFiles, RunFolder

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
        _report_failures(summary)


def _show(path: Path, summary: dict[str, Any], console: Console) -> None:
    from fedjax_bal.experiments import cost_of
    from fedjax_bal.report import KL_IN_WORDS, compare, shows_divergence, table, verdict

    page = build_page(path)
    summaries = compare(summary["runs"])
    print_table(table(with_short_names(summaries, console), summary["target_accuracy"], short=True), console, ACCURACY)
    if shows_divergence(summaries):
        console.print(Text(KL_IN_WORDS))
    closing = Output()
    closing.print(Text(verdict(summaries)))
    say(console, cost_of(summary["cost"]).in_words(summary["wall_s"]))
    say(closing, f"report: {page}")


def _report_failures(summary: dict[str, Any]) -> None:
    failures = [f"{run['method']}, seed {run['seed']}: {run['failure']}" for run in summary["runs"] if run["failure"]]
    if failures:
        fail("diverged, the rest is done:\n  " + "\n  ".join(failures), 1)
