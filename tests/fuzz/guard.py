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

LONGEST = 10.0
"""Seconds of the processor that a case may take."""

PATIENCE = 60.0
"""Seconds that it may take by the clock, on a machine that does other things too."""

_PACKAGE = str(Path(fedjax_bal.__file__).parent)
_MAKING = ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.utime", "shutil.rmtree")
_MOVING = ("os.rename", "os.link", "os.symlink")
_RUNNING = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")
_FOREIGN = ("Exceeds the limit (", "embedded null", "invalid literal", "could not convert")  # of Python's own messages
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


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
    pickles: tuple[str, ...]
    outside: tuple[str, ...]

    @property
    def bad(self) -> bool:
        """Whether anything happened that must not."""
        return self.kind not in ("success", "error") or bool(self.pickles or self.outside)


class Hang(BaseException):
    """The time is up; no `except Exception` may catch it."""


class _Watch(threading.local):
    """What the hooks have seen in this case; None between cases."""

    allowed: tuple[str, ...] | None = None
    outside: list[str] = []  # noqa: RUF012
    pickles: list[str] = []  # noqa: RUF012


_watch = _Watch()
_hooked = False


def attempt(call: Callable[[], object], allowed: tuple[Path, ...] = ()) -> Outcome:
    """Runs a case.

    Args:
        call: what to run.
        allowed: folders below which it may write.

    Returns:
        How it ended.
    """
    _hook()
    _watch.outside, _watch.pickles = [], []
    with _alarm(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _watch.allowed = tuple(os.path.realpath(path) for path in allowed)
            call()
            kind, told = "success", ""
        except Hang:
            kind, told = "hang", _end_of_traceback()
        except MemoryError:
            kind, told = "memory", _end_of_traceback()
        except ValueError as error:
            kind, told = ("error", str(error)) if _is_message(error) else ("traceback", _end_of_traceback())
        except (Exception, SystemExit):
            kind, told = "traceback", _end_of_traceback()
        finally:
            _watch.allowed = None
    return Outcome(kind, told, tuple(_watch.pickles), tuple(_watch.outside))


def _is_message(error: ValueError) -> bool:
    """Whether the package itself raised it, in words of its own."""
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    foreign = isinstance(error, UnicodeError) or str(error).startswith(_FOREIGN)
    return last.startswith(_PACKAGE) and not foreign


def _end_of_traceback() -> str:
    return "".join(traceback.format_exc().splitlines(keepends=True)[-14:])[-3000:]


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise Hang

    before = [signal.signal(number, ring) for number in (signal.SIGALRM, signal.SIGPROF)]
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in zip((signal.SIGALRM, signal.SIGPROF), before, strict=True):
            signal.signal(number, handler)


def _hook() -> None:
    """Watches writes and pickles from now on; a hook of Python's can't be taken away again."""
    global _hooked
    if _hooked:
        return
    _hooked = True
    importlib.import_module("matplotlib.font_manager")  # looks for fonts when it is imported, and writes them down
    sys.addaudithook(_audit)
    for name in ("load", "loads", "Unpickler"):
        setattr(pickle, name, _watched(getattr(pickle, name), name))


def _watched(original: Callable[..., object], name: str) -> Callable[..., object]:
    def call(*args: object, **kwargs: object) -> object:
        if _watch.allowed is not None:
            _watch.pickles.append(name)
        return original(*args, **kwargs)

    return call


def _audit(event: str, args: tuple) -> None:
    if _watch.allowed is None:
        return
    if event == "open":
        path, mode, flags = args
        if isinstance(path, str | bytes | os.PathLike) and (_writes(mode) or (mode is None and flags & _WRITING)):
            _note(event, path)
    elif event in _MAKING:
        _note(event, args[0])
    elif event in _MOVING:
        for path in args[:2] if event != "os.symlink" else args[1:2]:
            _note(event, path)
    elif event in _RUNNING:
        _watch.outside.append(f"{event} {args!r}"[:300])
    elif event == "pickle.find_class":
        _watch.pickles.append(f"{args[0]}.{args[1]}")


def _writes(mode: object) -> bool:
    return isinstance(mode, str) and any(letter in mode for letter in "wax+")


def _note(event: str, path: object) -> None:
    if isinstance(path, int) or _watch.allowed is None:
        return
    name = os.fsdecode(path)  # type: ignore[arg-type]
    # Making, moving and removing concern the name itself, opening what it leads to.
    real = os.path.realpath(name) if event == "open" else _real_name(name)
    if real == os.devnull or any(real == root or real.startswith(root + os.sep) for root in _watch.allowed):
        return
    _watch.outside.append(f"{event} {name} ({real})")


def _real_name(name: str) -> str:
    folder, last = os.path.split(os.path.abspath(name))
    return os.path.join(os.path.realpath(folder), last)
