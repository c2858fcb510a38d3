"""One case under watch: how it ends, how long it takes, what it unpickles, what it writes, and where."""

import contextlib
import importlib
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import fedjax_bal

PATIENCE = 60.0
"""Seconds that a case may take."""

_PACKAGE = str(Path(fedjax_bal.__file__).parent)
_MADE = ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.utime", "shutil.rmtree")
_PATHS = dict.fromkeys(_MADE, slice(1)) | {"os.rename": slice(2), "os.link": slice(2), "os.symlink": slice(1, 2)}
_RUNNING = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")
_FOREIGN = ("Exceeds the limit (", "embedded null", "invalid literal", "could not convert")  # of Python's own messages
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_watch = threading.local()


class Outcome(NamedTuple):
    """How a case ended.

    Attributes:
        kind: `success`, `error` (a message of the package's own), `traceback`, `hang` or `memory`.
        told: the message, or the end of the traceback.
        pickles: what was unpickled.
        outside: what was written, made, moved or started where nothing may be.
    """

    kind: str
    told: str
    pickles: list[str]
    outside: list[str]

    @property
    def bad(self) -> bool:
        """Whether anything happened that must not."""
        return self.kind not in ("success", "error") or bool(self.pickles or self.outside)


class Hang(BaseException):
    """The time is up; no `except Exception` may catch it."""


def attempt(call: Callable[[], object], allowed: tuple[Path, ...] = ()) -> Outcome:
    """Runs a case, which may write below the allowed folders."""
    if not hasattr(attempt, "hooked"):
        _hook()
    _watch.outside, _watch.pickles = [], []
    kind, told = "success", ""
    with _alarm(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _watch.allowed = tuple(os.path.realpath(path) for path in allowed)
            call()
        except (Exception, SystemExit, Hang) as error:
            names = {Hang: "hang", MemoryError: "memory", ValueError: "error" if _is_message(error) else "traceback"}
            kind = next((name for class_, name in names.items() if isinstance(error, class_)), "traceback")
            told = str(error) if kind == "error" else "".join(traceback.format_exception(error))[-3000:]
        finally:
            _watch.allowed = None
    return Outcome(kind, told, _watch.pickles, _watch.outside)


def _is_message(error: BaseException) -> bool:
    """Whether the package itself raised it, in words of its own."""
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    return last.startswith(_PACKAGE) and not isinstance(error, UnicodeError) and not str(error).startswith(_FOREIGN)


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _hook() -> None:
    """Watches writes and pickles from now on; a hook of Python's can't be taken away again."""
    attempt.hooked = True  # type: ignore[attr-defined]
    importlib.import_module("matplotlib.font_manager")  # looks for fonts when it is imported, and writes them down
    sys.addaudithook(_audit)
    for name in ("load", "loads", "Unpickler"):
        setattr(pickle, name, _watched(getattr(pickle, name), name))


def _watched(original: Callable[..., object], name: str) -> Callable[..., object]:
    def call(*args: object, **kwargs: object) -> object:
        if getattr(_watch, "allowed", None) is not None:
            _watch.pickles.append(name)
        return original(*args, **kwargs)

    return call


def _audit(event: str, args: tuple) -> None:
    if getattr(_watch, "allowed", None) is None:
        return
    if event == "open" and not isinstance(args[0], int) and args[2] & _WRITING:
        _note(event, os.path.realpath(os.fsdecode(args[0])))
    elif event in _PATHS:
        for path in args[_PATHS[event]]:
            if not isinstance(path, int):  # making, moving and removing concern the name itself
                folder, last = os.path.split(os.path.abspath(os.fsdecode(path)))
                _note(event, os.path.join(os.path.realpath(folder), last))
    elif event in _RUNNING:
        _watch.outside.append(f"{event} {args!r}"[:300])
    elif event == "pickle.find_class":
        _watch.pickles.append(f"{args[0]}.{args[1]}")


def _note(event: str, real: str) -> None:
    if real != os.devnull and not any(real == root or real.startswith(root + os.sep) for root in _watch.allowed):
        _watch.outside.append(f"{event} {real}")
