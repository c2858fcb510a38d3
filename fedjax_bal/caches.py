"""Cache folders for compiled programs and for matplotlib."""

import contextlib
import errno
import functools
import importlib
import math
import os
import re
import stat
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_UNREADABLE = re.compile(r"Error reading persistent compilation cache entry for '([\w<>.-]+)'")


def keep_compiled_programs(note: Callable[[str], object] = lambda text: None) -> None:
    """Makes XLA keep compiled programs in the user's cache folder, so that the next run starts without compiling.

    Changes no setting if the user has chosen another folder, or switched jax's cache off. `note` receives a message if
    the folder can't be used.
    """
    import jax

    config: Any = jax.config
    _date_programs(config.jax_compilation_cache_dir)
    if config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:
        return
    try:
        folder = cache_folder("xla")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        note(f"compiled programs are not kept: the user's cache folder can't be used ({where}{error.strerror})")
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if config.jax_persistent_cache_min_compile_time_secs < math.inf:  # infinity means that none may be written
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    _replace_unreadable_programs(folder)
    _date_programs(str(folder))


def _date_programs(folder: str | None) -> None:
    """Writes the times of use that a cache with a size limit needs, for the programs that lack one."""
    # Without a limit jax writes none, and a kill can come between a program and its time. With a limit, jax then fails
    # to write any program (jax issue 39880).
    import jax

    config: Any = jax.config
    if folder is None or "://" in folder or config.jax_compilation_cache_max_size == -1:
        return
    with contextlib.suppress(OSError):
        for program in Path(folder).glob("*-cache"):
            used = program.with_name(program.name.removesuffix("-cache") + "-atime")
            if not used.exists():
                used.write_bytes(program.stat().st_mtime_ns.to_bytes(8, "little"))


@functools.cache
def _replace_unreadable_programs(folder: Path) -> None:
    """Removes the cached programs of which jax warns that it can't read them, so that it writes them again."""
    # A kill can truncate a file. Jax never replaces a file, so it would warn and compile in every session.
    show = warnings.showwarning

    def shown(message: Warning | str, *args: Any, **kwargs: Any) -> None:
        named = _UNREADABLE.match(str(message))
        for file in folder.glob(f"{named[1]}-*-cache") if named else ():
            file.unlink(missing_ok=True)
        if not named:
            show(message, *args, **kwargs)

    warnings.showwarning = shown


def count_compiled_programs() -> Callable[[], str]:
    """Counts the programs that are compiled or found from now on; returns a function that describes the counts."""
    import jax

    seen: Counter[str] = Counter()
    config: Any = jax.config
    jax.monitoring.register_event_listener(lambda event, **_: seen.update([event.rpartition("/")[2]]))

    def in_words() -> str:
        found = seen["cache_hits"]
        compiled = seen["compile_requests_use_cache"] - found
        return f"XLA's programs: {compiled} compiled, {found} found in {config.jax_compilation_cache_dir}"

    return in_words


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Gives matplotlib a writable cache folder, and hides an unknown backend from it; import it within this context.

    Settings in the user's own folder for matplotlib are still read.
    """
    # Matplotlib reads these variables once, on import; without a folder, it warns where its default can't be written.
    with contextlib.ExitStack() as stack:
        try:
            folder = str(cache_folder("matplotlib"))
        except OSError:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
        settings = _matplotlib_settings()
        if "MPLCONFIGDIR" not in os.environ and settings.is_file():
            os.environ.setdefault("MATPLOTLIBRC", str(settings))
        os.environ.setdefault("MPLCONFIGDIR", folder)
        if "matplotlib" not in sys.modules:
            # It doesn't start with a backend that it can't find, such as the one that a notebook sets for its commands.
            chosen = os.environ.pop("MPLBACKEND", None)
            matplotlib = importlib.import_module("matplotlib")
            if chosen is not None:
                os.environ["MPLBACKEND"] = chosen
                with contextlib.suppress(ValueError):  # pages need none
                    matplotlib.rcParams["backend"] = chosen
        yield


def _matplotlib_settings() -> Path:
    """Returns the user's own file of matplotlib settings, which a MPLCONFIGDIR for the cache would hide."""
    if sys.platform == "darwin":
        folder = os.path.expanduser("~/.matplotlib")
    else:
        folder = os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "matplotlib")
    return Path(folder) / "matplotlibrc"


def cache_folder(name: str) -> Path:
    """Creates and returns the package's cache folder of this name, below XDG_CACHE_HOME or ~/.cache.

    Programs from there are executed, so only this user may have write access.

    Raises:
        OSError: there is no home folder, the folder isn't writable, or other users can write to it.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):  # the standard says to ignore a relative one
        home = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(home):  # "~" stays as it is for a user without an entry, as in containers
        raise OSError(errno.ENOENT, "there is no home folder: set HOME or XDG_CACHE_HOME to an absolute path")
    folder = Path(home)
    folder.mkdir(0o700, parents=True, exist_ok=True)
    for part in ("fedjax_bal", name):
        folder = folder / part
        folder.mkdir(0o700, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "belongs to another user: set XDG_CACHE_HOME to your own folder", str(folder))
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(errno.EPERM, "can be written by other users: chmod go-w", str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, "permission denied", str(folder))
    return folder
