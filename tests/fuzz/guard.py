"""One case under watch: how it ends, what it unpickles, and what it writes or starts outside of its folder."""

import functools
import importlib
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import fedjax_bal

PATIENCE = 600.0
"""Seconds that a case may take, which takes one or two: enough on a busy machine."""

_PACKAGE = str(Path(fedjax_bal.__file__).parent)
_MADE = ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.utime", "shutil.rmtree")
_PATHS = dict.fromkeys(_MADE, slice(1)) | {"os.rename": slice(2), "os.link": slice(2), "os.symlink": slice(1, 2)}
_RUNNING = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")
_FOREIGN = ("Exceeds the limit (", "embedded null", "invalid literal", "could not convert")  # of Python's own messages
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Outcome(NamedTuple):
    """How a case ended.

    Attributes:
        kind: `success`, `error` (a message of the package's own), or the class of another exception.
        told: the message, or the end of the traceback.
        faults: what was unpickled; and what was written, made, moved or started where nothing may be.
    """

    kind: str
    told: str
    faults: list[str]

    @property
    def bad(self) -> bool:
        """Whether anything happened that must not."""
        return self.kind not in ("success", "error") or bool(self.faults)


class Hang(BaseException):
    """The time is up; no `except Exception` may catch it."""


class _Watch(threading.local):
    """What the running case of this thread may write below, if there is one, and what it has done wrong."""

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] | None = None
        self.faults: list[str] = []


_watch = _Watch()


def attempt(call: Callable[[], object], allowed: tuple[Path, ...] = ()) -> Outcome:
    """Runs a case, which may write below the allowed folders."""

    def ring(number: int, frame: object) -> None:
        raise Hang

    _hook()
    _watch.faults, kind, told = [], "success", ""
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        with warnings.catch_warnings(action="ignore"):
            _watch.allowed = tuple(os.path.realpath(path) for path in allowed)
            call()
    except (Exception, SystemExit, Hang) as error:
        kind = "error" if _is_message(error) else type(error).__name__
        told = str(error) if kind == "error" else "".join(traceback.format_exception(error))[-3000:]
    finally:
        _watch.allowed = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return Outcome(kind, told, _watch.faults)


def _is_message(error: BaseException) -> bool:
    """Whether the package itself raised it, in words of its own."""
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    own = isinstance(error, ValueError) and not isinstance(error, UnicodeError) and last.startswith(_PACKAGE)
    return own and not str(error).startswith(_FOREIGN)


@functools.cache
def _hook() -> None:
    """Watches writes and pickles from now on; a hook of Python's can't be taken away again."""
    importlib.import_module("matplotlib.font_manager")  # looks for fonts when it is imported, and writes them down
    sys.addaudithook(_audit)
    for name in ("load", "loads", "Unpickler"):
        setattr(pickle, name, _watched(getattr(pickle, name)))


def _watched(original: Callable[..., object]) -> Callable[..., object]:
    def call(*args: object, **kwargs: object) -> object:
        _note("unpickled")
        return original(*args, **kwargs)

    return call


def _audit(event: str, args: tuple) -> None:
    if _watch.allowed is None:
        return
    if event == "open" and not isinstance(args[0], int) and args[2] & _WRITING:
        _note(event, os.path.realpath(os.fsdecode(args[0])))
    elif event in _PATHS:
        for path in args[_PATHS[event]]:
            if not isinstance(path, int):  # making, moving and removing concern the name itself
                folder, last = os.path.split(os.path.abspath(os.fsdecode(path)))
                _note(event, os.path.join(os.path.realpath(folder), last))
    elif event in _RUNNING or event == "pickle.find_class":
        _note(f"{event} {args!r}"[:300])


def _note(event: str, real: str = "") -> None:
    """Remembers what happens while a case is running, unless a path is one of those that are allowed."""
    if _watch.allowed is None or real == os.devnull:
        return
    if not any(real == root or real.startswith(root + os.sep) for root in _watch.allowed):
        _watch.faults.append(f"{event} {real}")
