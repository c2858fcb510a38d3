"""The base of the folders of runs, sweeps and searches: one lock, reading and writing of files, and checksums."""

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from fedjax_bal.config import parse_yaml, received_value
from fedjax_bal.files import open_file, own_folder, parse_json, read_bytes, read_npz, write_atomically
from fedjax_bal.lab.copies import with_copies
from fedjax_bal.lab.errors import CHOOSE_ANOTHER, FolderError, ForeignFolderError, reading, writing
from fedjax_bal.registry import PLUGINS

SUMS = "SHA256SUMS"
_LOCK = ".lock"
_OWNER = ".owner"  # identifies the run of the process that holds the lock
_BRIEFLY_S = 1.0  # while which several processes may check at once whether a folder is locked
_MOST_DIFFERENCES = 8  # in a message
_FORMAT = 1  # of all JSON files


class OutputFolder:
    """An output folder: of a run, a sweep or a search.

    Nothing is written outside the folder, and nothing through a link.

    Args:
        path: the folder.
        first: whether this is the process that reads and writes the folder: of the processes that `jax.distributed`
            joins, only the first does, and the others get what it has read.
    """

    marker: str  # the file that marks a folder as one of this kind
    kind: str
    holds: str  # what its results belong to
    may_grow: str = ""  # which of its changes the folder can go on with
    page: str
    contents: Sequence[str]  # patterns of the files in SHA256SUMS: what exists only here; pages can be made again

    def __init__(self, path: Path, *, first: bool = True) -> None:
        self.path = path
        self.first = first

    def exists(self) -> bool:
        """Returns whether the folder is of this kind."""
        return (self.path / self.marker).is_file()

    def read_sheet(self) -> tuple[dict[str, Any], str]:
        """Reads the file that marks the folder: its content, and its text with the paths of the folder's copies."""
        with reading(self.path / self.marker, CHOOSE_ANOTHER):
            text = self._read(self.marker).decode()
            sheet = parse_yaml(text, self.marker)
            if not isinstance(sheet, dict):
                raise ValueError(f"expected a mapping of sections; received {received_value(sheet)}")
        return sheet, with_copies(self.path, sheet, text)

    def missing_plugins(self) -> list[str]:
        """Names the plug-ins that the runs used and that aren't loaded; none if the file can't be read."""
        with contextlib.suppress(FolderError):
            return [received_value(name) for name in self.read_sheet()[0].get("plugins", ()) if name not in PLUGINS]
        return []

    def write_page(self, content: bytes, figures: Mapping[str, str], tables: Mapping[str, bytes]) -> Path:
        """Replaces the page, its figures (SVG by name) and tables (by file extension); returns the page's path."""
        own_folder(self.path, "plots")
        for figure, document in figures.items():
            self._write(f"plots/{figure}.svg", document.encode())
        for ending, table in tables.items():
            self._write(f"tables.{ending}", table)
        self._write(self.page, content)
        return self.path / self.page

    def finish(self) -> None:
        """Ends a session: writes the checksums of all results, for `sha256sum -c SHA256SUMS`. `begin` deletes them."""
        self._write(SUMS, os.fsencode("".join(self._sums())))

    def _sums(self) -> Iterator[str]:
        found = {file for pattern in self.contents for file in self.path.glob(pattern)}
        for file in sorted(file for file in found if not file.name.startswith(".")):
            with open_file(file) as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            name = file.relative_to(self.path).as_posix()
            escaped = name.replace("\\", r"\\").replace("\n", r"\n")
            yield "\\" * (escaped != name) + f"{digest}  {escaped}\n"  # as `sha256sum` does

    @contextlib.contextmanager
    def claimed(self, asked: Any, *, lock: bool = True) -> Iterator[Any]:
        """Compares the folder with what is asked for, and locks it; yields the result of `compared`.

        A dry run takes no `lock`, and writes nothing.

        Raises:
            ForeignFolderError: the folder has other results, or a process has just started others there.
            FolderError: the folder can't be written, is in use, or holds something else.
        """
        # Compared before it is locked: a process that goes on to another folder must not keep this one's out.
        text = self._marker_text()
        settled = self.compared(asked)
        if lock:
            with self._locked(asked):
                if self._marker_text() != text:  # by a process that had the lock in the meantime
                    settled = self.compared(asked)
                yield settled
        else:
            yield settled

    def compared(self, asked: Any) -> Any:
        """Returns what is asked for as the folder continues it; raises a `FolderError` if it can't."""
        raise NotImplementedError

    def _foreign(self, differing: Sequence[str]) -> ForeignFolderError:
        listed = "\n  ".join([*differing[:_MOST_DIFFERENCES], *["..."] * (len(differing) > _MOST_DIFFERENCES)])
        return ForeignFolderError(
            f"{self.path}: belongs to a different {self.holds}; nothing in it was changed. Choose another folder "
            f"with --out (out= in Python), or ask for the same {self.holds}{self.may_grow}. Differences:\n  {listed}",
            listed,
        )

    def _locked(self, asked: Any) -> contextlib.AbstractContextManager[None]:
        return self._lock()

    @contextlib.contextmanager
    def _lock(self, owner: str = "") -> Iterator[None]:
        """Creates the folder and keeps other processes out of it; the system unlocks it if this process is killed."""
        self.create()
        lock = filelock.FileLock(self.path / _LOCK)
        with writing(self.path):
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                in_use = self._in_use()
                if self._owner() in ("", owner):
                    raise in_use from None
                started = "the configuration that another process has just started there"
                raise ForeignFolderError(str(in_use), started) from None
            except NotImplementedError as error:
                raise FolderError(
                    f"{self.path}: its file system doesn't support locks ({error}); choose a folder on another one "
                    "with --out"
                ) from error
        try:
            if owner:
                with writing(self.path):
                    (self.path / _OWNER).write_text(owner)
            yield
        finally:
            lock.release()

    def check_unlocked(self) -> None:
        """Raises `FolderError` if another process has locked the folder."""
        if not (self.path / _LOCK).exists():
            return
        with writing(self.path):
            try:
                with filelock.FileLock(self.path / _LOCK, timeout=_BRIEFLY_S):  # as others check it just now, too
                    pass
            except filelock.Timeout:
                raise self._in_use() from None

    def _marker_text(self) -> str | None:
        """Reads the text of the file that marks the folder; None if the folder is empty or doesn't exist."""
        self._check_kind()
        with reading(self.path / self.marker, CHOOSE_ANOTHER):
            try:
                return self._read(self.marker).decode()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def _in_use(self) -> FolderError:
        text = "another process is using this folder; wait for it, or choose another with --out"
        return FolderError(f"{self.path}: {text}")

    def _owner(self) -> str:
        with contextlib.suppress(OSError):
            return (self.path / _OWNER).read_text()
        return ""

    def create(self) -> None:
        """Creates the folder if there is none; raises `FolderError` if it holds something else."""
        self._check_kind()
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def _check_kind(self) -> None:
        """Raises `FolderError` if the folder holds something else."""
        with writing(self.path):
            names = sorted(entry.name for entry in self.path.iterdir()) if self.path.exists() else []
        others = [name for name in names if not name.startswith(".")]
        if others and self.marker not in others:
            raise FolderError(
                f"{self.path}: is not empty and not {self.kind} (it holds {others[0]}); choose another with --out"
            )

    def _read(self, name: str) -> bytes:
        if not self.first:
            raise FileNotFoundError(name)
        return read_bytes(self.path / name)

    def _read_json(self, name: str) -> dict[str, Any] | None:
        """Reads a file that `_write_json` has written; None if there is none. NaN and infinities become None."""
        try:
            content = parse_json(self._read(name), lambda constant: None)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if content.pop("format") != _FORMAT:
            raise ValueError(f"its format isn't {_FORMAT}")
        return content

    def _write(self, name: str, content: bytes) -> None:
        """Replaces a file, and creates its subfolder if needed."""
        if self.first:
            folder, _, last = name.rpartition("/")
            write_atomically((own_folder(self.path, folder) if folder else self.path) / last, content)

    def _write_json(self, name: str, values: Mapping[str, Any]) -> None:
        self._write(name, (json.dumps({"format": _FORMAT, **values}, indent=1) + "\n").encode())

    def _write_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
        self._write(name, content.getvalue())

    def _read_arrays(self, name: str) -> dict[str, np.ndarray]:
        """Reads what `_write_arrays` has written; empty if there is none."""
        if not (self.path / name).exists():
            return {}
        with reading(self.path / name):
            return read_npz(self.path / name)

    def _remove(self, *patterns: str) -> None:
        """Deletes the matching files, except those behind a link, which may belong to another program."""
        for file in [file for pattern in patterns if self.first for file in self.path.glob(pattern)]:
            if file.is_file() and file.resolve() == self.path.resolve() / file.relative_to(self.path):
                file.unlink()
