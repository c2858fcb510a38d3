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
    for name, label in (("stdout", "standard output"), ("stderr", "standard error")):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):  # not a program's own
            setattr(sys, name, _named(stream, label))
    code: Any = 0
    try:
        from fedjax_bal.cli.app import app

        app()
    except SystemExit as exit_:
        code = exit_.code
    except OSError as error:
        code = _fail(f"{error.filename or 'error'}: {(error.strerror or str(error)).lower()}", BAD_INPUT)
    except BaseException as error:
        # What a library makes of a KeyboardInterrupt in one of its callbacks is an interrupt, too.
        if not isinstance(error, KeyboardInterrupt) and not interrupts.arrived:
            raise
        code = _fail("stopped", INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))  # all that follows is Python's own end
    error = _flush()
    if error is not None and not isinstance(error, BrokenPipeError) and not code:
        code = _fail(f"{error.filename}: {(error.strerror or str(error)).lower()}", BAD_INPUT)
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
        """Raises KeyboardInterrupt, or within an import, where modules would stay half made, ends the process."""
        self.arrived = True
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                os.write(2, b"fedjax-bal: stopped\n")
                os._exit(INTERRUPTED)
            frame = frame.f_back
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


class _Stream(io.FileIO):
    """A standard stream whose errors name it, as those of a file do."""

    def __init__(self, descriptor: int, label: str) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.label = label

    def write(self, data: Any, /) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.label) from None


def _named(stream: io.TextIOWrapper, label: str) -> io.TextIOWrapper:
    """The stream, with errors that name it; a character that it lacks must not cost a result, nor a number its sign."""
    codecs.register_error("fedjax_bal", _similar)
    return io.TextIOWrapper(
        io.BufferedWriter(_Stream(stream.fileno(), label)),
        stream.encoding,
        "fedjax_bal",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


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
