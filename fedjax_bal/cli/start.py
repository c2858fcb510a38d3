"""The console script: prepares signals and standard streams before the slow imports, then runs the command."""

import contextlib
import os
import signal
import sys
from types import FrameType

BAD_INPUT = 2
INTERRUPTED = 130


def main() -> None:
    """Runs the command and exits with its exit code; the entry point of the console script.

    Ctrl-C ends the process at once with exit code 130, except while a command trains, which then saves its state first
    (`console.interruptible`).
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell ignores it for jobs in the background
        signal.signal(signal.SIGINT, _stop)
    # If the caller has closed a standard stream (`>&-`), the next file to be opened would take its place, and whatever
    # a C++ library prints would end up in that file.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r+" if name == "stdin" else "w"))
    # A terminal without Unicode shows escapes instead of raising an error.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # Commands only write files. A notebook names a backend for its shell commands that they may not have.
    os.environ["MPLBACKEND"] = "agg"
    code: int | str | None = 0
    try:
        try:
            from fedjax_bal.cli.app import app

            app()
        except SystemExit as exit_:
            code = exit_.code
        sys.stdout.flush()
    except OSError as error:
        # Python would flush the stream again at exit, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not isinstance(error, BrokenPipeError):  # the reader of a pipe may have seen enough
            code = code or BAD_INPUT
            with contextlib.suppress(OSError):
                place = error.filename or "standard output"
                print(f"fedjax-bal: {place}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
    sys.exit(code)


def _stop(number: int, frame: FrameType | None) -> None:
    """Ends the process without unwinding it.

    A KeyboardInterrupt could arrive anywhere: some extension modules crash when one interrupts their import, and
    callbacks of jax discard it. Exiting loses nothing, because files are replaced as a whole.
    """
    if sys.stdout.isatty():
        os.write(1, b"\x1b[?25h\n")  # shows the cursor, which a live display has hidden
    os.write(2, b"fedjax-bal: stopped\n")
    os._exit(INTERRUPTED)
