"""The folder of a sweep: which sweep it belongs to, its table, and the run folders of its points."""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_bal.config import Config, parse_yaml, received_value, with_convolution
from fedjax_bal.lab.copies import copied_files, copied_plugins
from fedjax_bal.lab.csv_text import as_csv, cell_value, read_csv
from fedjax_bal.lab.errors import CHOOSE_ANOTHER, FolderError, ForeignFolderError, reading
from fedjax_bal.lab.folder import COPIES, POINTS, SHEET, RunFolder
from fedjax_bal.lab.output_folder import SUMS, OutputFolder
from fedjax_bal.lab.sweep_plan import Sweep

_RESULTS = "results.csv"
_CURVES = "curves.csv"
_COSTS = "costs.json"
_PART_COSTS = "costs-{}-of-{}.json"
_REWRITE = "run `fedjax-bal sweep` on its file again to rewrite it"
_WORDS = ("point", "method", "status", "failure")  # text columns
_OF_RUN = ("point", "method", "seed")


class SweepFolder(OutputFolder):
    """The files of a sweep.

    `part` is the number of a part, from 1, and the number of parts, for a process that trains one part of a sweep. Such
    processes share the folder: each locks its points, and writes the costs of its runs to its own file. `refused` tells
    why points of a claimed folder can't be trained, by label.
    """

    marker = SHEET
    kind = "a sweep's folder"
    holds = "sweep"
    may_grow = ", with other values, more rounds or more seeds"
    page = "sweep.html"
    contents = (SHEET, _RESULTS, _COSTS, *COPIES)

    def __init__(self, path: Path, part: tuple[int, int] | None = None) -> None:
        super().__init__(path)
        self.part = part
        self.refused: dict[str, FolderError] = {}

    @property
    def results(self) -> Path:
        """The file with the table."""
        return self.path / _RESULTS

    def point(self, label: str) -> RunFolder:
        """Returns the run folder of a point."""
        return RunFolder(self.path / POINTS / label)

    def points(self) -> list[RunFolder]:
        """Returns the existing run folders of points, sorted by name."""
        folder = self.path / POINTS
        return [RunFolder(point) for point in sorted(folder.iterdir()) if point.is_dir()] if folder.is_dir() else []

    def other_points(self, points: Collection[str]) -> list[str]:
        """Names the points in the folder that a sweep, and so its table, doesn't have."""
        return [name for point in self.points() if point.exists() and (name := point.path.name) not in points]

    def read_devices(self) -> int | None:
        """Reads the number of devices that the runs began with; None before the first checkpoint."""
        for point in self.points():
            with contextlib.suppress(FolderError):  # reported when this point is resumed
                if devices := point.read_devices():
                    return devices
        return None

    @contextlib.contextmanager
    def claimed(self, asked: Sweep, *, lock: bool = True) -> Iterator[Sweep]:
        """Claims the folder of a sweep and its points, as those of runs; a part of a sweep locks only its own points.

        Yields the sweep with the form of convolution that every point has in the folder.
        """
        with super().claimed(asked, lock=lock) as settled, contextlib.ExitStack() as locks:
            for label, config in settled.part(self.part).configs.items() if lock else ():
                try:
                    if self.part is None:  # the lock of the whole sweep covers its points
                        self.point(label).check_unlocked()
                    else:
                        locks.enter_context(self.point(label).claimed(config))
                except FolderError as error:
                    self.refused[label] = error
            yield settled

    @contextlib.contextmanager
    def _locked(self, asked: Sweep) -> Iterator[None]:
        if self.part is None:
            with self._lock():
                yield
        else:
            self.create()
            self.check_unlocked()
            yield

    def compared(self, asked: Sweep) -> Sweep:
        """Compares the folder and its points with a sweep; returns it with the points' forms of convolution."""
        self.refused.clear()
        changed = self._compare_axes(asked)
        to_train = asked.part(self.part).configs
        points = []
        for point in asked.points:
            if changed or point.label in to_train:
                try:
                    form = self.point(point.label).compared(point.config)
                    point = point._replace(config=with_convolution(point.config, form))
                except FolderError as error:
                    if changed and isinstance(error, ForeignFolderError):
                        raise self._foreign([f"{point.label}: {error.differences}"]) from None
                    self.refused[point.label] = error
            points.append(point)
        return asked._replace(points=tuple(points))

    def _compare_axes(self, sweep: Sweep) -> bool:
        """Returns whether the folder holds a sweep with another text; raises if it has other keys, or no point here."""
        text = self._marker_text()
        if text in (None, sweep.text):
            return False
        with reading(self.path / SHEET, CHOOSE_ANOTHER):
            here, asked = ([list(axis) for axis in parse_yaml(each, SHEET)["sweep"]] for each in (text, sweep.text))
        if here != asked:
            raise self._foreign([f"sweep: the keys {received_value(here)} here, {received_value(asked)} asked for"])
        existing = {point.path.name for point in self.points() if point.exists()}
        if existing and existing.isdisjoint(sweep.configs):
            raise self._foreign(["sweep: other values; none of the requested points is here"])
        return True

    def begin(self, text: str, points: Mapping[str, Config]) -> None:
        """Writes sweep.yaml, which assigns the folder to this sweep."""
        self._remove(SUMS)
        self._write(SHEET, text.encode())
        for name, content in (copied_plugins(*points.values()) | copied_files(*points.values())).items():
            self._write(name, content)

    def _sums(self) -> Iterator[str]:
        yield from super()._sums()
        for point in self.points():
            with contextlib.suppress(FileNotFoundError):  # of a point that has not finished
                for line in os.fsdecode((point.path / SUMS).read_bytes()).removesuffix("\n").split("\n"):
                    yield line.replace("  ", f"  {POINTS}/{point.path.name}/", 1) + "\n"

    def read_sheet(self) -> tuple[dict[str, Any], str]:
        """Reads the sweep, and its text with the paths of the folder's copies."""
        sheet, text = super().read_sheet()
        with reading(self.path / SHEET, _REWRITE):
            if not sheet["sweep"] or not all(map(dict, sheet["sweep"])):
                raise ValueError("has no list of axes under `sweep`")
        return sheet, text

    def unknown_metrics(self) -> set[str]:
        """Names the recorded metrics that reports leave out, because their plug-in isn't loaded."""
        return next(filter(None, (point.unknown_metrics() for point in self.points())), set())

    def read_results(self, swept: Sequence[str]) -> list[dict[str, Any]]:
        """Reads the rows of the table, which has a column for each swept key; values are numbers, texts or None."""
        if not self.results.exists():
            raise FolderError(
                f"{self.results}: doesn't exist yet, because no run of the sweep has finished; if the sweep was "
                "interrupted, start it again with `fedjax-bal sweep`"
            )
        with reading(self.results, _REWRITE):
            rows = read_csv(self._read(_RESULTS).decode())
            if lacking := {*_WORDS, *swept} - {*rows[0]}:
                raise ValueError(f"lacks the columns {', '.join(sorted(lacking))}")
        return [{key: text if key in _WORDS else cell_value(text) for key, text in row.items()} for row in rows]

    def write_results(self, table: Sequence[Mapping[str, Any]]) -> None:
        """Replaces the table."""
        self._write(_RESULTS, as_csv(table).encode())

    def read_costs(self) -> dict[tuple[str, str, int], dict[str, Any]]:
        """Reads each run's costs in earlier sessions, by point, method and seed."""
        own = _COSTS if self.part is None else _PART_COSTS.format(*self.part)
        parts = [] if self.part else sorted(file.name for file in self.path.glob(_PART_COSTS.format("*", "*")))
        costs: dict[Any, dict[str, Any]] = {}
        for name in (own, *parts):
            with reading(self.path / name, "delete it"):
                for entry in (self._read_json(name) or {"runs": ()})["runs"]:
                    costs[tuple(entry.pop(key) for key in _OF_RUN)] = entry
        return costs

    def write_costs(self, costs: Mapping[tuple[str, str, int], Mapping[str, Any]]) -> None:
        """Writes the costs of each run's batch; a process that trains one part writes only its own runs'."""
        entries = [{**dict(zip(_OF_RUN, run, strict=True)), **figures} for run, figures in costs.items()]
        self._write_json(_COSTS if self.part is None else _PART_COSTS.format(*self.part), {"runs": entries})
        if self.part is None:
            self._remove(_PART_COSTS.format("*", "*"))  # their content is in _COSTS now

    def write_curves(self, curves: bytes) -> None:
        """Replaces the table of all evaluated rounds of all runs."""
        self._write(_CURVES, curves)
