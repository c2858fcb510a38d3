"""The folders of runs and sweeps: ownership, and the files that sessions write and reports read."""

import contextlib
import csv
import fnmatch
import io
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.analyses import Findings
from fedjax_bal.config import (
    Config,
    ConfigError,
    continues,
    differences,
    load_config,
    parse_yaml,
    received_value,
    resolved_yaml,
    run_digest,
)
from fedjax_bal.files import read_bytes
from fedjax_bal.lab import schema
from fedjax_bal.lab.named_files import FILE_COPIES, small_files, with_copies
from fedjax_bal.lab.output_files import (
    LARGEST_FILE,
    RESTORE,
    START_OVER,
    SUMS,
    FolderError,
    OutputFiles,
    reading,
    writing,
)
from fedjax_bal.metrics import METRICS
from fedjax_bal.options import MOST_DEVICES
from fedjax_bal.plugins import COLUMNS, plugin_copies
from fedjax_bal.registry import PLUGINS

_CONFIG = "config.yaml"
_METRICS = "metrics.jsonl"
_SUMMARY = "summary.json"
_CONFUSION = "confusion.npz"
_CLIENTS = "clients.csv"
_NPY_HEADER = 128  # bytes of NumPy's header of an array
_REPORT = "report.html"
_COMPARISON = "comparison.html"
_EXECUTION = "execution.json"
_FORMAT = 1
_RUN = "{}-seed-{}"
SHEET = "sweep.yaml"
POINTS = "points"
"""The file that marks a folder as a sweep's, and its subfolder for the points."""

PLUGIN_COPIES = "plugins"
"""The subfolder for copies of the plug-ins that were loaded from files."""

_EXPORTS = "exports"
_CHECKPOINTS = f"checkpoints/{_RUN}"
PICTURES = f"pictures/{_RUN}.npz"
PERSONALISED = f"personalised/{_RUN}.json"
_FINDINGS = f"analyses/{{}}/{_RUN}.{{}}"
_ANALYSES = (
    *(name.format("*", "*") for name in (PICTURES, PERSONALISED)),
    *(_FINDINGS.format("*", "*", "*", ending) for ending in ("json", "npz")),
)
# Files that results are recomputed from, and that exist only here. Pages and tables aren't covered, because `report`
# rewrites them; exports have their own checksums; trackers' files belong to the trackers.
_CHECKPOINT_FILES = f"{_CHECKPOINTS.format('*', '*')}/round-*.npz"
_COPIES = (f"{PLUGIN_COPIES}/*.py", f"{PLUGIN_COPIES}/*/**/*.py", f"{FILE_COPIES}/*/*")
COVERED = (_CONFIG, _METRICS, _SUMMARY, _CONFUSION, _CLIENTS, _EXECUTION, _CHECKPOINT_FILES, *_COPIES, *_ANALYSES)
# Without config.yaml, which identifies the folder's run: a kill must not leave a folder without an owner.
_WRITTEN = (
    *(SUMS, _METRICS, _SUMMARY, _CONFUSION, _CLIENTS, _REPORT, _COMPARISON, _EXECUTION, "plots/*.svg", "table.tex"),
    *(f"{name}.{ending}" for name in ("tables", "comparison-tables") for ending in ("csv", "tex")),
    *(_CHECKPOINT_FILES, f"{_CHECKPOINTS.format('*', '*')}/.round-*.part", *_ANALYSES),
    "tensorboard/*/seed*/events.out.tfevents.*.fedjax-bal.*",
    "wandb/*run-*-fedjax-bal-*/**/*",
)

# Files of a sweep.
_RESULTS = "results.csv"
_CURVES = "curves.csv"
_COSTS = "costs.json"
_PART_COSTS = "costs-{}-of-{}.json"
_COVERED = (SHEET, _RESULTS, _COSTS, *_COPIES)
_LARGEST_TABLE = 100_000_000  # bytes
_WORDS = ("point", "method", "status", "failure")  # text columns
_OF_RUN = ("point", "method", "seed")
_COLUMNS_OF_CLIENTS = ("method", "seed", "client", "training_rows", "test_rows", "accuracy", "balanced_accuracy")
_FORMULA = re.compile(r"'*[=+@\t\r-]")
_REWRITE_REMEDY = "run `fedjax-bal sweep` on its file again to rewrite it"


class RecordedExecution(NamedTuple):
    """The environment in which a folder's runs began or resume.

    Attributes:
        devices: number of devices that share the work.
        settings: jax's settings that affect random numbers and rounding, by name.
    """

    devices: int
    settings: Mapping[str, str]


class _Folder:
    """The folder of a run or a sweep.

    Attributes:
        path: the folder.
        files: its files.
        marker: the file that marks a folder as one of this kind: a configuration, or the sheet of a sweep.
        page: the name of its page.
    """

    marker: str
    page: str

    def __init__(self, path: Path, files: OutputFiles) -> None:
        self.path = path
        self.files = files

    def exists(self) -> bool:
        """Returns whether the folder is of this kind."""
        return (self.path / self.marker).is_file()

    def recorded_files(self) -> dict[str, str]:
        """Reads the SHA-256 of the files that the runs read, by path; empty if none is recorded."""
        return {path: str(digest) for path, digest in self._recorded("files").items()}

    def missing_plugins(self) -> list[str]:
        """Names the plug-ins that the runs used and that aren't loaded; none if the file can't be read."""
        return [received_value(name) for name in self._recorded("plugins") if name not in PLUGINS]

    def write_page(self, content: bytes, figures: Mapping[str, str], tables: Mapping[str, bytes]) -> Path:
        """Replaces the page, its figures (SVG by name) and tables (by file extension); returns the page's path."""
        self.files.make_folder("plots")
        for figure, document in figures.items():
            self.files.write(f"plots/{figure}.svg", document.encode())
        for ending, table in tables.items():
            self.files.write(f"tables.{ending}", table)
        self.files.write(self.page, content)
        return self.path / self.page

    def _recorded(self, key: str) -> dict[str, Any]:
        try:
            recorded = schema.read_config(self.path / self.marker)[0].get(key)
        except FolderError:
            return {}
        return recorded if isinstance(recorded, dict) else {}


class RunFolder(_Folder):
    """The files of a comparison; methods are identified by their position in the configuration."""

    marker = _CONFIG
    page = _REPORT

    def __init__(self, path: Path, files: OutputFiles | None = None) -> None:
        super().__init__(path, files or OutputFiles(path, COVERED))

    @contextlib.contextmanager
    def claimed(self, config: Config) -> Iterator[None]:
        """Creates the folder, checks that it is free or that the configuration continues it, and locks it.

        A point of a sweep can't be claimed while its sweep trains, because the sweep locks all of its points.

        Raises:
            FolderError: the folder can't be written, is in use, or holds something else.
        """
        owner = f"{run_digest(config)} {config.seeds[0]}"
        with contextlib.ExitStack() as held:
            if sweep := self._sweep():
                held.enter_context(OutputFiles(sweep).locked(lambda: None, shared=True))
            held.enter_context(self.files.locked(lambda: self.check_owner(config), owner))
            yield

    def _sweep(self) -> Path | None:
        """The folder of the sweep whose point this is."""
        outer = Path(os.path.realpath(self.path)).parent
        return outer.parent if outer.name == POINTS and (outer.parent / SHEET).is_file() else None

    def check(self, config: Config) -> None:
        """Creates the folder and checks that it is free or that the configuration continues it; doesn't lock it."""
        self.files.prepare(lambda: self.check_owner(config))

    def begin(self, config: Config, *, fresh: bool) -> None:
        """Writes config.yaml, which assigns the folder to this configuration, after all other checks.

        `fresh` deletes the results of an earlier run of the same configuration.
        """
        text = resolved_yaml(config)
        schema.check_readable(self.path / _CONFIG, text)
        with writing(self.path):
            if fresh:
                self.files.remove(*_WRITTEN)
            self.files.write(_CONFIG, text.encode())
            _copy_plugins(self.files, config)
            if not self._sweep():  # the sweep's folder has the copies of all points
                _copy_files(self.files, config)
            self.files.make_folder("checkpoints")

    def holds(self, config: Config) -> bool:
        """Returns whether config.yaml is exactly this configuration, labels included."""
        try:
            return self.files.read(_CONFIG) == resolved_yaml(config).encode()
        except OSError:
            return False

    def check_session(self) -> None:
        """Compares the files that a session resumes from with `SHA256SUMS`, if the last session has ended.

        Checkpoints are only checked for existence: each has its own manifest, which is checked when it is read.

        Raises:
            FolderError: a file is damaged or missing; nothing is changed.
        """
        for name, digest in (self.files.sums() or {}).items():
            saved = fnmatch.fnmatchcase(name, _CHECKPOINT_FILES) and (self.path / name).exists()
            if not saved and (wrong := self.files.describe_mismatch(name, digest)):
                raise FolderError(f"{self.path / name}: {wrong}; nothing is touched: {RESTORE}, or {START_OVER}")

    def read_execution(self) -> RecordedExecution | None:
        """Reads the environment in which the folder's runs began; None for runs without a checkpoint.

        Raises:
            FolderError: the file is missing although there are checkpoints, is damaged, has another format, or can't be
                read.
        """
        file = self.path / _EXECUTION
        damages = []
        found = self.files.read_json(_EXECUTION, damages.append) or {}
        if not (found or damages or self.files.has(_CHECKPOINT_FILES)):
            return None
        form = found.get("format")
        if isinstance(form, int) and form != _FORMAT:
            raise FolderError(f"{file}: is of format {form}, this version reads {_FORMAT}; use the one that wrote it")
        devices = found.get("devices")
        settings = found.get("settings")
        if type(devices) is not int or not 1 <= devices <= MOST_DEVICES or not isinstance(settings, dict):
            raise FolderError(
                f"{file}: is missing or damaged, so that the devices and settings of the run are unknown; put back a "
                f"copy of it, or {START_OVER}"
            )
        return RecordedExecution(devices, {str(name): str(value) for name, value in settings.items()})

    def read_devices(self) -> int | None:
        """Reads the number of devices that the folder's runs began with; None for runs without a checkpoint."""
        execution = self.read_execution()
        return execution and execution.devices

    def write_execution(self, execution: RecordedExecution) -> None:
        """Writes the environment in which the folder's runs resume."""
        self.files.write_json(_EXECUTION, {"format": _FORMAT, **execution._asdict()})

    def checkpoints(self, method: str, seed: int) -> Path:
        """The folder of one run's checkpoints."""
        return self.path / _CHECKPOINTS.format(method, seed)

    def save(self, method: str, seed: int, round: int, tree: Any) -> None:
        """Writes a run's checkpoint of round `round`."""
        self.files.save_checkpoint(_CHECKPOINTS.format(method, seed), round, tree)

    def read_metrics(self, note: Callable[[str], object] = lambda text: None) -> list[dict[str, Any]]:
        """Returns the valid lines of metrics.jsonl.

        A truncated last line is dropped; damaged lines are dropped and reported to `note`.

        Raises:
            FolderError: the file differs from what the last session wrote, or can't be read.
        """
        self.files.check_sums(_METRICS)
        with reading(self.path / _METRICS):
            try:
                content = self.files.read(_METRICS, schema.LARGEST_METRICS)
            except FileNotFoundError:
                return []
        damaged: list[str] = []
        lines = schema.parse_lines(content, lambda number, error: damaged.append(f"line {number}: damaged ({error})"))
        if damaged:
            others = f", and so are {len(damaged) - 1} more" if len(damaged) > 1 else ""
            note(f"warning: {self.path / _METRICS}, {damaged[0]}; it is left out{others}")
        return lines

    def write_metrics(self, lines: Sequence[dict[str, Any]]) -> None:
        """Replaces metrics.jsonl."""
        self.files.write(_METRICS, b"".join(map(_line, lines)))

    def append_metrics(self, lines: Sequence[dict[str, Any]]) -> None:
        """Appends lines to metrics.jsonl and flushes them to disk."""
        self.files.append(_METRICS, map(_line, lines))

    def read_summary(self, note: Callable[[str], object] = lambda text: None) -> dict[str, Any]:
        """Reads the summary of an earlier session; empty if it is missing or damaged (reported to `note`)."""
        return self.files.read_json(_SUMMARY, note, schema.check_summary) or {}

    def read_partition(self, method: str) -> schema.Partition | None:
        """Reads a method's entry in the summary's `partitions`; None if no session has written one.

        Raises:
            FolderError: the file differs from what the last session wrote, or is damaged.
        """
        self.files.check_sums(_SUMMARY)
        if not (self.path / _SUMMARY).exists():
            return None
        entries = schema.read_summary(self.path / _SUMMARY)["partitions"]
        return next((entry for entry in entries if method in entry["methods"]), None)

    def finish(self) -> None:
        """Ends a session: all files are complete."""
        self.files.seal()

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replaces summary.json."""
        self.files.write_json(_SUMMARY, summary)

    def write_confusion(self, matrices: Mapping[schema.RunId, np.ndarray]) -> None:
        """Replaces the runs' confusion matrices, each as `Int64[3, K]`: true classes, predicted classes, counts."""
        content = io.BytesIO()
        kept = {}
        size = 0
        for run, matrix in matrices.items():
            places = np.nonzero(matrix)
            cells = np.array([*places, matrix[places]], np.int64)
            size += cells.nbytes + _NPY_HEADER
            if size <= schema.LARGEST_CONFUSION:  # the limit of `read_confusion`
                kept[_RUN.format(*run)] = cells
        np.savez_compressed(content, **kept)  # type: ignore[arg-type]
        self.files.write(_CONFUSION, content.getvalue())

    def write_clients(self, runs: Iterable[schema.RunClients]) -> None:
        """Replaces the results by client of all runs; no file without any, and runs beyond its size limit are left out.

        Numbers are rounded to six digits.
        """
        content = b""
        for run in runs:
            table = [
                {
                    **dict(zip(_COLUMNS_OF_CLIENTS, (run.method, run.seed, *row[:3]), strict=False)),
                    **{
                        name: None if np.isnan(value) else round(value, 6)
                        for name, value in zip(_COLUMNS_OF_CLIENTS[-2:], row[3:], strict=True)
                    },
                }
                for row in zip(run.names, *(column.tolist() for column in run[3:]), strict=True)
            ]
            block = as_csv(table).encode()
            if len(content) + len(block) <= LARGEST_FILE:  # the limit of `read_clients`
                content += block.partition(b"\n")[2] if content else block
        if content:
            self.files.write(_CLIENTS, content)

    def read_clients(self) -> list[schema.RunClients]:
        """Reads the results by client; empty for a run whose clients have no test rows.

        Raises:
            FolderError: the file is damaged, differs from what the last session wrote, or can't be read.
        """
        path = self.path / _CLIENTS
        if not path.exists():
            return []
        self.files.check_sums(_CLIENTS)
        with schema.checking(path):
            rows = csv.DictReader(io.StringIO(self.files.read(_CLIENTS).decode()), strict=True)
            runs: dict[tuple[str, int], list[Any]] = {}
            try:
                for row in rows:
                    if None in row or None in row.values():
                        raise ValueError("has another length than the line of headings")
                    method, seed, name, training, test, *accuracies = (row[column] for column in _COLUMNS_OF_CLIENTS)
                    of_run = runs.setdefault((_without_apostrophe(method), int(seed)), [])
                    numbers = int(training), int(test), *(float(text or "nan") for text in accuracies)
                    of_run.append((_without_apostrophe(name), *numbers))
            except (csv.Error, LookupError, ValueError) as error:
                raise ValueError(f"line {rows.line_num}: {error}") from error
        found = []
        for key, of_run in runs.items():
            names, *columns = zip(*of_run, strict=True)
            found.append(schema.RunClients(*key, names, *map(np.array, columns)))
        return found

    def write_pictures(self, method: str, seed: int, pictures: Mapping[str, np.ndarray]) -> None:
        """Replaces a run's pictures: arrays of pixels by name."""
        content = io.BytesIO()
        np.savez_compressed(content, **pictures)  # type: ignore[arg-type]
        self.files.write(PICTURES.format(method, seed), content.getvalue())

    def clear(self, method: str, seed: int, *kinds: str) -> None:
        """Deletes a run's results of some `kinds`: PICTURES, PERSONALISED."""
        self.files.remove(*(kind.format(method, seed) for kind in kinds))

    def read_analysis(self, kind: str, method: str, seed: int) -> dict[str, Any] | None:
        """Reads a run's results of one `kind`, PERSONALISED; None if there are none or the file is damaged."""
        return self.files.read_json(kind.format(method, seed))

    def write_analysis(self, kind: str, method: str, seed: int, figures: Mapping[str, Any]) -> None:
        """Writes a run's results of one `kind`: clients' fine-tuned models (PERSONALISED)."""
        self.files.write_json(kind.format(method, seed), figures)

    def write_findings(self, name: str, method: str, seed: int, found: Findings) -> None:
        """Writes what an analysis found in a run; the numbers come last, as they mark it as done."""
        if found.arrays:
            content = io.BytesIO()
            np.savez_compressed(content, **found.arrays)  # type: ignore[arg-type]
            self.files.write(_FINDINGS.format(name, method, seed, "npz"), content.getvalue())
        self.files.write_json(_FINDINGS.format(name, method, seed, "json"), found.numbers)

    def read_findings(self, name: str, method: str, seed: int) -> Findings | None:
        """Reads what an analysis found in a run; None if it isn't done, or the file is damaged."""
        numbers = self.files.read_json(_FINDINGS.format(name, method, seed, "json"))
        if numbers is None:
            return None
        arrays = self.path / _FINDINGS.format(name, method, seed, "npz")
        return Findings(numbers, schema.read_analysed(arrays) if arrays.exists() else {})

    def clear_findings(self, method: str, seed: int) -> None:
        """Deletes what analyses found in a run."""
        self.files.remove(*(_FINDINGS.format("*", method, seed, ending) for ending in ("json", "npz")))

    def read_configuration(self) -> Config:
        """Reads the folder's configuration.

        Raises:
            ValueError: the file is missing or damaged, differs from what the last session wrote, or names a plug-in
                that isn't loaded.
        """
        self._check_configuration()
        return load_config(self.path / _CONFIG)

    def read_runs(self) -> tuple[dict[str, str], tuple[int, ...]]:
        """Reads the methods' names in reports, by their names in results, and the seeds; no plug-in is needed.

        Raises:
            ValueError: as for `read_configuration`, except for plug-ins.
        """
        self._check_configuration()
        config, _ = schema.read_config(self.path / _CONFIG)
        try:
            labels = {str(entry["name"]): str(entry.get("label") or entry["name"]) for entry in config["methods"]}
            return labels, tuple(map(int, config["seeds"]))
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"{self.path / _CONFIG}: was not written by a run; {RESTORE}") from error

    def _check_configuration(self) -> None:
        if not self.exists():
            raise ConfigError(f"{self.path / _CONFIG}: there is no such file; give the folder that a run wrote")
        self.files.check_sums(_CONFIG)

    def unknown_metrics(self) -> set[str]:
        """Names the recorded metrics that reports leave out, because their plug-in isn't loaded."""
        entries = [*self.read_metrics(), *self.read_summary().get("runs", ())]
        return {key for entry in entries for key in entry} - {*METRICS, *COLUMNS}

    def export_file(self, name: str) -> Path:
        """Returns the path of an exported model in the folder; `fresh` doesn't delete exports."""
        self.files.make_folder(_EXPORTS)
        return self.path / _EXPORTS / name

    @property
    def comparison(self) -> Path:
        """The default file for a comparison with other runs."""
        return self.path / _COMPARISON

    def read(self) -> schema.RunRecord:
        """Reads and checks everything that a report shows.

        A truncated last line of the metrics is dropped; of two lines for the same run and round the later counts; NaN
        and infinite numbers become None.

        Raises:
            FolderError: a file is missing, can't be read, or has unexpected content.
        """
        if not self.path.is_dir():
            raise FolderError(f"{self.path}: no such folder; give the folder that a run wrote")
        if not any((self.path / name).exists() for name in (_CONFIG, _SUMMARY, _METRICS)):
            within = next(iter(sorted(self.path.glob(f"*/{_CONFIG}"))), Path("runs", "quickstart", _CONFIG)).parent
            raise FolderError(f"{self.path}: holds no run or sweep; give the folder that one wrote, such as {within}")
        self.files.check_sums(_CONFIG, _SUMMARY, _METRICS)
        config, text = schema.read_config(self.path / _CONFIG)
        summary = schema.read_summary(self.path / _SUMMARY)
        classes = len(summary["class_names"])
        lines = schema.read_metrics(self.path / _METRICS, classes)
        first: dict[str, int] = {}
        for run in summary["runs"]:
            first.setdefault(run["method"], run["seed"])
        matrices = schema.read_confusion(self.path / _CONFUSION, classes) if summary["runs"] else {}
        for run in summary["runs"]:
            run["confusion_matrix"] = matrices.get(_RUN.format(run["method"], run["seed"]))
        pictures = {}
        for method, seed in first.items():
            name = PICTURES.format(method, seed)
            if (self.path / name).is_file():
                self.files.check_sums(name)
                pictures[method] = schema.read_pictures(self.path / name, classes)
        clients = self.read_clients()
        findings: dict[str, dict[str, Findings]] = {}
        for analysis in sorted(self.path.glob("analyses/*")):
            for method, seed in first.items():
                found = self.read_findings(analysis.name, method, seed)
                if found is not None:
                    findings.setdefault(analysis.name, {})[method] = found
        text = with_copies(self.path, config, text)
        return schema.RunRecord(config, text, lines, summary, pictures, clients, findings)

    def conflict(self, config: Config) -> str:
        """Names the keys in which the folder's configuration conflicts with this one; empty if this one continues it.

        Raises:
            FolderError: the folder holds something other than a run, or can't be read.
        """
        if missing := self.missing_plugins():
            return (
                f"plugins: made with {', '.join(missing)}, not loaded here; give it with --plugin to resume there (a "
                f"copy may be in {self.path / PLUGIN_COPIES})"
            )
        here = self._read_owner()
        if here is None:
            return ""
        if continues(config, here):
            return ""
        differing = differences(here, config)
        return "\n  ".join(differing[:8] + (["..."] if len(differing) > 8 else []))

    def check_owner(self, config: Config) -> None:
        """Checks, without writing, that the folder is free or that the configuration continues it."""
        differing = self.conflict(config)
        if differing:
            raise FolderError(
                f"{self.path}: belongs to another configuration, nothing in it is touched; choose another folder with "
                f"--out, or ask for the same configuration. They differ in\n  {differing}"
            )

    def _read_owner(self) -> Config | None:
        if not self.files.check_kind(_CONFIG, "a run folder"):
            return None
        file = self.path / _CONFIG
        try:
            here = load_config(file, recorded=True)
        except ConfigError as error:
            raise FolderError(
                f"{self.path}: its config.yaml can't be read, so nothing in it is touched; choose another with --out "
                f"({error})"
            ) from error
        if file.read_bytes().decode() != resolved_yaml(here):
            raise FolderError(
                f"{self.path}: its config.yaml was not written by a run, so nothing in the folder is touched; "
                "choose another with --out"
            )
        return here


class SweepFolder(_Folder):
    """The files of a sweep.

    `part` is the number of a part, from 1, and the number of parts, for a process that trains one part of a sweep. Such
    processes share the folder, and each writes the costs of its runs to its own file.
    """

    marker = SHEET
    page = "sweep.html"

    def __init__(self, path: Path, part: tuple[int, int] | None = None) -> None:
        super().__init__(path, OutputFiles(path, _COVERED))
        self.part = part

    @property
    def results(self) -> Path:
        """The file with the table."""
        return self.path / _RESULTS

    def _check_kind(self) -> None:
        self.files.check_kind(SHEET, "a sweep's folder")

    def point(self, label: str) -> RunFolder:
        """The run folder of a point."""
        return RunFolder(self.path / POINTS / label)

    def points(self) -> list[RunFolder]:
        """The existing run folders of points, sorted by name."""
        folder = self.path / POINTS
        return [RunFolder(point) for point in sorted(folder.iterdir()) if point.is_dir()] if folder.is_dir() else []

    def other_points(self, points: Collection[str]) -> list[str]:
        """Names the points of the folder that are not among those of a sweep, whose table leaves them out."""
        return [name for point in self.points() if point.exists() and (name := point.path.name) not in points]

    def read_devices(self) -> int | None:
        """Reads the number of devices that the runs began with; None before the first checkpoint."""
        for point in self.points():
            with contextlib.suppress(FolderError):  # reported when this point is resumed
                if devices := point.read_devices():
                    return devices
        return None

    def claimed(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that creates, checks and locks the folder (shared lock for a part).

        Raises:
            FolderError: the folder can't be written, is in use, or holds something else.
        """
        return self.files.locked(self._check_kind, shared=self.part is not None)

    def conflict(self, text: str, points: Mapping[str, Config]) -> str:
        """Describes why a sweep can't continue in this folder; empty if it can.

        The sweep is given as the text of sweep.yaml and its points by label. It may have other values on its axes, more
        rounds and more seeds than the folder's.

        Raises:
            FolderError: sweep.yaml can't be read.
        """
        try:
            written = self.files.read(SHEET).decode()
            here = _axes(written)
            asked = _axes(text)
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            raise FolderError(
                f"{self.path}: its sweep.yaml can't be read ({error}); choose another with --out"
            ) from error
        if written == text:
            return ""
        if here != asked:
            return f"sweep: the keys {received_value(here)} here, {received_value(asked)} asked for"
        existing = {point.path.name for point in self.points() if point.exists()}
        if existing and existing.isdisjoint(points):
            return "sweep: other values, so that none of the points asked for is here"
        for label, config in points.items():
            with contextlib.suppress(FolderError, OSError):  # reported when this point is resumed
                if differing := self.point(label).conflict(config):
                    return f"{label}: {differing}"
        return ""

    def check_owner(self, text: str, points: Mapping[str, Config]) -> None:
        """Checks, without writing, that the folder is free or holds a sweep that this one continues."""
        self._check_kind()
        differing = self.conflict(text, points)
        if differing:
            raise FolderError(
                f"{self.path}: holds another sweep, and nothing in it is touched; choose another folder with --out, or "
                f"ask for the same sweep, with other values, more rounds or more seeds. They differ in\n  {differing}"
            )

    def begin(self, text: str, points: Mapping[str, Config]) -> None:
        """Writes sweep.yaml.

        Raises:
            FolderError: the folder holds a sweep that this one doesn't continue, a file differs from what the last
                session wrote, or a point is missing.
        """
        self.check_owner(text, points)
        sums = self.files.sums() or {}
        self.files.check_sums(*(name for name in _COVERED if name in sums))
        for label in dict.fromkeys(name.split("/")[1] for name in sums if name.startswith(f"{POINTS}/")):
            if not self.point(label).exists():
                place = self.point(label).path
                raise FolderError(f"{place}: is missing, but listed in the sweep's {SUMS}; {RESTORE}")
        schema.check_readable(self.path / SHEET, text)
        self.files.write(SHEET, text.encode())
        _copy_plugins(self.files, *points.values())
        _copy_files(self.files, *points.values())

    def seal(self) -> None:
        """Writes `SHA256SUMS`, including the points' files, unless nothing has changed since it was written."""
        sums: dict[str, str] = {}
        for point in self.points():
            with contextlib.suppress(FolderError):  # the point can't resume, which the sweep has reported
                here = point.files.sums() or {}
                sums |= {f"{POINTS}/{point.path.name}/{name}": digest for name, digest in here.items()}
        known = self.files.sums()
        if known is not None and {name: known[name] for name in known if name.startswith(f"{POINTS}/")} != sums:
            self.files.remove(SUMS)
        self.files.seal(sums)

    def read_sheet(self) -> tuple[dict[str, Any], str]:
        """Reads the sweep and its text, which names the folder's copies of files; raises `FolderError` on failure."""
        path = self.path / SHEET
        self.files.check_sums(SHEET)
        sheet, text = schema.read_config(path, _REWRITE_REMEDY)
        axes = sheet.get("sweep")
        if not isinstance(axes, list) or not axes or not all(isinstance(axis, dict) and axis for axis in axes):
            raise FolderError(f"{path}: has no list of axes under `sweep`; {_REWRITE_REMEDY}")
        return sheet, with_copies(self.path, sheet, text)

    def unknown_metrics(self) -> set[str]:
        """Names the recorded metrics that reports leave out, because their plug-in isn't loaded."""
        return next(filter(None, (point.unknown_metrics() for point in self.points())), set())

    def read_results(self, swept: Sequence[str]) -> list[dict[str, Any]]:
        """Reads the rows of the table; values are numbers, texts or None.

        Raises:
            FolderError: `results.csv` is missing or damaged, or lacks a column for a swept key.
        """
        self.files.check_sums(_RESULTS)
        with schema.checking(self.results, _REWRITE_REMEDY):
            text = read_bytes(self.results, _LARGEST_TABLE).decode()
            try:
                rows = list(csv.DictReader(io.StringIO(text), strict=True))
            except csv.Error as error:
                raise ValueError(str(error)) from error
            if any(None in row or None in row.values() for row in rows):
                raise ValueError("has rows of other lengths than the line of headings")
            lacking = [key for key in (*_WORDS, *swept) if not rows or key not in rows[0]]
            if lacking:
                raise ValueError(f"must have rows, below a line of headings; lacks {', '.join(lacking)}")
        for row in rows:
            for key, text in row.items():
                written = _without_apostrophe(text)
                row[key] = written if key in _WORDS else _value(written)
        return rows

    def write_results(self, table: Sequence[Mapping[str, Any]]) -> None:
        """Replaces the table."""
        self.files.write(_RESULTS, as_csv(table).encode())

    def read_costs(self) -> dict[tuple[str, str, int], dict[str, Any]]:
        """Reads each run's costs in earlier sessions, by point, method and seed; skips damaged files."""
        own = _COSTS if self.part is None else _PART_COSTS.format(*self.part)
        parts = [] if self.part else sorted(file.name for file in self.path.glob(_PART_COSTS.format("*", "*")))
        costs: dict[Any, dict[str, Any]] = {}
        for name in (own, *parts):
            with contextlib.suppress(TypeError, KeyError, AttributeError):
                entries = (self.files.read_json(name) or {})["runs"]
                costs |= {tuple(entry[key] for key in _OF_RUN): _figures(entry) for entry in entries}
        return costs

    def write_costs(self, costs: Mapping[tuple[str, str, int], Mapping[str, Any]]) -> None:
        """Writes the costs of each run's batch; a process that trains one part writes only its own runs'."""
        entries = [{**dict(zip(_OF_RUN, run, strict=True)), **figures} for run, figures in costs.items()]
        if self.part is None:
            self.files.write_json(_COSTS, {"runs": entries})
            self.files.remove(_PART_COSTS.format("*", "*"))  # their content is in _COSTS now
        else:
            self.files.remove(SUMS)  # the part changes points, which the sums cover
            self.files.write_json(_PART_COSTS.format(*self.part), {"runs": entries})

    def write_curves(self, curves: bytes) -> None:
        """Replaces the table of all evaluated rounds of all runs."""
        self.files.write(_CURVES, curves)


def _copy_plugins(files: OutputFiles, *configs: Config) -> None:
    """Copies the plug-ins that configurations use, so that the folder can be reproduced after they have changed."""
    names = {name for config in configs for name in config.plugins}
    for path, content in plugin_copies(names).items():
        files.write(f"{PLUGIN_COPIES}/{path}", content)


def _copy_files(files: OutputFiles, *configs: Config) -> None:
    """Copies the small files that configurations name, so that the page's command finds them."""
    for path, content in small_files(configs).items():
        files.write(f"{FILE_COPIES}/{path}", content)


def as_csv(table: Sequence[Mapping[str, Any]]) -> str:
    """Formats the table as CSV with a header line; None is an empty cell, and lists are written as in YAML.

    A text that a spreadsheet would interpret as a formula gets a leading apostrophe.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]) if table else [], lineterminator="\n")
    writer.writeheader()
    for row in table:
        formulas = [key for key, value in row.items() if isinstance(value, str) and _FORMULA.match(value)]
        # Negative numbers such as -0.5 stay.
        writer.writerow({**row, **{key: f"'{row[key]}" for key in formulas if isinstance(_value(row[key]), str)}})
    return text.getvalue()


def _without_apostrophe(text: str) -> str:
    """Undoes what `as_csv` does to a text that looks like a formula."""
    return text[1:] if text[:1] == "'" and _FORMULA.match(text[1:]) else text


def _value(text: str) -> Any:
    if not text:
        return None
    if "_" in text:  # which Python reads as a number's separator, and YAML doesn't
        return text
    try:
        number = float(text)
    except ValueError:
        return text
    return (int(text) if text.lstrip("-").isdecimal() else number) if math.isfinite(number) else None


def _axes(text: str) -> list[Any]:
    """Reads the keys of a sweep's axes."""
    sheet = parse_yaml(text, SHEET)
    if not isinstance(sheet, dict) or not isinstance(sheet.get("sweep"), list):
        raise ValueError("it is not a sweep")
    return [list(axis) if isinstance(axis, dict) else axis for axis in sheet["sweep"]]


def _figures(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the costs in an entry; drops values of other types."""
    return {key: value for key, value in entry.items() if key not in _OF_RUN and isinstance(value, int | float)}


def choose_folder(path: Path, conflict: Callable[[Path], str]) -> tuple[Path, str]:
    """Finds the folder for a session's runs: the first of NAME, NAME-2, NAME-3, ... without a conflict.

    Returns:
        The folder, and the conflict with NAME if another folder was chosen. If `conflict` raises an error, the folder
            counts as free of conflicts; claiming it reports the error.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     mine = RunFolder(Path(runs, "mine"))
        ...     mine.path.mkdir()
        ...     mine.begin(load_config(None, ["training.rounds=10"]), fresh=False)
        ...     for rounds in (20, 5):
        ...         asked = load_config(None, [f"training.rounds={rounds}"])
        ...         place, differing = choose_folder(mine.path, lambda path: RunFolder(path).conflict(asked))
        ...         print(f"{place.name}: {differing or 'resumes'}")
        mine: resumes
        mine-2: training.rounds: 10 here, 5 asked for
    """
    first = known_conflict(path, conflict)
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(place for place in others if not known_conflict(place, conflict)) if first else path, first


def known_conflict(place: Path, conflict: Callable[[Path], str]) -> str:
    """Returns the conflict with a folder; empty if the folder is missing, damaged or not a run's."""
    try:
        return conflict(place)
    except (FolderError, OSError):
        return ""


def _line(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values) + "\n").encode()
