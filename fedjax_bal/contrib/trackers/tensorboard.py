"""TensorBoard: one event file for each session of a run."""

import importlib
import itertools
import os
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_bal.files import open_to_append, own_folder
from fedjax_bal.lab.trackers import TrackedRun, scalars

_FILES = "events.out.tfevents.*.fedjax-bal.*"
_numbers = itertools.count()


class OpenRun(NamedTuple):
    """An open run: its event file, and when the session began it."""

    file: Path
    began: float


class TensorBoard:
    """Writes event files for TensorBoard, with the package `tensorboard` and without TensorFlow.

    Event files are in `tensorboard/METHOD-seed-SEED` of the run folder, in `tensorboard/POINT/METHOD-seed-SEED` of a
    sweep's folder, and complete after every call. The axis "relative" shows seconds of training. Raises `ImportError`
    without that package.
    """

    def __init__(self, folder: Path) -> None:
        self._root = folder / "tensorboard"
        self._events = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._summaries = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        self._records = importlib.import_module("tensorboard.summary.writer.record_writer")

    def begin(self, run: TrackedRun) -> OpenRun:
        """Starts a new event file, and empties the existing ones."""
        place = own_folder(self._root.parent, f"{self._root.name}/{run.place}")
        now = time.time()
        for file in place.glob(_FILES):
            # Links are left alone: what they lead to may not be ours.
            if file.is_file() and not file.is_symlink() and file.stat().st_nlink == 1:
                with open_to_append(file) as stream:
                    stream.truncate(0)  # a running TensorBoard never gets past a deleted file
        # TensorBoard reads files in the order of their names.
        name = f"events.out.tfevents.{int(now):010d}.fedjax-bal.{os.getpid()}.{next(_numbers)}"
        opened = OpenRun(place / name, now)
        session = self._events.SessionLog(status=self._events.SessionLog.START)
        version = self._events.Event(wall_time=now, file_version="brain.Event:2")
        # A running TensorBoard has read the old files: this tells it that all steps follow again.
        self._append(opened, [version, self._events.Event(wall_time=now, step=0, session_log=session)])
        return opened

    def log(self, opened: OpenRun, lines: Sequence[Mapping[str, Any]]) -> None:
        """Appends an event with all scalars of each line, its round as the step."""
        self._append(opened, [self._event(opened, line) for line in lines])

    def finish(self, opened: OpenRun) -> None:
        """Does nothing: the file is complete."""

    def hint(self) -> str:
        """Returns the command that shows the metrics."""
        return f"look with: tensorboard --logdir {shlex.quote(str(self._root))}"

    def _event(self, opened: OpenRun, line: Mapping[str, Any]) -> Any:
        value = self._summaries.Summary.Value
        values = [value(tag=tag, simple_value=number) for tag, number in scalars(line).items()]
        when = opened.began + float(line.get("wall_s", 0.0))
        summary = self._summaries.Summary(value=values)
        return self._events.Event(wall_time=when, step=line["round"], summary=summary)

    def _append(self, opened: OpenRun, events: Iterable[Any]) -> None:
        with open_to_append(opened.file) as stream:
            writer = self._records.RecordWriter(stream)
            for event in events:
                writer.write(event.SerializeToString())
