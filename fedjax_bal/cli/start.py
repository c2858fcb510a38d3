"""The console script: signals and standard streams, set up before anything that takes long is imported."""

import codecs
import contextlib
import io
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

BAD_INPUT = 2
INTERRUPTED = 130


def main() -> None:
    """The console script's entry point: runs the command, and ends with its exit code.

    Ctrl-C ends it with exit code 130, unless the command handles it (`interruptible`). The handler is there before the
    imports, which take most of the first second.
    """
    interrupts = Interrupts()
    # A character that a terminal lacks must not cost a result, nor a number its sign.
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
        # What a library makes of a KeyboardInterrupt in one of its callbacks is an interrupt, too.
        if not isinstance(error, KeyboardInterrupt) and not interrupts.arrived:
            raise
        code = _fail("stopped", INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))  # all that follows is Python's own end
    error = _flush()
    if error is not None and not isinstance(error, BrokenPipeError) and not code:
        code = _fail(f"standard output: {(error.strerror or str(error)).lower()}", BAD_INPUT)
    sys.exit(code)


class Interrupts:
    """Handles Ctrl-C while a command runs.

    Attributes:
        arrived: whether there was one.
    """

    def __init__(self) -> None:
        self.arrived = False
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as for a job in the background
            signal.signal(signal.SIGINT, self._raise)
        self._unraisable = sys.unraisablehook
        sys.unraisablehook = self._repeat

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self.arrived = True
        raise KeyboardInterrupt

    def _repeat(self, unraisable: Any) -> None:
        """Sends an interrupt again that came within a callback which can't raise, such as jax's after a collection."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._unraisable(unraisable)
            return
        main = threading.main_thread().ident
        again = threading.Timer(0.01, signal.pthread_kill, [main, signal.SIGINT])  # which also ends its waiting
        again.daemon = True
        again.start()


def _similar(error: UnicodeError) -> tuple[str, int]:
    """Replaces characters that a terminal lacks: a minus sign by a hyphen, others by question marks."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join("-" if letter == "\N{MINUS SIGN}" else "?" for letter in lacking), error.end


def _fail(message: str, code: int) -> int:
    """Prints a message, if that is possible; returns the exit code."""
    with contextlib.suppress(OSError):
        print(f"fedjax-bal: {message}", file=sys.stderr, flush=True)
    return code


def _flush() -> OSError | None:
    """Writes what is left of the output; returns the error if that fails. Python, at its end, would try it again."""
    failure = None
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as error:
            failure = error
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return failure
