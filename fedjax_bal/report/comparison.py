"""Several run folders on one page: the same tables and figures, each method named by its folder too."""

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_bal.config import leaves
from fedjax_bal.files import check_replaceable, write_atomically
from fedjax_bal.lab import FolderError, RunFolder, RunRecord, SweepFolder
from fedjax_bal.report.markup import Page, definitions
from fedjax_bal.report.page import display_name, draws_partitions, entries, is_finished
from fedjax_bal.report.tables import comparison, details, failed, statistics, summarise_group
from fedjax_bal.report.wording import plural, table_notes, verdict

if TYPE_CHECKING:
    from fedjax_bal.report.svg import Picture

_MOST = 20
_OF_DATA = ("dataset", "partition", "partition_seeds", "auxiliary", "evaluation.validation", "evaluation.client_test")


def build_comparison(folders: Sequence[Path], file: Path) -> Path:
    """Writes one page about 2 to 20 different run folders with the same classes; returns the page.

    Its tables lie beside it, for `comparison.html` in `comparison-tables.csv` and `.tex`.

    Raises:
        FolderError: a folder can't be read, the folders don't go together, or the file can't be written.
    """
    from fedjax_bal.report import gallery

    both = join(folders)
    page = page_of_runs(both, gallery.draw(both, origins(both)))
    try:
        check_replaceable(file)  # before its tables are written
        for ending, content in page.tables().items():
            write_atomically(file.with_name(f"{file.stem}-tables.{ending}"), content)
        write_atomically(file, page.html())
    except OSError as error:
        raise FolderError(f"{file}: can't be written ({error.strerror}); choose another place with --out") from error
    return file


def page_of_runs(both: RunRecord, pictures: Sequence["Picture"]) -> Page:
    """The page of several runs that were joined."""
    configs = both.config
    shared = _groups(both.summary["runs"], _data_of_methods(configs))
    groups = [summarise_group(runs) for runs in shared]
    every = [own for group in groups for own in group]
    differing = _differences(configs)
    # Reasons why the runs are hard to compare.
    warnings = [] if both.summary["finished"] else ["Some of these runs are not finished."]
    if len({entry["rounds"] for entry in both.summary["runs"] if not entry.get("failure")}) > 1:
        warnings.append("The runs have different numbers of rounds: final accuracies are not of the same effort.")
    warnings.append(failed(both.summary["runs"]))
    answers = [verdict(every)]
    if len(groups) > 1:
        data = [key for key, _ in differing if _is_of_data(re.sub(r"^methods\.\d+\.", "", key))]
        named = f" ({', '.join(data[:4])}{', ...' * (len(data) > 4)})" if data else ""
        paired = any(len(group) > 1 for group in groups)
        left = "are given only between runs on the same data" if paired else "are left out"
        warnings.append(
            f"The runs are not on the same data{named}: a difference between them is not due to the methods alone, so "
            f"paired differences {left}."
        )
        among = "Among the {} methods on the data of {}: "
        answers = [
            (among.format(len(group), group[0].method) if len(group) > 1 else "") + verdict(group) for group in groups
        ]
    partitions = all(map(draws_partitions, configs.values()))
    notes = " ".join(table_notes(every, partitions=partitions))
    return Page(
        tab="comparison of runs",
        kicker=f"{len(configs)} run folders",
        heading="Comparison of runs",
        warnings=warnings,
        answers=answers,
        comparisons=[comparison(groups, both.summary["target_accuracy"], notes)],
        statistics=[row for runs in shared for row in statistics(runs)],
        details=details(both.summary["runs"]),
        pictures=pictures,
        sections=[("Where the settings differ", definitions(differing) or "<p>Nowhere.</p>")],
    )


def join(folders: Sequence[Path]) -> RunRecord:
    """The runs of several folders as if they were one comparison's, their methods named `method (folder)`.

    The configuration has those of all folders by name.

    Raises:
        FolderError: the folders don't go together.
    """
    resolved = [folder.resolve() for folder in folders]
    if not 2 <= len(set(resolved)) == len(resolved) <= _MOST:
        raise FolderError(
            f"report: received {plural(len(folders), 'folder')}; a comparison takes 2 to {_MOST} different ones"
        )
    for folder in (folder for folder in folders if SweepFolder(folder).exists()):
        raise FolderError(f"{folder}: is a sweep's folder, whose page compares its runs; give only folders of runs")
    found = [RunFolder(folder).read() for folder in folders]
    for folder, run in zip(folders[1:], found[1:], strict=True):
        if run.summary["class_names"] != found[0].summary["class_names"]:
            raise FolderError(f"{folder}: has other classes than {folders[0]}; compare runs on one data set")
    names = _names(resolved)
    renamed = [_renamed(run, name) for run, name in zip(found, names, strict=True)]
    runs = [entry for run in renamed for entry in run.summary["runs"]]
    targets = {run.summary.get("target_accuracy") for run in found}
    summary = {
        "runs": runs,
        "class_names": found[0].summary["class_names"],
        "partitions": [entry for run in renamed for entry in run.summary["partitions"]],
        "finished": all(map(is_finished, found)),
        "target_accuracy": targets.pop() if len(targets) == 1 else None,
    }
    configs = {name: run.config for name, run in zip(names, found, strict=True)}
    return RunRecord(configs, "", [line for run in renamed for line in run.lines], summary)


def origins(both: RunRecord) -> dict[str, tuple[str, str]]:
    """The method and the folder behind each name of several runs that were joined."""
    names = (run["method"] for run in both.summary["runs"])
    ends = ((name, next(folder for folder in both.config if name.endswith(f" ({folder})"))) for name in names)
    return {name: (name.removesuffix(f" ({folder})"), folder) for name, folder in ends}


def _names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that are distinct."""
    parts = [folder.parts for folder in folders]
    longest = max(map(len, parts))
    ends = (["/".join(part[-depth:]) for part in parts] for depth in range(1, longest + 1))
    return next(names for names in ends if len(set(names)) == len(names))


def _renamed(run: RunRecord, name: str) -> RunRecord:
    called = lambda entry: {**entry, "method": f"{entry['method']} ({name})"}
    parts = [
        {**entry, "methods": [f"{method} ({name})" for method in entry["methods"]]}
        for entry in run.summary["partitions"]
    ]
    summary = {**run.summary, "runs": [called(entry) for entry in run.summary["runs"]], "partitions": parts}
    return run._replace(lines=[called(line) for line in run.lines], summary=summary)


def _groups(runs: Sequence[Mapping[str, Any]], data: Mapping[str, Hashable]) -> list[list[Mapping[str, Any]]]:
    """The runs, one group for all whose methods share their data."""
    groups: dict[Hashable, list[Mapping[str, Any]]] = {}
    for run in runs:
        groups.setdefault(data.get(run["method"]), []).append(run)
    return list(groups.values())


def _data_of_methods(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, Hashable]:
    """The settings that decide who holds which images, by the method's name in the comparison."""
    found = {}
    for name, config in configs.items():
        base = leaves({key: value for key, value in config.items() if key != "methods"})
        for entry in entries(config, "methods"):
            whole = base | (leaves(entry) if isinstance(entry, dict) else {})  # a method may override any section
            own = sorted((key, repr(leaf)) for key, leaf in whole.items() if _is_of_data(key))
            found[f"{display_name(entry)} ({name})"] = tuple(own)
    return found


def _is_of_data(key: str) -> bool:
    return any(f"{key}.".startswith(f"{section}.") for section in _OF_DATA)


def _differences(configs: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    found = [leaves(config) for config in configs.values()]
    keys = [key for key in dict.fromkeys(key for own in found for key in own) if key != "name"]
    differing = [key for key in keys if len({repr(own.get(key)) for own in found}) > 1]
    tell = lambda key: "; ".join(f"{name}: {own.get(key, 'absent')}" for name, own in zip(configs, found, strict=True))
    return [(key, tell(key)) for key in differing[:60]]
