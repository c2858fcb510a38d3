"""Output, messages and Ctrl-C of a command."""

import contextlib
import dataclasses
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedjax_bal.cli.start import BAD_INPUT, INTERRUPTED
from fedjax_bal.registry import plugin_errors


class Output(Console):
    """A console whose reader may close the pipe: the command goes on in silence."""

    def on_broken_pipe(self) -> None:
        """Discards all further output."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@dataclasses.dataclass(frozen=True)
class Showing:
    """How a command shows its progress: lines or a live display, all of it or only the result.

    Attributes:
        plain: lines in place of a live display.
        quiet: the closing lines and errors alone.
        verbose: also what there is to do, programs, placement and memory.
    """

    plain: bool = False
    quiet: bool = False
    verbose: bool = False

    def __post_init__(self) -> None:
        """Refuses both at a time."""
        if self.quiet and self.verbose:
            raise ValueError("--quiet: received it beside --verbose; give one of them")

    @contextlib.contextmanager
    def progress(self, *, shown: bool = True) -> Iterator[Console]:
        """The console for progress; one that shows nothing if it is quiet, or isn't `shown`."""
        if shown and not self.quiet:
            yield Output()
            return
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            yield Output(file=nowhere)

    def left_out(self, keys: Sequence[str]) -> None:
        """Says which keys of a base don't count, unless only the result is shown."""
        if keys and not self.quiet:
            say(Output(), f"not taken from the base, whose data or partition is another: {', '.join(keys)}")

    def detail(self, note: Callable[[str], None]) -> Callable[[str], None] | None:
        """The function for details, `note`; None if they aren't shown."""
        return note if self.verbose else None


def say(console: Console, text: str) -> None:
    """Prints a line as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def names_table(entries: Iterable[tuple[str, Sequence[str]]]) -> Table:
    """A table of names in bold, with the lines on each beside it, all but the first dim."""
    table = Table.grid(padding=(0, 3))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, lines in entries:
        first, *others = map(escape, lines or [""])  # a recipe of a plug-in may have no text
        table.add_row(f"[bold]{escape(name)}[/bold]", "\n".join([first, *(f"[dim]{line}[/dim]" for line in others)]))
    return table


def printing(command: Callable[..., Iterator[Any]]) -> Callable[..., None]:
    """A command that prints the lines and tables that another yields, and turns errors into messages."""

    @functools.wraps(command)
    def printed(*args: Any, **kwargs: Any) -> None:
        console = Output()
        with messages():
            for item in command(*args, **kwargs):
                say(console, item) if isinstance(item, str) else console.print(item)

    return printed


@contextlib.contextmanager
def messages() -> Iterator[None]:
    """Turns errors that a user can cause into a message and an exit code, without a traceback."""
    try:
        with plugin_errors():
            yield
    except ValueError as error:
        fail(str(error), BAD_INPUT)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        fail(f"{place}{(error.strerror or str(error)).lower()}; what was saved before is kept", BAD_INPUT)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        fail("not enough memory for this configuration: use fewer clients or a smaller model", BAD_INPUT)
    except KeyboardInterrupt:
        fail("stopped at once; the same command again goes on from the last checkpoint", INTERRUPTED)


def fail(message: str, code: int) -> NoReturn:
    """Ends the program with a message and an exit code."""
    typer.echo(f"fedjax-bal: {message}", err=True)
    raise typer.Exit(code)


def stopped_message(folder: Path) -> str:
    """The text after a stop at a safe point."""
    return f"\nStopped; all is saved in {folder}. The same command again goes on from there."


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether Ctrl-C was pressed once; pressed twice it stops at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print("\nfinishing these rounds, then saving; Ctrl-C again stops at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
