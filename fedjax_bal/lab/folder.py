"""The folder of a run: which comparison it belongs to, and the files that sessions write and reports read.

`README.md` describes the files.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.analyses import ANALYSES, Findings
from fedjax_bal.config import (
    AUTO,
    AUTO_FORMS,
    Config,
    ConfigError,
    continues,
    differences,
    load_config,
    resolved_yaml,
    run_digest,
    with_convolution,
)
from fedjax_bal.files import open_to_append, own_folder, parse_json
from fedjax_bal.lab import checkpoint
from fedjax_bal.lab.copies import FILE_COPIES, PLUGIN_COPIES, copied_files, copied_plugins
from fedjax_bal.lab.csv_text import as_csv, read_csv
from fedjax_bal.lab.errors import CHOOSE_ANOTHER, START_OVER, FolderError, reading, writing
from fedjax_bal.lab.output_folder import SUMS, OutputFolder
from fedjax_bal.lab.records import ClientResults, Partition, RunRecord, unwritten_summary
from fedjax_bal.metrics import METRICS, TEXT
from fedjax_bal.plugins import COLUMNS

_CONFIG = "config.yaml"
_METRICS = "metrics.jsonl"
_SUMMARY = "summary.json"
_EXECUTION = "execution.json"
_CONFUSION = "confusion.npz"
_CLIENTS = "clients.csv"
_CHECKPOINTS = "checkpoints"
_TRACKING = "tracking-id"
_EXPORTS = "exports"
_REPORT = "report.html"
_COMPARISON = "comparison.html"

PYTHON = "python"
"""The key in `config.yaml` of runs that Python trained from objects, which the file only describes."""

SHEET = "sweep.yaml"
POINTS = "points"
"""The file that marks a folder as a sweep's, and its subfolder for the points."""

PICTURES = "pictures/{}.npz"
PERSONALISED = "personalised/{}.json"
NEW_CLIENTS = "new-clients/{}.json"
_FINDINGS = "analyses/{}/{}"
"""Files of analyses, for the name of a run."""

COPIES = (f"{PLUGIN_COPIES}/**/*.py", f"{FILE_COPIES}/*/*")
_RESULTS = (_METRICS, _SUMMARY, _EXECUTION, _CONFUSION, _CLIENTS, f"{_CHECKPOINTS}/*/round-*.npz")
_ANALYSES = ("pictures/*", "personalised/*.json", "new-clients/*.json", "analyses/*/*")
# What `--fresh` deletes. Not config.yaml: a kill must not leave a folder without an owner.
_WRITTEN = (
    *(*_RESULTS, *_ANALYSES, f"{_CHECKPOINTS}/*/.round-*.part", _REPORT, _COMPARISON, "plots/*.svg", "table.tex"),
    *(f"{name}.{ending}" for name in ("tables", "comparison-tables") for ending in ("csv", "tex")),
    _TRACKING,
    "tensorboard/*/events.out.tfevents.*.fedjax-bal.*",
    "wandb/*run-*-fedjax-bal-*/**/*",
)


class RecordedExecution(NamedTuple):
    """The environment in which a folder's runs began or resume.

    Attributes:
        devices: number of devices that share the work.
        settings: jax's settings that affect random numbers and rounding, by name.
        strategies: what `execution.strategy: auto` was resolved to, by method.
    """

    devices: int
    settings: Mapping[str, str]
    strategies: Mapping[str, str]


def run_name(method: str, seed: int) -> str:
    """Returns the name of a run's files.

    Example:
        >>> run_name("fedavg", 0), run_name("control variates", 1)
        ('fedavg-seed-0', 'control-variates-1a1b3b-seed-1')
    """
    return f"{method_name(method)}-seed-{seed}"


def method_name(method: str) -> str:
    """Returns a method's name in names of files."""
    name = re.sub(r"[^A-Za-z0-9_.+-]+", "-", method).lstrip(".")[:80]
    if name != method:  # another method may have the same characters
        name += f"-{hashlib.sha256(method.encode()).hexdigest()[:6]}"
    return name


class RunFolder(OutputFolder):
    """The files of a comparison, whose runs are given by their method's name and their seed."""

    marker = _CONFIG
    kind = "a run folder"
    holds = "configuration"
    page = _REPORT
    contents = (_CONFIG, *_RESULTS, *_ANALYSES, *COPIES)

    # Ownership

    @contextlib.contextmanager
    def _locked(self, asked: Config) -> Iterator[None]:
        with self._lock(f"{run_digest(asked)} {asked.seeds[0]}"):
            outer = Path(os.path.realpath(self.path)).parent
            # The sweep locks itself before it checks its points, so that one of the two processes sees the other.
            if outer.name == POINTS:
                OutputFolder(outer.parent).check_unlocked()
            yield

    def compared(self, asked: Config) -> str:
        """Compares config.yaml with a configuration, once in a session.

        Returns:
            The form of convolution for "auto": that of the folder's runs, or of this machine.

        Raises:
            ForeignFolderError: the configuration doesn't continue the folder's runs.
            FolderError: config.yaml can't be read, or wasn't written by a run.
        """
        file = self.path / _CONFIG
        with reading(file, CHOOSE_ANOTHER):
            text = self._marker_text()
            if text is None:
                return chosen_form(asked)
            # Equal texts are equal configurations: parsing is slow in a large sweep.
            for form in AUTO_FORMS:
                if resolved_yaml(with_convolution(asked, form)) == text:
                    return form
            try:
                recorded = load_config(file, recorded=True)
            except ConfigError:
                if self.read_sheet()[0].get(PYTHON):
                    raise self._foreign(["it was trained by fedjax_bal.compare in Python"]) from None
                if missing := self.missing_plugins():
                    used = f"plugins: made with {', '.join(missing)}, not loaded here; give it with --plugin to resume"
                    raise self._foreign([f"{used} there (a copy may be in {self.path / PLUGIN_COPIES})"]) from None
                raise
            if text != resolved_yaml(recorded):
                raise FolderError(
                    f"{self.path}: its config.yaml was not written by a run; nothing in the folder was changed, "
                    "choose another with --out"
                )
        form = chosen_form(asked, recorded)
        asked = with_convolution(asked, form)
        if not continues(asked, recorded):
            raise self._foreign(differences(recorded, asked))
        return form

    def begin(self, config: Config, *, fresh: bool) -> None:
        """Writes config.yaml, which assigns the folder to this configuration, after all other checks.

        `fresh` deletes the results of an earlier run of the same configuration.
        """
        with writing(self.path):
            self._remove(SUMS)
            if fresh:
                self._remove(*_WRITTEN)
            self._write(_CONFIG, resolved_yaml(config).encode())
            # The files of a sweep's points are in its own folder.
            files = {} if self.path.absolute().parent.name == POINTS else copied_files(config)
            for name, content in (copied_plugins(config) | files).items():
                self._write(name, content)
            if self.first:
                own_folder(self.path, _CHECKPOINTS)

    # What a session needs to resume

    def read_execution(self) -> RecordedExecution | None:
        """Reads the environment in which the folder's runs began; None for runs without a checkpoint."""
        with reading(self.path / _EXECUTION):
            if found := self._read_json(_EXECUTION):
                return RecordedExecution(**found)
        if self.first and any(self.path.glob(f"{_CHECKPOINTS}/*/round-*.npz")):
            raise FolderError(f"{self.path / _EXECUTION}: missing; restore a copy of it, or {START_OVER}")
        return None

    def read_devices(self) -> int | None:
        """Reads the number of devices that the folder's runs began with; None for runs without a checkpoint."""
        execution = self.read_execution()
        return execution and execution.devices

    def write_execution(self, execution: RecordedExecution) -> None:
        """Writes the environment in which the folder's runs resume."""
        self._write_json(_EXECUTION, execution._asdict())

    def checkpoints(self, method: str, seed: int) -> Path:
        """Returns the folder of one run's checkpoints."""
        return self.path / _CHECKPOINTS / run_name(method, seed)

    def save(self, method: str, seed: int, round: int, tree: Any) -> None:
        """Writes a run's checkpoint of round `round`."""
        if self.first:
            checkpoint.save(own_folder(self.path, f"{_CHECKPOINTS}/{run_name(method, seed)}"), round, tree)

    def tracking_id(self) -> str:
        """Reads the folder's part of the ids of its runs in trackers; draws it if there is none."""
        try:
            return self._read(_TRACKING).decode("ascii")
        except FileNotFoundError:
            drawn = secrets.token_hex(4)
            self._write(_TRACKING, drawn.encode())
            return drawn

    def read_metrics(self) -> list[dict[str, Any]]:
        """Returns the lines of metrics.jsonl, one for each run and evaluated round; NaN and infinities become None.

        A last line that a kill has cut off is dropped. Of two lines for the same run and round the later counts.

        Raises:
            FolderError: the file is damaged or can't be read.
        """
        lines: dict[Any, dict[str, Any]] = {}
        with reading(self.path / _METRICS):
            try:
                texts = self._read(_METRICS).split(b"\n")
            except FileNotFoundError:
                return []
            for number, text in enumerate(texts, 1):
                try:
                    line = parse_json(text, lambda constant: None)
                    lines[line["method"], line["seed"], line["round"]] = line
                except (ValueError, LookupError, TypeError) as error:
                    if number < len(texts):
                        raise ValueError(f"line {number}: {error}") from error
        return list(lines.values())

    def write_metrics(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Replaces metrics.jsonl."""
        self._write(_METRICS, _json_lines(lines))

    def append_metrics(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Appends lines to metrics.jsonl and flushes them to disk."""
        if not self.first:
            return
        file = self.path / _METRICS
        try:
            with open_to_append(file) as stream:
                stream.write(_json_lines(lines))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(file)) from error

    # Results

    def read_summary(self) -> dict[str, Any]:
        """Reads the summary of the last session; empty before the first one has ended. Absent metrics become None."""
        metrics = [metric.name for metric in METRICS.values() if metric.of_run and metric.unit is not TEXT]
        with reading(self.path / _SUMMARY, "restore a copy of it, or delete it and run the command again"):
            if summary := self._read_json(_SUMMARY):
                return {**summary, "runs": [dict.fromkeys(metrics) | run for run in summary["runs"]]}
        return {}

    def read_partition(self, method: str) -> Partition | None:
        """Reads a method's entry in the summary's `partitions`; None if no session has written one."""
        return next((entry for entry in self.read_summary().get("partitions", ()) if method in entry["methods"]), None)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replaces summary.json."""
        self._write_json(_SUMMARY, summary)

    def write_confusion(self, matrices: Mapping[tuple[str, int], np.ndarray]) -> None:
        """Replaces the runs' confusion matrices, each as `Int64[3, K]`: true classes, predicted classes, counts."""
        cells = {
            run_name(*run): np.array([*np.nonzero(matrix), matrix[np.nonzero(matrix)]], np.int64)
            for run, matrix in matrices.items()
        }
        self._write_arrays(_CONFUSION, cells)

    def write_clients(self, runs: Iterable[ClientResults]) -> None:
        """Replaces the results by client of all runs, numbers rounded to six digits; no file without any."""
        table = [
            {"method": run.method, "seed": run.seed, "client": name}
            | {
                column: None if np.isnan(values[client]) else round(values[client].item(), 6)
                for column, values in zip(run._fields[3:], run[3:], strict=True)
            }
            for run in runs
            for client, name in enumerate(run.names)
        ]
        if table:
            self._write(_CLIENTS, as_csv(table).encode())

    def read_clients(self) -> list[ClientResults]:
        """Reads the results by client; empty for runs whose clients have no test rows."""
        if not (self.path / _CLIENTS).exists():
            return []
        with reading(self.path / _CLIENTS):
            runs: dict[tuple[str, int], list[dict[str, str]]] = {}
            for row in read_csv(self._read(_CLIENTS).decode()):
                runs.setdefault((row["method"], int(row["seed"])), []).append(row)
            return [
                ClientResults(
                    *run,
                    names=tuple(row["client"] for row in rows),
                    **{name: np.array([int(row[name]) for row in rows]) for name in ("training_rows", "test_rows")},
                    **{
                        name: np.array([float(row[name] or "nan") for row in rows])
                        for name in ("accuracy", "balanced_accuracy", "fine_tuned_accuracy")
                    },
                    new=np.array([row["new"] == "1" for row in rows]),
                )
                for run, rows in runs.items()
            ]

    def write_pictures(self, method: str, seed: int, pictures: Mapping[str, np.ndarray]) -> None:
        """Replaces a run's pictures: arrays of pixels by name."""
        self._write_arrays(PICTURES.format(run_name(method, seed)), pictures)

    def clear(self, method: str, seed: int, *kinds: str) -> None:
        """Deletes a run's results of some `kinds`: PICTURES, PERSONALISED, NEW_CLIENTS."""
        self._remove(*(kind.format(run_name(method, seed)) for kind in kinds))

    def read_analysis(self, kind: str, method: str, seed: int) -> dict[str, Any] | None:
        """Reads a run's results of one `kind`, PERSONALISED or NEW_CLIENTS; None if there are none."""
        name = kind.format(run_name(method, seed))
        with reading(self.path / name, "delete it and run the command again"):
            return self._read_json(name)

    def write_analysis(self, kind: str, method: str, seed: int, figures: Mapping[str, Any]) -> None:
        """Writes a run's results of one `kind`: clients' fine-tuned models (PERSONALISED, NEW_CLIENTS)."""
        self._write_json(kind.format(run_name(method, seed)), figures)

    def write_findings(self, name: str, method: str, seed: int, found: Findings) -> None:
        """Writes the findings of an analysis of a run; the numbers are written last and mark it as done."""
        file = _FINDINGS.format(name, run_name(method, seed))
        if found.arrays:
            self._write_arrays(f"{file}.npz", found.arrays)
        self._write_json(f"{file}.json", found.numbers)

    def read_findings(self, name: str, method: str, seed: int) -> Findings | None:
        """Reads the findings of an analysis of a run; None if it isn't done."""
        file = _FINDINGS.format(name, run_name(method, seed))
        with reading(self.path / f"{file}.json", "delete it and run the command again"):
            numbers = self._read_json(f"{file}.json")
        return None if numbers is None else Findings(numbers, self._read_arrays(f"{file}.npz"))

    def clear_findings(self, method: str, seed: int) -> None:
        """Deletes the findings of analyses of a run."""
        self._remove(f"{_FINDINGS.format('*', run_name(method, seed))}.*")

    # For readers

    def read_configuration(self) -> Config:
        """Reads the folder's configuration; raises `ValueError` if it can't, or if a plug-in isn't loaded."""
        if self.read_sheet()[0].get(PYTHON):
            raise FolderError(
                f"{self.path}: was trained in Python, from objects that a folder can't hold: call "
                "fedjax_bal.compare with the same arguments and this folder as out=; it returns the models without "
                "training"
            )
        return load_config(self.path / _CONFIG)

    def read_runs(self) -> tuple[dict[str, str], tuple[int, ...]]:
        """Reads the methods' names in reports, by their names in results, and the seeds; no plug-in is needed."""
        if not self.exists():
            raise FolderError(f"{self.path / _CONFIG}: no such file; give a folder that a run wrote")
        config, _ = self.read_sheet()
        with reading(self.path / _CONFIG, CHOOSE_ANOTHER):
            labels = {str(entry["name"]): str(entry.get("label") or entry["name"]) for entry in config["methods"]}
            return labels, tuple(map(int, config["seeds"]))

    def unknown_metrics(self) -> set[str]:
        """Names the recorded metrics and analyses that reports leave out, because their plug-in isn't loaded."""
        entries = [*self.read_metrics(), *self.read_summary().get("runs", ())]
        analyses = {folder.name for folder in self.path.glob("analyses/*")}
        return ({key for entry in entries for key in entry} - {*METRICS, *COLUMNS}) | (analyses - ANALYSES.keys())

    def export_file(self, name: str) -> Path:
        """Returns the path of an exported model in the folder; `fresh` doesn't delete exports."""
        return own_folder(self.path, _EXPORTS) / name

    @property
    def comparison(self) -> Path:
        """The default file for a comparison with other runs."""
        return self.path / _COMPARISON

    def read(self) -> RunRecord:
        """Reads everything that a report shows.

        Raises:
            FolderError: a file is missing, damaged, or can't be read.
        """
        if not self.path.is_dir():
            raise FolderError(f"{self.path}: no such folder; give a folder that a run wrote")
        if not any((self.path / name).exists() for name in (_CONFIG, _SUMMARY, _METRICS)):
            within = next(iter(sorted(self.path.glob(f"*/{_CONFIG}"))), Path("runs", "quickstart", _CONFIG)).parent
            raise FolderError(f"{self.path}: holds no run or sweep; give the folder that one wrote, such as {within}")
        config, text = self.read_sheet()
        lines = self.read_metrics()
        summary = self.read_summary() or unwritten_summary(config, lines)
        cells = self._read_arrays(_CONFUSION)
        pictures: dict[str, dict[str, np.ndarray]] = {}
        findings: dict[str, dict[str, Findings]] = {}
        for run in summary["runs"]:
            name = run_name(run["method"], run["seed"])
            run["confusion_matrix"] = _matrix(cells[name], len(summary["class_names"])) if name in cells else None
            if run["method"] not in pictures:  # those of the first seed
                pictures[run["method"]] = self._read_arrays(PICTURES.format(name))
                for analysis in self.path.glob("analyses/*"):
                    found = self.read_findings(analysis.name, run["method"], run["seed"])
                    if found is not None:
                        findings.setdefault(analysis.name, {})[run["method"]] = found
        return RunRecord(
            config,
            text,
            lines,
            summary,
            {method: arrays for method, arrays in pictures.items() if arrays},
            self.read_clients(),
            findings,
        )


def chosen_form(config: Config, recorded: Config | None = None) -> str:
    """Returns the form of convolution for "auto": that of the recorded runs, otherwise the one for this machine.

    It is chosen once, before a configuration is compared or written; from then on it is a form like any other.
    """
    from fedjax_bal.models import automatic, convolves  # imported here, because reports do without jax

    names = {method.model.name for method in config.methods if method.model.convolution == AUTO}
    if not any(map(convolves, names)):
        return "fast"  # no difference
    sections = (recorded, *recorded.methods) if recorded else ()
    forms = (section.model.convolution for section in sections)
    return next((form for form in forms if form in AUTO_FORMS), None) or automatic.form()


def _json_lines(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _matrix(cells: np.ndarray, classes: int) -> Any:
    from scipy.sparse import coo_array  # imported here, because few commands need it

    return coo_array((cells[2], (cells[0], cells[1])), (classes, classes))
