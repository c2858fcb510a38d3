"""What `run` shows at its end: the page, the tables, and the runs that have failed."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from fedjax_bal.cli.console import Output, fail

_MOST_FAILURES = 20


def write_page(path: Path) -> Path:
    """Writes the page of a run or sweep; returns its path."""
    from fedjax_bal.lab import SweepFolder
    from fedjax_bal.report import write_run_page, write_sweep_page

    return write_sweep_page(path) if SweepFolder(path).exists() else write_run_page(path)


def show_comparison(path: Path, summary: Mapping[str, Any], console: Output) -> None:
    """Writes a comparison's page, and prints its tables (on `console`) and its conclusion."""
    from fedjax_bal.lab import Cost

    page = write_page(path)
    closing = Output()
    show_results(path, console, closing)
    cost = Cost.saved(summary["cost"]).in_words(summary["wall_s"])
    console.print(Text(cost), soft_wrap=not console.is_terminal)  # a terminal breaks it between words
    closing.say(f"report: {page}")


def show_sweep(folder: Any) -> None:
    """Writes a sweep's page, and prints its tables and sentences; for a part, prints only how to continue."""
    console = Output()
    if folder.part is None:
        page = write_page(folder.path)
        show_results(folder.path, console, console)
        console.say(f"table: {folder.results}\npage: {page}")
    else:
        number, parts = folder.part
        console.say(
            f"part {number} of {parts} is done, in {folder.path}; when all parts are done, run the command without "
            "--part to write the table and the page"
        )


def show_results(path: Path, console: Output, closing: Output) -> None:
    """Prints the tables of the results of a comparison or sweep on a console, and the sentences on another."""
    from fedjax_bal.report import results

    tables, sentences = results(path)
    for table in tables:
        console.say(f"{table.text(console.room)}\n")
    for text in sentences:
        closing.print(Text(text))


def fail_for_failures(failures: Iterable[str]) -> None:
    """Ends the command with exit code 1 if runs have failed; names the first of them."""
    lines = list(failures)
    if lines:
        more = [f"and {len(lines) - _MOST_FAILURES} more"] if len(lines) > _MOST_FAILURES else []
        fail("\n  ".join(["these runs failed; the rest finished:", *lines[:_MOST_FAILURES], *more]), 1)
