"""Output, messages and Ctrl-C of a command."""

import contextlib
import dataclasses
import functools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fedjax_bal.cli.start import BAD_INPUT, INTERRUPTED
from fedjax_bal.registry import plugin_errors

_CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Output(Console):
    """A console for texts that hold names from elsewhere: of files, classes and methods.

    They are printed as they are: what looks like rich's markup or an emoji's name is text, and control characters,
    which could move the cursor, rename the window or hide what is printed, become a sign. Its reader may close the
    pipe: the command goes on in silence.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Renders texts without control characters; rich's own codes are no text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=harmless(segment.text))

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


def harmless(text: str) -> str:
    r"""A text with a sign in place of each control character, mark of writing direction, and half of a character.

    Example:
        >>> harmless("cat\x1b[2J").replace("\N{REPLACEMENT CHARACTER}", "?")
        'cat?[2J'
    """
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def say(console: Console, text: str) -> None:
    """Prints a line as it is."""
    console.print(harmless(text), markup=False, emoji=False, highlight=False, soft_wrap=True)


def names_table(entries: Iterable[tuple[str, Sequence[str]]]) -> Table:
    """A table of names in bold, with the lines on each beside it, all but the first dim."""
    table = Table.grid(padding=(0, 3))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, lines in entries:
        first, *others = lines or [""]  # a recipe of a plug-in may have no text
        dim = [Text(f"\n{harmless(line)}", "dim") for line in others]
        table.add_row(Text(harmless(name), "bold"), Text.assemble(harmless(first), *dim))
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
    complain(message)
    raise typer.Exit(code)


def complain(message: str) -> None:
    """Prints a message for the user to standard error."""
    typer.echo(f"fedjax-bal: {harmless(message)}", err=True)


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
