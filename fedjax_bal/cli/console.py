"""Console output of commands: lines, tables and messages without control characters; and Ctrl-C while training."""

import contextlib
import functools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fedjax_bal.cli.start import BAD_INPUT
from fedjax_bal.registry import plugin_errors

_CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Output(Console):
    """A console for texts that contain names from outside: of files, classes and methods.

    Texts are printed literally: rich's markup and emoji codes aren't interpreted, and control characters, which could
    move the cursor, rename the window or hide output, are replaced by a sign. If the reader closes the pipe, the
    command continues without output.

    Attributes:
        room: the largest width of tables: that of the terminal, or any for a file or a pipe, unless a width is set.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)
        limited = self.is_terminal or "width" in options or "COLUMNS" in os.environ
        self.room = self.width if limited else sys.maxsize

    def say(self, text: str) -> None:
        """Prints a line without wrapping it."""
        self.print(replace_control_characters(text), soft_wrap=True)  # rich would silently drop some control characters

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Renders texts without control characters; rich's own control codes are kept."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=replace_control_characters(segment.text))

    def on_broken_pipe(self) -> None:
        """Discards all further output."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def progress_console(*, quiet: bool) -> Output:
    """Returns the console for progress; a silent one if `quiet` is set."""
    # On a terminal, a live display would swallow messages on standard error.
    return Output(quiet=True, force_terminal=False) if quiet else Output()


def replace_control_characters(text: str) -> str:
    r"""Replaces control characters, marks of writing direction and surrogates by a sign.

    Example:
        >>> replace_control_characters("cat\x1b[2J").replace("\N{REPLACEMENT CHARACTER}", "?")
        'cat?[2J'
    """
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def names_table(entries: Iterable[tuple[str, Sequence[str]]]) -> Table:
    """Builds a two-column table: names in bold and their descriptions, with all lines but the first dimmed."""
    table = Table.grid(padding=(0, 3))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, lines in entries:
        first, *others = map(replace_control_characters, lines or [""])  # a plug-in may have no description
        dim = [Text(f"\n{line}", "dim") for line in others]
        table.add_row(Text(replace_control_characters(name), "bold"), Text.assemble(first, *dim))
    return table


def printing(command: Callable[..., Iterator[Any]]) -> Callable[..., None]:
    """Decorates a generator of lines and tables as a command that prints them and turns errors into messages."""

    @functools.wraps(command)
    def printed(*args: Any, **kwargs: Any) -> None:
        console = Output()
        with messages():
            for item in command(*args, **kwargs):
                console.say(item) if isinstance(item, str) else console.print(item)

    return printed


@contextlib.contextmanager
def messages() -> Iterator[None]:
    """Turns errors that users can cause into a message and an exit code, without a traceback."""
    try:
        with plugin_errors():
            yield
    except ValueError as error:
        fail(str(error), BAD_INPUT)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        fail(f"{place}{(error.strerror or str(error)).lower()}; anything saved before is kept", BAD_INPUT)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        fail("not enough memory for this configuration: use fewer clients or a smaller model", BAD_INPUT)


def fail(message: str, code: int) -> NoReturn:
    """Ends the program with a message and an exit code."""
    complain(message)
    raise typer.Exit(code)


def complain(message: str) -> None:
    """Prints a message for the user to standard error."""
    typer.echo(f"fedjax-bal: {replace_control_characters(message)}", err=True)


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether Ctrl-C was pressed; a second Ctrl-C stops the command at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)
        print("\nfinishing these rounds, then saving; press Ctrl-C again to stop at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
