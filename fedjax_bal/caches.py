"""Cache folders for compiled programs and for matplotlib."""

import contextlib
import functools
import importlib
import os
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_UNREADABLE = re.compile(r"Error reading persistent compilation cache entry for '([\w<>.-]+)'")


def keep_compiled_programs(note: Callable[[str], None]) -> None:
    """Makes XLA keep compiled programs in the user's cache folder, so that the next run starts without compiling.

    Changes nothing if the user has chosen another folder, or switched jax's cache off.
    """
    import jax

    known: Any = jax.config
    if known.jax_compilation_cache_dir or not known.jax_enable_compilation_cache:
        return
    folder = cache_folder("xla")
    if folder is None:
        note("compiled programs are not kept: the user's cache folder can't be written")
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    _replace_unreadable_programs(folder)


@functools.cache
def _replace_unreadable_programs(folder: Path) -> None:
    """Removes programs of the name that jax can't read, when it says so, before it writes them again."""
    # A kill can cut one off. Jax would then warn and compile in every session, as it never replaces a file.
    show = warnings.showwarning

    def shown(message: Warning | str, *args: Any, **kwargs: Any) -> None:
        found = _UNREADABLE.match(str(message))
        for file in folder.glob(f"{found[1]}-*-cache") if found else ():
            file.unlink(missing_ok=True)
        if not found:
            show(message, *args, **kwargs)

    warnings.showwarning = shown


def count_compiled_programs() -> Callable[[], str]:
    """Counts the programs that are compiled from now on; returns a function that says how many were found."""
    import jax

    seen: Counter[str] = Counter()
    known: Any = jax.config
    jax.monitoring.register_event_listener(lambda event, **_: seen.update([event.rpartition("/")[2]]))

    def in_words() -> str:
        found, asked = seen["cache_hits"], seen["compile_requests_use_cache"]
        return f"XLA's programs: {asked - found} compiled, {found} found in {known.jax_compilation_cache_dir}"

    return in_words


def keep_compiled_programs_by_default() -> None:
    """Does so where it is possible, and says nothing where it isn't."""
    keep_compiled_programs(lambda text: None)


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Gives matplotlib a writable cache folder, and no backend that it doesn't know; import it within this context."""
    # Matplotlib reads both variables once, on import; without a folder, it warns where its default can't be written.
    folder = cache_folder("matplotlib")
    with tempfile.TemporaryDirectory() if folder is None else contextlib.nullcontext(folder) as place:
        os.environ.setdefault("MPLCONFIGDIR", str(place))
        if "matplotlib" not in sys.modules:
            # It doesn't start with a backend that it can't find, such as the one that a notebook sets for its commands.
            chosen = os.environ.pop("MPLBACKEND", None)
            matplotlib = importlib.import_module("matplotlib")
            if chosen is not None:
                os.environ["MPLBACKEND"] = chosen
                with contextlib.suppress(ValueError):  # pages need none
                    matplotlib.rcParams["backend"] = chosen
        yield


def cache_folder(name: str) -> Path | None:
    """Creates and returns the package's cache folder of this name; None if it can't be written."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(home) / "fedjax_bal" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None
