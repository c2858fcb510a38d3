"""Registries: the names that a configuration can use, and the plug-ins that added them."""

import contextlib
import traceback
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Plugin(NamedTuple):
    """Code outside the package that adds to registries.

    Attributes:
        name: name of its file or package.
        source: its file, or its package's folder; None for an interactive session.
        digest: digest of its source; part of the identity of runs that use it.
    """

    name: str
    source: Path | None
    digest: str


PLUGINS: dict[str, Plugin] = {}
"""The plug-ins with registered entries, by name."""


class PluginError(ValueError):
    """Raised for a plug-in that can't be used; the message names its file and, if known, the line."""


class Registry(Mapping[str, T]):
    """Entries by name, in order; an entry can't be replaced by a different one.

    Example:
        >>> laws = Registry({"always": 1.0})
        >>> laws.add("always", 0.5, Plugin("mine", None, ""), "never")
        Traceback (most recent call last):
        ValueError: received the name 'always', which exists already; choose another
    """

    def __init__(self, entries: Mapping[str, T]) -> None:
        self._entries = dict(entries)
        self._owners: dict[str, tuple[Plugin, str]] = {}

    def __getitem__(self, name: str) -> T:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, name: str, entry: T, plugin: Plugin, what: str) -> None:
        """Adds a plug-in's entry; it may only be replaced by a redefinition of the same function or class, `what`."""
        before, known = self._owners.get(name, (None, ""))
        again = before is not None and (before.name, known) == (plugin.name, what)
        if name in self._entries and not again:
            by = f", from {before.source or before.name}" if before else ""
            raise ValueError(f"received the name {name!r}, which exists already{by}; choose another")
        self._entries[name] = entry
        self._owners[name] = (plugin, what)

    def plugin(self, name: str) -> Plugin | None:
        """Returns the plug-in that added an entry; None for the package's own entries."""
        return self._owners.get(name, (None, ""))[0]

    def plugins(self) -> set[Plugin]:
        """Returns the plug-ins of all entries."""
        return {plugin for plugin, _ in self._owners.values()}


@contextlib.contextmanager
def plugin_errors() -> Iterator[None]:
    """Converts an error raised in a plug-in's code to a `PluginError` that names the file and the line."""
    try:
        yield
    except (PluginError, MemoryError):
        raise
    except Exception as error:
        line = error_line(error, [plugin.source for plugin in PLUGINS.values() if plugin.source])
        if line:
            raise PluginError(f"{line}: {format_error(error)}") from error
        raise


def error_line(error: BaseException, sources: Collection[Path]) -> str:
    """Returns the innermost line of these files and folders through which an error, or its cause, passed."""
    line = ""
    cause: BaseException | None = error
    while cause is not None and sources:
        for frame, number in traceback.walk_tb(cause.__traceback__):
            file = Path(frame.f_code.co_filename).resolve()
            if any(source in (file, *file.parents) for source in sources):
                line = f"{file}, line {number}"
        cause = cause.__cause__
    return line


def format_error(error: BaseException) -> str:
    """Formats an error with its notes, except JAX's; the type name is omitted for `ValueError`."""
    text = str(error) or "no message"
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("----")]
    return "\n".join([text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}", *notes])
