"""The files of an output folder, on disk or written by another process."""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedjax_bal.files import open_to_append, own_folder, parse_json, read_bytes, write_atomically
from fedjax_bal.runs import checkpoint
from fedjax_bal.runs.checksums import Examined, examine, sealed

LARGEST_FILE = 2**28
"""Bytes; longer files are not read, but for metrics."""

_LOCK = ".lock"


class FolderError(ValueError):
    """A folder of runs that can't be used; the message names the file, the line if any, and what to do."""


class FolderInUseError(FolderError):
    """A folder in which another process is running; `another` if what it runs is known to be something else."""

    def __init__(self, message: str, *, another: bool) -> None:
        super().__init__(message)
        self.another = another


class OutputFiles:
    """Reads and writes a folder's files by their names in it; nothing is written outside of it, nor through a link."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """The names of the folder's entries, without its lock; none for a folder that doesn't exist."""
        entries = self.path.iterdir() if self.path.exists() else ()
        return sorted(entry.name for entry in entries if entry.name != _LOCK)

    def prepare(self, check: Callable[[], None]) -> None:
        """Makes the folder unless it exists, and has it checked before anything is written into it."""
        with self.writing():
            self.path.mkdir(parents=True, exist_ok=True)
            check()

    @contextlib.contextmanager
    def locked(self, check: Callable[[], None], owner: str = "") -> Iterator[None]:
        """Makes the folder, has it checked, and keeps other processes out of it, which it tells the `owner`."""
        self.prepare(check)
        with self.writing():
            lock = open_to_append(self.path / _LOCK)
        with lock:
            # The file is never removed: it could be the one that another process has just locked.
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                another = self.read(_LOCK) not in (b"", owner.encode())
                told = "another process is running in this folder; wait for it, or choose another with --out"
                raise FolderInUseError(f"{self.path}: {told}", another=another) from None
            lock.truncate(0)
            lock.write(owner.encode())
            lock.flush()
            check()  # again: another process may have written here before the lock
            yield

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Turns an `OSError` into a `FolderError` that says what to do."""
        try:
            yield
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise FolderError(
                f"{self.path}: the output folder can't be written ({reason}); choose another with --out"
            ) from error

    def read(self, name: str, limit: int = LARGEST_FILE) -> bytes:
        """The content of a file of at most `limit` bytes."""
        return read_bytes(self.path / name, limit)

    def read_json(self, name: str, note: Callable[[str], object] = lambda text: None) -> Any:
        """The content of a JSON file; None if it is missing, or damaged, which `note` is told."""
        found = self.examine_json(name)
        if found.damage and not found.missing:
            note(f"warning: {found.place}: damaged ({found.damage}); what it held is left out")
        return found.values

    def examine_json(self, name: str) -> Examined:
        """Reads and checks a JSON file."""
        return examine(self.path / name, lambda: parse_json(self.read(name)))

    def write(self, name: str, content: bytes) -> None:
        """Replaces a file that doesn't hold this already, and makes its folder unless that exists."""
        folder, _, last = name.rpartition("/")
        file = (own_folder(self.path, folder) if folder else self.path) / last
        if not _holds(file, content):
            write_atomically(file, content)

    def make_folder(self, name: str) -> None:
        """Makes a folder inside, unless it exists."""
        own_folder(self.path, name)

    def write_json(self, name: str, values: Mapping[str, Any]) -> None:
        """Replaces a JSON file, an object with its checksum."""
        self.write(name, (json.dumps(sealed(values), indent=1) + "\n").encode())

    def write_page(self, name: str, page: bytes, figures: Mapping[str, str]) -> Path:
        """Replaces a page and `plots/*.svg`, its figures by name; returns the page's file."""
        self.make_folder("plots")
        for figure, document in figures.items():
            self.write(f"plots/{figure}.svg", document.encode())
        self.write(name, page)
        return self.path / name

    def append(self, name: str, lines: Iterable[bytes]) -> None:
        """Adds lines to a file, on disk before it returns."""
        try:
            with open_to_append(self.path / name) as stream:
                stream.writelines(lines)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path / name)) from error

    def remove(self, *patterns: str) -> None:
        """Removes the files that match, but none behind a link, which may belong to another program."""
        for pattern in patterns:
            for file in self.path.glob(pattern):
                if file.is_file() and file.resolve() == self.path.resolve() / file.relative_to(self.path):
                    file.unlink()

    def save_checkpoint(self, folder: str, round: int, tree: Any) -> None:
        """Writes a checkpoint of a run."""
        outer, _, inner = folder.rpartition("/")
        checkpoint.save(own_folder(own_folder(self.path, outer), inner), round, tree)

    def clear_checkpoints(self, folder: str) -> None:
        """Removes all checkpoints of a run, but none behind a link."""
        if not (self.path / folder).is_symlink():
            checkpoint.clear(self.path / folder)


def _holds(file: Path, content: bytes) -> bool:
    """Whether a file, which is no link, has this content."""
    try:
        return not file.is_symlink() and read_bytes(file, len(content)) == content
    except OSError:
        return False


def _do_nothing(*_: Any, **__: Any) -> None: ...


class RemoteFiles(OutputFiles):
    """Stands for files that another process reads and writes: finds none, and writes nothing.

    That process sends what it reads, so that the folder needn't be on a file system that all processes share.
    """

    prepare = make_folder = write = append = remove = save_checkpoint = clear_checkpoints = _do_nothing

    def locked(self, check: Callable[[], None], owner: str = "") -> contextlib.AbstractContextManager[None]:
        """Locks nothing."""
        return contextlib.nullcontext()

    def read(self, name: str, limit: int = LARGEST_FILE) -> bytes:
        """Finds nothing."""
        raise FileNotFoundError(name)
