"""The run folder: what is in it, whom it belongs to, and how it is written."""

import contextlib
import fcntl
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedjax_bal.config import Config, ConfigError, differences, is_resolved, load_config, resolved_yaml
from fedjax_bal.files import open_to_append, own_folder, read_bytes, write_atomically
from fedjax_bal.runs import checkpoint
from fedjax_bal.types import PyTree

# Not config.yaml, which says whose folder it is: a kill must not leave a folder that belongs to nobody.
_OWN_FILES = (
    "metrics.jsonl",
    "summary.json",
    "report.html",
    "comparison.html",
    "plots/*.svg",
    "checkpoints/method-*-seed-*/round-*.npz",
    "checkpoints/method-*-seed-*/.round-*.npz.part",
    "pictures/method-*-seed-*.npz",
    "pictures/method-*-seed-*.json",
    "tracking.json",
    "tensorboard/*/seed*/events.out.tfevents.*.fedjax-bal.*",
    "wandb/*run-*-fedjax-bal-*/**/*",
    "personalised/method-*-seed-*.json",
)
LOCK = ".lock"
LARGEST_METRICS = 2**32
LARGEST_NOTES = 2**28
_LINE = {
    "method": str,
    "seed": int,
    "round": int,
    "test_accuracy": float,
    "bytes_up": int,
    "bytes_down": int,
    "wall_s": float,
}


class FolderError(ValueError):
    """A run folder that can't be used; the message says why, and what to do."""


class RunFolder:
    """One run's files.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def claimed(self, config: Config) -> Iterator[None]:
        """Checks that the folder is this configuration's or free, and keeps other processes out of it.

        Args:
            config: the configuration.

        Raises:
            FolderError: it can't be written, is in use, or holds something else.
        """
        with writable(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._check_owner(config)  # before anything is written into a folder of somebody else's
            lock = open_to_append(self.path / LOCK)  # held for as long as the run lasts
        with lock:
            # The file stays behind: whoever removed it could remove the one that another process has just locked.
            keep_others_out(self.path, lock)
            self._check_owner(config)
            yield

    def check(self, config: Config) -> None:
        """Makes the folder, and checks that it is this configuration's or free.

        Args:
            config: the configuration.

        Raises:
            FolderError: it can't be written, or holds something else.
        """
        with writable(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._check_owner(config)

    def begin(self, config: Config, *, fresh: bool) -> None:
        """Writes down whose folder this is; call it once all that can be wrong has been checked.

        Args:
            config: the configuration.
            fresh: remove what an earlier run of the same configuration left.

        Raises:
            FolderError: it can't be written.
        """
        with writable(self.path):
            if fresh:
                self._clear()
            write_atomically(self.path / "config.yaml", resolved_yaml(config).encode())
            own_folder(self.path, "checkpoints")

    def checkpoints(self, method: int, seed: int) -> Path:
        """Where the checkpoints of one run are."""
        return self.path / "checkpoints" / f"method-{method}-seed-{seed}"

    def save(self, method: int, seed: int, round: int, tree: PyTree) -> None:
        """Writes a checkpoint of one run, `round` rounds done."""
        checkpoint.save(self.checkpoints(method, seed), round, tree)

    def clear_checkpoints(self, method: int, seed: int) -> None:
        """Removes all checkpoints of one run."""
        checkpoint.clear(self.checkpoints(method, seed))

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, without those that are cut off or damaged."""
        try:
            content = read_bytes(self.path / "metrics.jsonl", LARGEST_METRICS)
        except FileNotFoundError:
            return []
        return list(_whole_lines(content.decode(errors="replace")))

    def write_metrics(self, lines: Sequence[dict[str, Any]]) -> None:
        """Replaces metrics.jsonl."""
        write_atomically(self.path / "metrics.jsonl", "".join(map(_line, lines)).encode())

    def append_metrics(self, lines: Sequence[dict[str, Any]]) -> None:
        """Adds lines to metrics.jsonl, on disk before it returns."""
        file = self.path / "metrics.jsonl"
        try:
            with open_to_append(file) as stream:
                stream.writelines(_line(line).encode() for line in lines)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(file)) from error

    def write_pictures(self, method: int, seed: int, pictures: Mapping[str, np.ndarray]) -> None:
        """Replaces what a run has to show, arrays of pixels by name."""
        content = io.BytesIO()
        arrays: dict[str, Any] = dict(pictures)
        np.savez_compressed(content, **arrays)
        write_atomically(own_folder(self.path, "pictures") / f"method-{method}-seed-{seed}.npz", content.getvalue())

    def clear_pictures(self, method: int, seed: int) -> None:
        """Removes what an earlier run had to show, and what was found out about it at its end."""
        for place, ending in (("pictures", "npz"), ("pictures", "json"), ("personalised", "json")):
            (self.path / place / f"method-{method}-seed-{seed}.{ending}").unlink(missing_ok=True)

    def write_leaks(self, method: int, seed: int, figures: Mapping[str, Any]) -> None:
        """Notes what a run gives away."""
        self._note("pictures", method, seed, figures)

    def read_leaks(self, method: int, seed: int) -> dict[str, Any] | None:
        """What a run gives away; None where that hasn't been looked for, or the file is damaged."""
        return self._noted("pictures", method, seed)

    def write_personalised(self, method: int, seed: int, figures: Mapping[str, Any]) -> None:
        """Notes how clients' fine-tuned models do."""
        self._note("personalised", method, seed, figures)

    def read_personalised(self, method: int, seed: int) -> dict[str, Any] | None:
        """How clients' fine-tuned models do; None where they haven't been made, or the file is damaged."""
        return self._noted("personalised", method, seed)

    def _note(self, place: str, method: int, seed: int, figures: Mapping[str, Any]) -> None:
        file = own_folder(self.path, place) / f"method-{method}-seed-{seed}.json"
        write_atomically(file, (json.dumps(figures, indent=1) + "\n").encode())

    def _noted(self, place: str, method: int, seed: int) -> dict[str, Any] | None:
        try:
            found = json.loads(read_bytes(self.path / place / f"method-{method}-seed-{seed}.json", LARGEST_NOTES))
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def read_summary(self) -> dict[str, Any]:
        """The summary of an earlier session; empty where there is none or it is damaged."""
        try:
            summary = json.loads(read_bytes(self.path / "summary.json", LARGEST_NOTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return summary if isinstance(summary, dict) else {}

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Replaces summary.json."""
        write_atomically(self.path / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())

    def _check_owner(self, config: Config) -> None:
        there = sorted(entry.name for entry in self.path.iterdir() if entry.name != LOCK)
        if not there or (len(there) == 1 and there[0].endswith(".part")):
            return
        if "config.yaml" not in there:
            raise FolderError(
                f"{self.path}: is not empty and not a run folder (it holds {there[0]}); choose another with --out"
            )
        try:
            here = load_config(self.path / "config.yaml")
        except ConfigError as error:
            raise FolderError(
                f"{self.path}: its config.yaml can't be read, so nothing in it is touched; choose another with --out "
                f"({error})"
            ) from error
        if not is_resolved((self.path / "config.yaml").read_bytes().decode(), here):
            raise FolderError(
                f"{self.path}: its config.yaml was not written by a run, so nothing in the folder is touched; "
                "choose another with --out"
            )
        differing = differences(here, config)
        if differing:
            listed = "\n  ".join(differing[:8] + (["..."] if len(differing) > 8 else []))
            raise FolderError(
                f"{self.path}: belongs to another configuration, nothing in it is touched; choose another folder with "
                f"--out, or ask for the same configuration. They differ in\n  {listed}"
            )

    def _clear(self) -> None:
        for pattern in _OWN_FILES:
            for file in self.path.glob(pattern):
                # What lies behind a link is somebody else's.
                if file.is_file() and file.resolve() == self.path.resolve() / file.relative_to(self.path):
                    file.unlink()


@contextlib.contextmanager
def writable(path: Path) -> Iterator[None]:
    """Turns what goes wrong with an output folder into a message.

    Args:
        path: the folder.

    Raises:
        FolderError: it can't be written.
    """
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FolderError(
            f"{path}: the output folder can't be written ({reason}); choose another with --out"
        ) from error


def keep_others_out(path: Path, lock: IO[bytes]) -> None:
    """Locks a folder for as long as a file of it stays open.

    Args:
        path: the folder.
        lock: the file.

    Raises:
        FolderError: another process holds it.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderError(
            f"{path}: another process is running in this folder; wait for it, or choose another with --out"
        ) from None


def _line(values: dict[str, Any]) -> str:
    return json.dumps(values) + "\n"


def _whole_lines(text: str) -> Iterator[dict[str, Any]]:
    for line in text.split("\n")[:-1]:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict) and all(isinstance(values.get(key), kind) for key, kind in _LINE.items()):
            yield values
