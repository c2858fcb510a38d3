"""Output, messages and Ctrl-C of a command."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import typer
from rich.console import Console

BAD_INPUT = 2
INTERRUPTED = 130


class Output(Console):
    """A console whose reader may close the pipe: the command goes on in silence."""

    def on_broken_pipe(self) -> None:
        """Discards all further output."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(console: Console, text: str) -> None:
    """Prints a line as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def messages() -> Iterator[None]:
    """Turns errors that a user can cause into a message and an exit code, without a traceback."""
    try:
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


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yields whether Ctrl-C was pressed: the first asks for a stop at the next safe point, the second stops at once."""
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
