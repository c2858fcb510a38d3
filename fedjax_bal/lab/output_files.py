"""The files of an output folder, local or managed by another process, and their checksums in `SHA256SUMS`."""

import contextlib
import errno
import fcntl
import fnmatch
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedjax_bal.files import open_file, open_to_append, own_folder, parse_json, read_bytes, replacing, write_atomically
from fedjax_bal.lab import checkpoint

SUMS = "SHA256SUMS"

_LINE = re.compile(r"([0-9a-f]{64})  ([^\\\r\n]+)|\\([0-9a-f]{64})  ((?:[^\\\r\n]|\\[\\nr])+)")
# As `sha256sum` writes names, behind a backslash at the beginning of the line.
_ESCAPES = {"\\": r"\\", "\n": r"\n", "\r": r"\r"}


LARGEST_FILE = 2**28
"""Maximum size in bytes of files that are read, except metrics."""

START_OVER = (
    "start over with --fresh (for a point of a sweep: remove its folder and the sweep's SHA256SUMS), or in another "
    "folder with --out"
)
"""The remedy for a run that can't resume; its folder is changed only when the user asks for it."""

RESTORE = f"put back a copy of it, or remove {SUMS} to continue without it"

_LOCK = ".lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class FolderError(ValueError):
    """An unusable run folder; the message names the file, the line if there is one, and the remedy."""


def unreadable(file: Path, error: OSError) -> FolderError:
    """Returns the error for a file that can't be read now; the file may be intact, so it isn't replaced."""
    reason = (error.strerror or str(error)).lower()
    return FolderError(f"{file}: can't be read ({reason}), and nothing is touched; try again once it can be")


@contextlib.contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turns an `OSError` into the error for a file that can't be read now."""
    try:
        yield
    except OSError as error:
        raise unreadable(Path(error.filename or file), error) from error


@contextlib.contextmanager
def writing(place: Path, remedy: str = "choose another with --out") -> Iterator[None]:
    """Turns an `OSError` into the error for a file or folder that can't be written."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FolderError(f"{place}: can't be written ({reason}); {remedy}") from error


class FolderInUseError(FolderError):
    """A folder in use by another process; `another` is True if that process is known to run something else."""

    def __init__(self, message: str, *, another: bool) -> None:
        super().__init__(message)
        self.another = another


class OutputFiles:
    """Reads and writes a folder's files by relative name; never writes outside the folder or through a link.

    `covered` are name patterns of the files that `SHA256SUMS` lists. A session writes `SHA256SUMS` when it ends and
    deletes it before the first change to a covered file. If it exists, the covered files should be as the last session
    left them.
    """

    def __init__(self, path: Path, covered: Sequence[str] = ()) -> None:
        self.path = path
        self.covered = covered

    def check_kind(self, marker: str, kind: str) -> bool:
        """Returns whether the folder has the file that marks its kind; raises `FolderError` if it has others only."""
        entries = self.path.iterdir() if self.path.exists() else ()
        names = sorted(entry.name for entry in entries if entry.name != _LOCK)
        if marker not in names and not all(name.endswith(".part") for name in names):
            raise FolderError(
                f"{self.path}: is not empty and not {kind} (it holds {names[0]}); choose another with --out"
            )
        return marker in names

    def prepare(self, check: Callable[[], object]) -> None:
        """Creates the folder if needed and calls `check` before anything is written into it."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            check()

    @contextlib.contextmanager
    def locked(self, check: Callable[[], object], owner: str = "", *, shared: bool = False) -> Iterator[None]:
        """Creates the folder, calls `check`, and locks the folder against other processes, except sharers of the lock.

        A process that is kept out can tell whether the folder's `owner` is its own.
        """
        self.prepare(check)
        with writing(self.path):
            lock = open_to_append(self.path / _LOCK)
        with lock:
            # The lock file is never deleted: another process may just have locked it.
            try:
                fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                another = self.read(_LOCK) not in (b"", owner.encode())
                told = "another process is running in this folder; wait for it, or choose another with --out"
                raise FolderInUseError(f"{self.path}: {told}", another=another) from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                raise FolderError(
                    f"{self.path}: its file system has no locks ({str(error.strerror).lower()}), which keep a second "
                    "process out of the folder; choose a folder on another one with --out, or mount it with locks "
                    "(Lustre: -o flock)"
                ) from error
            if not shared:
                lock.truncate(0)
                lock.write(owner.encode())
                lock.flush()
            check()  # again: another process may have written here before this one got the lock
            yield

    def read(self, name: str, limit: int = LARGEST_FILE) -> bytes:
        """Reads a file of at most `limit` bytes."""
        return read_bytes(self.path / name, limit)

    def read_json(
        self,
        name: str,
        note: Callable[[str], object] = lambda text: None,
        check: Callable[[dict[str, Any]], object] = lambda found: None,
    ) -> dict[str, Any] | None:
        """Reads a JSON object; None if the file is missing or damaged (reported to `note`).

        It is also damaged if `check` raises `ValueError`. NaN becomes None.

        Raises:
            FolderError: the file can't be read.
        """
        with reading(self.path / name):
            try:
                found = parse_json(self.read(name), lambda name: None)
                if not isinstance(found, dict):
                    raise ValueError("expected a JSON object")
                check(found)
                return found
            except (FileNotFoundError, NotADirectoryError):
                return None
            except ValueError as error:
                note(f"warning: {self.path / name}: damaged ({error}); what it held is left out")
                return None

    def sums(self) -> dict[str, str] | None:
        """Reads `SHA256SUMS`; None if there is none, because a session is active, was killed, or never ran.

        Raises:
            FolderError: the file is damaged or can't be read.
        """
        file = self.path / SUMS
        sums = {}
        with reading(file):
            try:
                text = os.fsdecode(read_bytes(file, LARGEST_FILE)).removesuffix("\n")
                for number, line in enumerate(text.split("\n") if text else (), 1):
                    digest, name = _read_sum(line)
                    if not name or name.startswith("/") or ".." in name.split("/") or name in sums:
                        expected = "expected a SHA-256, two spaces and the name of another file here"
                        raise ValueError(f"line {number}: {expected}")
                    sums[name] = digest
            except FileNotFoundError:
                return None
            except ValueError as error:
                remedy = "put back a copy of it, or remove it to use the folder without"
                raise FolderError(f"{file}: {error}; {remedy}") from error
        return sums

    def has(self, pattern: str) -> bool:
        """Returns whether a file name matches the pattern."""
        return any(self.path.glob(pattern))

    def covered_names(self) -> list[str]:
        """Names of the existing files that `SHA256SUMS` is to cover."""
        found = (file for pattern in self.covered for file in self.path.glob(pattern))
        return sorted(file.relative_to(self.path).as_posix() for file in found if not file.name.startswith("."))

    def describe_mismatch(self, name: str, digest: str | None) -> str:
        """Describes how a file differs from its checksum (None: an unlisted file); empty if it matches.

        Raises:
            FolderError: the file can't be read.
        """
        if digest is None:
            return f"is not listed in {SUMS}, so that no session has written it"
        with reading(self.path / name):
            try:
                found = sha256(self.path / name)
            except FileNotFoundError:
                return f"is missing, but listed in {SUMS}"
        return "" if found == digest else f"has changed since it was written: its sum differs from that in {SUMS}"

    def check_sums(self, *names: str) -> None:
        """Compares files with `SHA256SUMS` if it exists.

        Raises:
            FolderError: a file differs, is missing, or can't be read.
        """
        sums = self.sums()
        for name in names:
            wrong = self.describe_mismatch(name, sums.get(name)) if sums is not None else ""
            if wrong and self.sums() == sums:  # a session may have begun or ended meanwhile
                raise FolderError(f"{self.path / name}: {wrong}; {RESTORE}")

    def seal(self, others: Mapping[str, str] = MappingProxyType({})) -> None:
        """Writes `SHA256SUMS` with the folder's checksums and `others`, unless it exists."""
        if not (self.path / SUMS).exists():
            sums = {**{name: sha256(self.path / name) for name in self.covered_names()}, **others}
            text = "".join(_sum_line(name, digest) for name, digest in sorted(sums.items()))
            write_atomically(self.path / SUMS, os.fsencode(text))

    def is_sealed(self) -> bool:
        """Returns whether `SHA256SUMS` exists, so that nothing has changed since the end of a session."""
        return (self.path / SUMS).exists()

    def _changes(self, name: str) -> None:
        """Deletes `SHA256SUMS` before a covered file changes."""
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.covered):
            (self.path / SUMS).unlink(missing_ok=True)

    def write(self, name: str, content: bytes) -> None:
        """Writes a file and creates its folder if needed; leaves a file that already has this content."""
        folder, _, last = name.rpartition("/")
        file = (own_folder(self.path, folder) if folder else self.path) / last
        with contextlib.suppress(OSError):
            if not file.is_symlink() and read_bytes(file, len(content)) == content:
                return
        self._changes(name)
        write_atomically(file, content)

    def make_folder(self, name: str) -> None:
        """Creates a subfolder if needed."""
        own_folder(self.path, name)

    def write_json(self, name: str, values: Mapping[str, Any]) -> None:
        """Replaces a JSON file."""
        self.write(name, (json.dumps(values, indent=1) + "\n").encode())

    def append(self, name: str, lines: Iterable[bytes]) -> None:
        """Appends lines to a file and flushes them to disk."""
        file = self.path / name
        self._changes(name)
        try:
            # A copy made with `cp -al` shares the file and must not grow with it.
            if file.exists() and not file.is_symlink() and file.stat().st_nlink > 1:
                with open_file(file) as shared, replacing(file) as copy:
                    shutil.copyfileobj(shared, copy)
            with open_to_append(file) as stream:
                stream.writelines(lines)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(file)) from error

    def remove(self, *patterns: str) -> None:
        """Deletes the matching files, except those behind a link, which may belong to another program."""
        for pattern in patterns:
            for file in self.path.glob(pattern):
                name = file.relative_to(self.path)
                if file.is_file() and file.resolve() == self.path.resolve() / name:
                    self._changes(name.as_posix())
                    file.unlink()

    def save_checkpoint(self, folder: str, round: int, tree: Any) -> None:
        """Writes a checkpoint of a run."""
        outer, _, inner = folder.rpartition("/")
        place = own_folder(own_folder(self.path, outer), inner)
        self._changes(f"{folder}/round-{round}.npz")
        checkpoint.save(place, round, tree)


def _sum_line(name: str, digest: str) -> str:
    """Returns a file's line for `sha256sum -c`."""
    escaped = name.translate(str.maketrans(_ESCAPES))
    return ("\\" if escaped != name else "") + f"{digest}  {escaped}\n"


def _read_sum(line: str) -> tuple[str, str]:
    """Returns the digest and the name in a line; two empty texts for another line."""
    fields = _LINE.fullmatch(line.removesuffix("\r"))
    if not fields:
        return "", ""
    if fields[1]:
        return fields[1], fields[2]
    letters = {escaped: letter for letter, escaped in _ESCAPES.items()}
    return fields[3], re.sub(r"\\.", lambda found: letters[found[0]], fields[4])


def sha256(file: Path) -> str:
    """Returns the SHA-256 of a file."""
    with open_file(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _do_nothing(*_: Any, **__: Any) -> None: ...


class RemoteFiles(OutputFiles):
    """Null object for processes other than the first: reads find nothing, writes are ignored.

    The first process reads the files and broadcasts their content, so the folder needn't be on a shared file system.
    """

    prepare = make_folder = write = append = remove = save_checkpoint = seal = _do_nothing

    def locked(
        self, check: Callable[[], object], owner: str = "", *, shared: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Does nothing."""
        return contextlib.nullcontext()

    def sums(self) -> dict[str, str] | None:
        """Returns None."""
        return None

    def has(self, pattern: str) -> bool:
        """Returns False."""
        return False

    def is_sealed(self) -> bool:
        """Returns False."""
        return False

    def read(self, name: str, limit: int = LARGEST_FILE) -> bytes:
        """Raises `FileNotFoundError`."""
        raise FileNotFoundError(name)
