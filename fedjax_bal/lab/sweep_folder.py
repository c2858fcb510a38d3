"""A sweep's folder: `sweep.yaml`, `points/`, `results.csv`, `curves.csv`, `tables.*`, `costs.json` and `sweep.html`."""

import contextlib
import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fedjax_bal.config import Config, ConfigError, parse_yaml, read_yaml, received_value
from fedjax_bal.files import read_bytes
from fedjax_bal.lab.folder import POINTS, SHEET, RunFolder, known_conflict
from fedjax_bal.lab.output_files import PUT_BACK, SUMS, FolderError, OutputFiles, unreadable
from fedjax_bal.lab.record import check_readable, missing_plugins

_RESULTS = "results.csv"
_CURVES = "curves.csv"
_COSTS = "costs.json"
_PAGE = "sweep.html"
_PART_COSTS = "costs-{}-of-{}.json"
_COVERED = (SHEET, _RESULTS, _COSTS)
_LARGEST_TABLE = 100_000_000  # bytes
_WORDS = ("point", "method", "status", "failure")  # columns of text
_OF_RUN = ("point", "method", "seed")
_FORMULA = re.compile(r"'*[=+@\t\r-]")
_AGAIN = "run `fedjax-bal sweep` on its file again to rewrite it"


class SweepFolder:
    """One sweep's files.

    `part` are the number of a part, from 1, and the number of parts, for a process that trains one of several parts of
    a sweep: such processes share the folder, and each keeps the costs of its runs in a file of its own.
    """

    def __init__(self, path: Path, part: tuple[int, int] | None = None) -> None:
        self.path = path
        self.part = part
        self.files = OutputFiles(path, _COVERED)

    @property
    def results(self) -> Path:
        """The file with the table."""
        return self.path / _RESULTS

    def exists(self) -> bool:
        """Whether the folder is a sweep's."""
        return (self.path / SHEET).is_file()

    def point(self, label: str) -> RunFolder:
        """The run folder of a point."""
        return RunFolder(self.path / POINTS / label)

    def points(self) -> list[RunFolder]:
        """The run folders of the points that have one, by name."""
        folder = self.path / POINTS
        return [RunFolder(own) for own in sorted(folder.iterdir()) if own.is_dir()] if folder.is_dir() else []

    def read_devices(self) -> int | None:
        """The number of devices that its runs were begun with; None before the first checkpoint."""
        for point in self.points():
            with contextlib.suppress(FolderError):  # which is this point's, and said when it is to go on
                if devices := point.read_devices():
                    return devices
        return None

    def claimed(self) -> AbstractContextManager[None]:
        """A context that makes the folder, checks that it is a sweep's or free, and locks it, or shares it for a part.

        Raises:
            FolderError: it can't be written, is in use, or holds something else.
        """
        return self.files.locked(self._check_owner, shared=self.part is not None)

    def conflict(self, text: str, points: Mapping[str, Config]) -> str:
        """What keeps a sweep, given as sweep.yaml and its points by label, from going on here; empty if nothing does.

        A folder's sweep may get other values on its axes, more rounds, and more seeds.

        Raises:
            FolderError: sweep.yaml can't be read.
        """
        try:
            known = self.files.read(SHEET).decode()
            here = _axes(known)
            asked = _axes(text)
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            raise FolderError(
                f"{self.path}: its sweep.yaml can't be read ({error}); choose another with --out"
            ) from error
        if known == text:
            return ""
        if here != asked:
            return f"sweep: the keys {received_value(here)} here, {received_value(asked)} asked for"
        begun = {own.path.name for own in self.points() if own.exists()}
        if begun and begun.isdisjoint(points):
            return "sweep: other values, so that none of the points asked for is here"
        asks = (
            (label, lambda path, config=config: RunFolder(path).conflict(config)) for label, config in points.items()
        )
        found = ((label, known_conflict(self.point(label).path, conflict)) for label, conflict in asks)
        return next((f"{label}: {conflict}" for label, conflict in found if conflict), "")

    def check_owner(self, text: str, points: Mapping[str, Config]) -> None:
        """Checks that the folder is free, or holds a sweep that this one continues, and writes nothing."""
        self._check_owner()
        differing = self.conflict(text, points)
        if differing:
            raise FolderError(
                f"{self.path}: holds another sweep, and nothing in it is touched; choose another folder with --out, or "
                f"ask for the same sweep, with other values, more rounds or more seeds. They differ in\n  {differing}"
            )

    def begin(self, text: str, points: Mapping[str, Config]) -> None:
        """Writes sweep.yaml.

        Raises:
            FolderError: the folder holds a sweep that this one doesn't continue, a file isn't what the last session
                wrote, or a point is missing.
        """
        self.check_owner(text, points)
        sums = self.files.sums() or {}
        self.files.check_sums(*(name for name in _COVERED if name in sums))
        for label in dict.fromkeys(name.split("/")[1] for name in sums if name.startswith(f"{POINTS}/")):
            if not self.point(label).exists():
                place = self.point(label).path
                raise FolderError(f"{place}: is missing, but listed in the sweep's {SUMS}; {PUT_BACK}")
        check_readable(self.path / SHEET, text)
        self.files.write(SHEET, text.encode())

    def seal(self) -> None:
        """Writes `SHA256SUMS`, with the sums of the points' files, unless nothing has changed since it was written."""
        sums: dict[str, str] = {}
        for point in self.points():
            with contextlib.suppress(FolderError):  # it can't go on, which the sweep has said
                here = point.files.sums() or {}
                sums |= {f"{POINTS}/{point.path.name}/{name}": digest for name, digest in here.items()}
        known = self.files.sums()
        if known is not None and {name: known[name] for name in known if name.startswith(f"{POINTS}/")} != sums:
            self.files.remove(SUMS)
        self.files.seal(sums)

    def read_sheet(self) -> tuple[dict[str, Any], str]:
        """The sweep, and the text that it was read from; raises `FolderError` if it is missing or damaged."""
        path = self.path / SHEET
        self.files.check_sums(SHEET)
        try:
            sheet = read_yaml(path, str(path))
            text = read_bytes(path, _LARGEST_TABLE).decode()
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            raise FolderError(f"{error}; {_AGAIN}") from error
        axes = sheet.get("sweep") if isinstance(sheet, dict) else None
        if not isinstance(axes, list) or not axes or not all(isinstance(axis, dict) and axis for axis in axes):
            raise FolderError(f"{path}: has no list of axes under `sweep`; {_AGAIN}")
        return sheet, text

    def missing_plugins(self) -> list[str]:
        """The plug-ins that the runs used and that aren't loaded."""
        return missing_plugins(self.path / SHEET)

    def read_results(self, swept: Sequence[str]) -> list[dict[str, Any]]:
        """The rows of the table, values as numbers, texts or None.

        Raises:
            FolderError: `results.csv` is missing or damaged, or has no column for one of the swept keys.
        """
        path = self.results
        self.files.check_sums(_RESULTS)
        try:
            rows = list(csv.DictReader(io.StringIO(read_bytes(path, _LARGEST_TABLE).decode()), strict=True))
            if any(None in row or None in row.values() for row in rows):
                raise ValueError("has rows of other lengths than the line of headings")
            lacking = [key for key in (*_WORDS, *swept) if not rows or key not in rows[0]]
            if lacking:
                raise ValueError(f"must have rows, below a line of headings; lacks {', '.join(lacking)}")
        except FileNotFoundError as error:
            raise FolderError(f"{path}: there is none; {_AGAIN}") from error
        except OSError as error:
            raise unreadable(path, error) from error
        except (ValueError, csv.Error) as error:
            raise FolderError(f"{path}: not the table of a sweep ({error}); {_AGAIN}") from error
        for row in rows:
            for key, text in row.items():
                written = text[1:] if text[:1] == "'" and _FORMULA.match(text[1:]) else text  # as `as_csv` writes it
                row[key] = written if key in _WORDS else _value(written)
        return rows

    def write_results(self, table: Sequence[Mapping[str, Any]]) -> None:
        """Replaces the table."""
        self.files.write(_RESULTS, as_csv(table).encode())

    def read_costs(self) -> dict[tuple[str, str, int], dict[str, Any]]:
        """The costs of each run in earlier sessions, by point, method and seed, without those in damaged files."""
        own = _COSTS if self.part is None else _PART_COSTS.format(*self.part)
        parts = [] if self.part else sorted(file.name for file in self.path.glob(_PART_COSTS.format("*", "*")))
        costs: dict[Any, dict[str, Any]] = {}
        for name in (own, *parts):
            with contextlib.suppress(TypeError, KeyError, AttributeError):
                entries = self.files.read_json(name)["runs"]
                costs |= {tuple(entry[key] for key in _OF_RUN): _figures(entry) for entry in entries}
        return costs

    def write_costs(self, costs: Mapping[tuple[str, str, int], Mapping[str, Any]]) -> None:
        """Writes the costs of each run's batch, of all runs or of a part's."""
        entries = [{**dict(zip(_OF_RUN, run, strict=True)), **own} for run, own in costs.items()]
        if self.part is None:
            self.files.write_json(_COSTS, {"runs": entries})
            self.files.remove(_PART_COSTS.format("*", "*"))  # which are in it now
        else:
            self.files.remove(SUMS)  # its points change
            self.files.write_json(_PART_COSTS.format(*self.part), {"runs": entries})

    def write_page(self, page: bytes, figures: Mapping[str, str], curves: bytes, tables: Mapping[str, bytes]) -> Path:
        """Replaces the sweep's page, its figures, SVG documents by name, its curves, and its tables by ending."""
        file = self.files.write_page(_PAGE, page, figures)
        self.files.write(_CURVES, curves)
        for ending, content in tables.items():
            self.files.write(f"tables.{ending}", content)
        return file

    def _check_owner(self) -> None:
        names = self.files.names()
        if names and SHEET not in names and not all(name.endswith(".part") for name in names):
            raise FolderError(
                f"{self.path}: is not empty and not a sweep's folder (it holds {names[0]}); choose another with --out"
            )


def as_csv(table: Sequence[Mapping[str, Any]]) -> str:
    """The table as CSV, with a line of headings; None is empty, and lists are as YAML writes them.

    A text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]) if table else [], lineterminator="\n")
    writer.writeheader()
    for row in table:
        formulas = [key for key, value in row.items() if isinstance(value, str) and _FORMULA.match(value)]
        # Numbers such as -0.5 stay.
        writer.writerow({**row, **{key: f"'{row[key]}" for key in formulas if isinstance(_value(row[key]), str)}})
    return text.getvalue()


def _value(text: str) -> Any:
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    return (int(text) if text.lstrip("-").isdecimal() else number) if math.isfinite(number) else None


def _axes(text: str) -> list[Any]:
    """The keys of a sweep's axes."""
    sheet = parse_yaml(text, SHEET)
    if not isinstance(sheet, dict) or not isinstance(sheet.get("sweep"), list):
        raise ValueError("it is no sweep")
    return [list(axis) if isinstance(axis, dict) else axis for axis in sheet["sweep"]]


def _figures(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The costs in an entry, without values of other types."""
    return {key: value for key, value in entry.items() if key not in _OF_RUN and isinstance(value, int | float)}
