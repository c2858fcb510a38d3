"""The console script: sets up signals and standard streams before any slow import."""

import codecs
import contextlib
import io
import os
import signal
import sys
from types import FrameType
from typing import Any

BAD_INPUT = 2
INTERRUPTED = 130


def main() -> None:
    """Runs the command and exits with its exit code; the entry point of the console script.

    Ctrl-C ends the command with exit code 130, unless the command handles it (`interruptible`). The handler is
    installed before the imports, which take most of the first second.
    """
    interrupts = Interrupts()
    for name in ("stdin", "stdout", "stderr"):  # None if the caller has closed it, as with >&-
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r+" if name == "stdin" else "w"))
    # A character that a terminal can't show must not lose a result, nor a number its sign.
    codecs.register_error("fedjax_bal", _similar)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="fedjax_bal")
    code: Any = 0
    try:
        from fedjax_bal.cli.app import app

        app()
    except SystemExit as exit_:
        code = exit_.code
    except OSError as error:
        code = _fail(f"{error.filename or 'standard output'}: {(error.strerror or str(error)).lower()}", BAD_INPUT)
    except BaseException as error:
        # A library that catches a KeyboardInterrupt in a callback may raise another error; this is an interrupt, too.
        if not isinstance(error, KeyboardInterrupt) and not interrupts.arrived:
            raise
        code = _fail("stopped", INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))  # only Python's shutdown is left
    error = _flush()
    if error is not None and not isinstance(error, BrokenPipeError) and not code:
        code = _fail(f"standard output: {(error.strerror or str(error)).lower()}", BAD_INPUT)
    if interrupts.arrived and code == INTERRUPTED:
        os._exit(code)  # during Python's shutdown a repeated signal would kill the process
    sys.exit(code)


class Interrupts:
    """Handles Ctrl-C while a command runs.

    Attributes:
        arrived: whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.arrived = False
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # ignored in background jobs
            for number in (signal.SIGINT, signal.SIGALRM):
                signal.signal(number, self._raise)
        self._unraisable = sys.unraisablehook
        sys.unraisablehook = self._repeat

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self.arrived = True
        # Some extension modules crash if they are interrupted while they are loaded, others drop the interrupt. Nothing
        # is lost here: files are replaced as a whole.
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                os.write(2, b"fedjax-bal: stopped\n")
                os._exit(INTERRUPTED)
            if frame.f_code is Interrupts._repeat.__code__:  # what is raised there is lost, too; the timer goes on
                return
            frame = frame.f_back
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

    def _repeat(self, unraisable: Any) -> None:
        """Repeats an interrupt that arrived in a callback that can't raise, such as jax's garbage-collection hooks."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._unraisable(unraisable)
            return
        # Again and again, for a signal that comes just before a blocking wait doesn't end the wait. Not by SIGINT: its
        # handler may be another one by now.
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.1)


def _similar(error: UnicodeError) -> tuple[str, int]:
    """Replaces characters that a terminal can't show: a minus sign by a hyphen, others by question marks."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join("-" if letter == "\N{MINUS SIGN}" else "?" for letter in lacking), error.end


def _fail(message: str, code: int) -> int:
    """Prints a message if possible; returns the exit code."""
    with contextlib.suppress(OSError):
        print(f"fedjax-bal: {message}", file=sys.stderr, flush=True)
    return code


def _flush() -> OSError | None:
    """Flushes the output; returns the error if that fails, and then prevents Python's attempt at exit."""
    failure = None
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as error:
            failure = error
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return failure
