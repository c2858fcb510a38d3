"""Several run folders on one page: the same tables and figures, each method named by its folder too."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedjax_bal.files import write_atomically
from fedjax_bal.report.folder import ReportError, RunFolder, read
from fedjax_bal.report.page import definitions, document, encoded, figure_html, methods_table
from fedjax_bal.report.statistics import compare
from fedjax_bal.report.words import LONGEST_NAME, printable, verdict

_MOST = 20
_OF_DATA = ("dataset", "partition", "auxiliary")


def build_comparison(folders: Sequence[Path], file: Path) -> Path:
    """Writes one page about several run folders.

    Args:
        folders: 2 to 20 different run folders, with the same classes.
        file: where to write it.

    Returns:
        The file.

    Raises:
        ReportError: a folder can't be read, the folders don't go together, or the file can't be written.
    """
    from fedjax_bal.report.gallery import draw

    both = join(folders)
    pictures = [figure_html(picture.html, picture.title, picture.caption) for picture in draw(both)]
    try:
        write_atomically(file, encoded(_page(folders, both, pictures)))
    except OSError as error:
        raise ReportError(f"{file}: can't be written ({error.strerror}); choose another place with --out") from error
    return file


def join(folders: Sequence[Path]) -> RunFolder:
    """The runs of several folders as if they were one comparison's.

    Args:
        folders: run folders.

    Returns:
        A folder's content, its methods named `method (folder)`; settings that are the same in all are left out.

    Raises:
        ReportError: the folders don't go together.
    """
    resolved = [folder.resolve() for folder in folders]
    if not 2 <= len(set(resolved)) == len(resolved) <= _MOST:
        raise ReportError(f"report: received {len(folders)} folders; a comparison takes 2 to {_MOST} different ones")
    found = [read(folder) for folder in folders]
    for folder, run in zip(folders[1:], found[1:], strict=True):
        if run.summary["class_names"] != found[0].summary["class_names"]:
            raise ReportError(f"{folder}: has other classes than {folders[0]}; compare runs on one data set")
    names = _names(resolved)
    renamed = [_renamed(run, name) for run, name in zip(found, names, strict=True)]
    runs = [entry for run in renamed for entry in run.summary["runs"]]
    targets = {run.summary.get("target_accuracy") for run in found}
    summary = {
        "runs": runs,
        "class_names": found[0].summary["class_names"],
        "partitions": [entry for run in renamed for entry in run.summary["partitions"]],
        "batches": [],
        "finished": all(run.summary["finished"] for run in found),
        "target_accuracy": targets.pop() if len(targets) == 1 else None,
    }
    return RunFolder({}, "", [line for run in renamed for line in run.lines], summary)


def _names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    parts = [folder.parts for folder in folders]
    longest = max(map(len, parts))
    ends = (["/".join(part[-depth:]) for part in parts] for depth in range(1, longest + 1))
    return next(names for names in ends if len(set(names)) == len(names))


def _renamed(run: RunFolder, name: str) -> RunFolder:
    called = lambda entry: {**entry, "method": f"{entry['method']} ({name})"}
    parts = [
        {**entry, "methods": [f"{method} ({name})" for method in entry["methods"]]}
        for entry in run.summary["partitions"]
    ]
    summary = {**run.summary, "runs": [called(entry) for entry in run.summary["runs"]], "partitions": parts}
    return run._replace(lines=[called(line) for line in run.lines], summary=summary)


def _page(folders: Sequence[Path], both: RunFolder, pictures: list[str]) -> str:
    summaries = [s._replace(method=printable(s.method, LONGEST_NAME)) for s in compare(both.summary["runs"])]
    rounds = {entry["rounds"] for entry in both.summary["runs"]}
    differing = _differences(folders)
    unlike = _caveats(both.summary["finished"], len(rounds) > 1, [key for key, _ in differing])
    parts = [
        f"<p class=kicker>{len(folders)} run folders</p>",
        "<h1>Comparison of runs</h1>",
        f'<p class=unfinished role="status">{escape(unlike)}</p>' if unlike else "",
        f"<p class=verdict>{escape(verdict(summaries))}</p>",
        "<h2>Comparison</h2>",
        methods_table(summaries, both.summary["target_accuracy"]),
        *(["<h2>Figures</h2>", "<div class=figures>", *pictures, "</div>"] if pictures else []),
        "<h2>Where the settings differ</h2>",
        definitions(differing) or "<p>Nowhere.</p>",
    ]
    return document("comparison of runs", parts)


def _caveats(finished: bool, longer: bool, differing: Sequence[str]) -> str:
    """What stands in the way of comparing, in words."""
    told = [] if finished else ["Some of these runs are not finished."]
    if longer:
        told.append("The runs have different numbers of rounds, so that final accuracies are not of the same effort.")
    data = [key for key in differing if key.partition(".")[0] in _OF_DATA]
    if data:
        told.append(
            f"The runs are not on the same data ({', '.join(data[:4])}{', ...' * (len(data) > 4)}): what differs "
            "between them is not the methods alone, and pairing them by seed does not take that out."
        )
    return " ".join(told)


def _differences(folders: Sequence[Path]) -> list[tuple[str, str]]:
    leaves = [_leaves(read(folder).config) for folder in folders]
    names = _names([folder.resolve() for folder in folders])
    keys = [key for key in dict.fromkeys(key for own in leaves for key in own) if key != "name"]
    differing = [key for key in keys if len({repr(own.get(key)) for own in leaves}) > 1]
    tell = lambda key: "; ".join(f"{name}: {own.get(key, 'absent')}" for name, own in zip(names, leaves, strict=True))
    return [(key, tell(key)) for key in differing[:60]]


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {path.lstrip("."): value}
    return {key: leaf for name, below in value.items() for key, leaf in _leaves(below, f"{path}.{name}").items()}
