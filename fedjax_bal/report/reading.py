"""Reads the runs that a report shows: of one folder, finished or not, or of several folders that are compared."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.config import name_in_results, nearest_choices
from fedjax_bal.lab import FolderError, RunFolder, RunRecord, SweepFolder
from fedjax_bal.metrics import METRICS, EarlyStopping, RunHistory, summarise_run
from fedjax_bal.report.tables import formula_fault, plural, split_formulas

NO_NAMES: Mapping[str, str] = {}
NOT_BEGUN = "not begun"
UNFINISHED = "not finished"
DONE = "done"
STOPPED_EARLY = "stopped early"
FAILED = "failed"
SO_FAR = "so_far"
"""The key of the results so far of a run that isn't over. Its metrics are None, so that none counts as a result."""
_MOST_FOLDERS = 20


class ReportedRuns(NamedTuple):
    """The runs of one folder, or of several ones.

    Attributes:
        record: their content. The methods of several folders are named `method (folder)`.
        configs: the configurations by folder; of a single folder under an empty name.
        origins: the method and the folder behind each name; empty for a single folder.
    """

    record: RunRecord
    configs: Mapping[str, Mapping[str, Any]]
    origins: Mapping[str, tuple[str, str]] = MappingProxyType({})

    @property
    def joined(self) -> bool:
        """Whether the runs are those of several folders."""
        return bool(self.origins)


class PlannedRun(NamedTuple):
    """A run that a configuration asks for: its method's entry, and the name that reports show."""

    entry: Mapping[str, Any]
    method: str
    seed: int
    rounds: int | None


def read_runs(folders: Sequence[Path], names: Mapping[str, str] = NO_NAMES) -> ReportedRuns:
    """Reads run folders, with the methods' names in reports.

    Args:
        folders: one folder, or 2 to 20 with the same classes.
        names: other names of methods than the configurations', by their names in results.

    Raises:
        FolderError: a file is missing or damaged, or the folders can't be compared.
        ValueError: `names` has a name that no method has, or gives one to several methods.
    """
    records = [_read(folder, names) for folder in folders]
    known = {name: label for run in records for name, label in labels_of(run.config).items()}
    check_names(names, known)
    if len(records) == 1:
        return ReportedRuns(records[0], {"": records[0].config})
    resolved = [folder.resolve() for folder in folders]
    if len(set(resolved)) < len(resolved) or len(resolved) > _MOST_FOLDERS:
        raise FolderError(
            f"report: received {plural(len(folders), 'folder')}; a comparison takes 2 to {_MOST_FOLDERS} different ones"
        )
    classes = records[0].summary["class_names"]
    for folder, run in zip(folders, records, strict=True):
        if run.summary["class_names"] != classes:
            raise FolderError(f"{folder}: its classes differ from those of {folders[0]}; compare runs on one data set")

    # The shortest path suffixes that are distinct.
    longest = max(len(folder.parts) for folder in resolved)
    ends = (["/".join(folder.parts[-depth:]) for folder in resolved] for depth in range(1, longest + 1))
    named = next(named for named in ends if len(set(named)) == len(named))
    origins = {
        f"{entry['method']} ({name})": (entry["method"], name)
        for name, run in zip(named, records, strict=True)
        for entry in run.summary["runs"]
    }
    joined = [
        renamed(run, lambda method, name=name: f"{method} ({name})") for name, run in zip(named, records, strict=True)
    ]
    targets = {run.summary["target_accuracy"] for run in records}
    # Rounds, traffic and times to different targets aren't comparable.
    unknown = dict.fromkeys([name for name in METRICS if name.endswith("_to_target")] if len(targets) > 1 else [])
    summary = {
        "runs": [{**entry, **unknown} for run in joined for entry in run.summary["runs"]],
        "class_names": classes,
        "partitions": [part for run in joined for part in run.summary["partitions"]],
        "finished": all(run.summary["finished"] for run in records),
        "target_accuracy": targets.pop() if len(targets) == 1 else None,
    }
    lines = [line for run in joined for line in run.lines]
    clients = [of_run for run in joined for of_run in run.clients]
    configs = {name: run.config for name, run in zip(named, records, strict=True)}
    return ReportedRuns(RunRecord({}, "", lines, summary, clients=clients), configs, origins)


def _read(folder: Path, names: Mapping[str, str]) -> RunRecord:
    """Reads a run folder."""
    if SweepFolder(folder).exists():
        raise FolderError(f"{folder}: holds a sweep, whose page compares its runs; give only folders of runs")
    return completed(RunFolder(folder).read(), names)


def completed(run: RunRecord, names: Mapping[str, str] = NO_NAMES) -> RunRecord:
    """Returns a record with the methods' names in reports, whose runs are all planned ones, each with its `state`.

    A run that isn't over has no metrics, but its results so far under `SO_FAR`.
    """
    config = with_labels(run.config, names)
    labels = labels_of(config)
    run = renamed(run._replace(config=config), lambda method: labels.get(method, method))

    lines: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for line in sorted(run.lines, key=lambda line: line["round"]):
        lines.setdefault((line["method"], line["seed"]), []).append(line)
    known = {(entry["method"], entry["seed"]): entry for entry in run.summary["runs"]}
    no_results = dict.fromkeys(metric.name for metric in METRICS.values() if metric.of_run)
    runs = {}
    for planned in planned_runs(config):
        key = planned.method, planned.seed
        of_run = {"method": planned.method, "seed": planned.seed, "failure": None}
        entry = known.pop(key, {**of_run, "rounds": 0})
        newest = lines[key][-1]["round"] if key in lines else 0
        if newest > (entry["rounds"] or 0) and not entry["failure"]:
            training = {**section(config, "training"), **section(planned.entry, "training")}
            stopping = EarlyStopping(**(training.get("early_stopping") or {}))
            history = RunHistory(lines[key], planned.rounds or newest, run.summary["target_accuracy"], stopping)
            entry = {**entry, **summarise_run(history), **of_run}
        state = state_of(entry, planned)
        if state in (NOT_BEGUN, UNFINISHED):
            entry = {**no_results, **of_run, SO_FAR: entry}
        runs[key] = {**entry, "state": state}
    for key, entry in known.items():  # a configuration that was edited by hand may lack it
        runs[key] = {**entry, "state": FAILED if entry["failure"] else DONE}
    over = all(SO_FAR not in entry for entry in runs.values())
    finished = over and (run.summary["finished"] or any(entry["failure"] for entry in runs.values()))
    clients = [of_run for of_run in run.clients if SO_FAR not in runs.get((of_run.method, of_run.seed), {})]
    return run._replace(summary={**run.summary, "runs": list(runs.values()), "finished": finished}, clients=clients)


def planned_runs(config: Mapping[str, Any]) -> Iterator[PlannedRun]:
    """Yields the runs of a configuration, method by method."""
    base = section(config, "training").get("rounds")
    for entry in entries(config, "methods"):
        whole = entry if isinstance(entry, dict) else {"recipe": entry}
        rounds = section(whole, "training").get("rounds", base)
        for seed in (seed for seed in entries(config, "seeds") if isinstance(seed, int)):
            yield PlannedRun(whole, display_name(entry), seed, rounds if isinstance(rounds, int) else None)


def state_of(run: Mapping[str, Any], planned: PlannedRun) -> str:
    """Names the state of a run: not begun, not finished, done, stopped early or failed."""
    if run["failure"]:
        return FAILED
    if run.get("stopped_early") is not None:
        return STOPPED_EARLY
    if run["rounds"] == 0:
        return NOT_BEGUN
    rounds_left = run["rounds"] is not None and planned.rounds is not None and run["rounds"] < planned.rounds
    return UNFINISHED if rounds_left else DONE


def with_labels(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Returns a configuration, or a sweep's sheet, whose methods have other labels, by their names in results.

    Raises:
        ValueError: two methods would have the same label, or figures can't show one.
    """
    for label in names.values():
        for formula in split_formulas(label)[1::2]:
            if fault := formula_fault(formula):
                raise ValueError(
                    f"--names: received {label!r:.80}; figures can't show the formula {formula:.80}: {fault}"
                )
    methods = []
    for entry in entries(config, "methods"):
        label = names.get(name_in_results(entry))
        whole = entry if isinstance(entry, dict) else {"recipe": entry}
        methods.append({**whole, "label": label} if label else entry)
    labels = list(map(display_name, methods))
    for label in names.values():
        if labels.count(label) > 1:
            raise ValueError(f"--names: received {label!r:.80} for several methods; give each its own name")
    return {**config, "methods": methods} if names else dict(config)


def labels_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the names in reports of the methods of a configuration, or of a sweep's sheet, by their names in results.

    Where an axis of a sweep replaces the methods, a method that has several labels keeps its name.
    """
    axes = config.get("sweep")
    swept = [axis["methods"] for axis in axes if "methods" in axis] if isinstance(axes, list | tuple) else []
    listed = [entries({"methods": value}, "methods") for values in swept for value in values]
    labels: dict[str, str] = {}
    for entry in chain.from_iterable(listed or [entries(config, "methods")]):
        name = name_in_results(entry)
        label = display_name(entry)
        labels[name] = label if labels.get(name, label) == label else name
    # A configuration that was edited by hand may have a label twice.
    return labels if len({*labels.values()}) == len(labels) else {name: name for name in labels}


def check_names(names: Mapping[str, str], labels: Mapping[str, str]) -> None:
    """Raises `ValueError` if `names` has a method that `labels` lacks."""
    for name in names:
        if name not in labels:
            raise ValueError(f"--names: received {name!r:.80}; {nearest_choices(name, labels)}")


def renamed(run: RunRecord, new: Callable[[str], str]) -> RunRecord:
    """Returns a run's record with other names of its methods; the configuration keeps the old ones."""
    summary = dict(run.summary)
    summary["runs"] = [{**entry, "method": new(entry["method"])} for entry in summary["runs"]]
    for key in ("partitions", "batches"):
        parts = summary.get(key, [])
        summary[key] = [{**part, "methods": [new(str(method)) for method in part["methods"]]} for part in parts]
    lines = [{**line, "method": new(line["method"])} for line in run.lines]
    pictures = {new(method): shown for method, shown in run.pictures.items()}
    clients = [of_run._replace(method=new(of_run.method)) for of_run in run.clients]
    findings = {
        name: {new(method): found for method, found in by_method.items()} for name, by_method in run.findings.items()
    }
    return run._replace(summary=summary, lines=lines, pictures=pictures, clients=clients, findings=findings)


def entries(config: Mapping[str, Any], key: str) -> list[Any]:
    """Returns the entries of a list in a configuration; tolerates a damaged one."""
    listed = config.get(key)
    return [entry for entry in listed if isinstance(entry, dict | str | int)] if isinstance(listed, list) else []


def section(config: Any, key: str) -> Mapping[str, Any]:
    """Returns a section of a configuration; empty if it is missing."""
    value = config.get(key) if isinstance(config, dict) else None
    return value if isinstance(value, dict) else {}


def display_name(entry: Any) -> str:
    """Returns the name in reports of the method in an entry of `methods`."""
    label = entry.get("label") if isinstance(entry, dict) else None
    return str(label or name_in_results(entry))


def class_samples(partitions: Sequence[Mapping[str, Any]]) -> np.ndarray | None:
    """Counts the training examples of each class, `Float[C]`; None if methods differ, or unknown.

    Copies that some methods add don't count.
    """
    originals = [(part.get("augmentation") or {}).get("before") or part.get("samples") or () for part in partitions]
    counts = {tuple(sizes) for sizes in originals}
    only = counts.pop() if len(counts) == 1 else ()
    return np.array(only, dtype=float) if any(only) else None
