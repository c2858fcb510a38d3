"""Compares accuracies with those that a paper reports for the same setting."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_bal.config import setting_leaves
from fedjax_bal.metrics import NOTHING, SHARE, MethodSummary, Spread, mean_interval
from fedjax_bal.report.comparison import AVERAGED, summarise
from fedjax_bal.report.reading import ReportedRuns, labels_of, section
from fedjax_bal.report.sweep_results import Results, list_conditions, name_condition, parsed, summarise_condition
from fedjax_bal.report.tables import Table, flat, printable, signed

FAR = 0.02
_MEASURES = {"final": "Final, %", "best": "Best of a run, %", "last5": AVERAGED}
_LONGEST_VALUE = 120
_NOTE = (
    "Ours: mean ± standard deviation over seeds, with the 95% Student t interval of the mean. A star marks "
    "differences of more than 2 points from the published accuracy."
)
_CHANGED = (
    "This isn't the paper's configuration, so it doesn't reproduce the paper: the accuracies of a method depend on the "
    "setting."
)


class Published(NamedTuple):
    """A method's accuracy under one condition, and the published one.

    Attributes:
        method: the method's name.
        condition: the swept condition; empty for a run.
        which: the measure, a key of the configuration's `paper.which`.
        ours: our accuracy over seeds.
        theirs: the published accuracy as a fraction.
    """

    method: str
    condition: str
    which: str
    ours: Spread
    theirs: float

    @property
    def difference(self) -> float | None:
        """Ours minus theirs; None if ours is missing."""
        return None if self.ours.mean is None else self.ours.mean - self.theirs

    @property
    def is_far(self) -> bool:
        """Whether the difference, at the shown precision, exceeds two points."""
        return self.difference is not None and round(abs(self.difference), 3) > FAR


class PaperComparison(NamedTuple):
    """The accuracies of a run or sweep compared with a paper's.

    Attributes:
        entries: one per method and condition.
        source: the paper.
        changes: settings that differ from the paper's: the key, its value here, and the paper's. If there are any, no
            differences of accuracies are shown.
    """

    entries: Sequence[Published]
    source: str
    changes: Sequence[tuple[str, str, str]] = ()

    def by_metric(self, condition: str = "") -> dict[tuple[str, str], float]:
        """Returns the published accuracies by method and metric; none if the setting isn't the paper's."""
        compared = [entry for entry in self.entries if entry.condition == condition and not self.changes]
        return {(entry.method, f"{entry.which}_accuracy"): entry.theirs for entry in compared}

    @property
    def verdict(self) -> str:
        """Counts the accuracies that are near the published ones, in words; empty without published ones."""
        known = [entry for entry in self.entries if entry.difference is not None]
        if not known or self.changes:
            return _CHANGED if known else ""
        near = sum(not entry.is_far for entry in known)
        return f"{near} of {len(known)} accuracies are within {100 * FAR:g} points of the published ones."

    @property
    def tables(self) -> list[Table]:
        """Tables of our and the published accuracies, and of differences from the paper's setting; none without any."""
        if not self.entries:
            return []
        columns: dict[str, list[str]] = {"Method": [entry.method for entry in self.entries]}
        if len({entry.condition for entry in self.entries}) > 1:
            columns["Condition"] = [entry.condition for entry in self.entries]
        columns["Measure"] = [_MEASURES[entry.which] for entry in self.entries]
        columns["Ours"] = [SHARE.show(entry.ours) for entry in self.entries]
        columns["95% interval"] = [_interval(entry.ours) for entry in self.entries]
        columns["Seeds"] = [str(entry.ours.seeds) for entry in self.entries]
        columns["Published"] = [f"{100 * entry.theirs:.1f}" for entry in self.entries]
        if not self.changes:
            columns["Difference, points"] = [
                NOTHING if entry.difference is None else signed(entry.difference) + "*" * entry.is_far
                for entry in self.entries
            ]
        note = f"{_CHANGED if self.changes else _NOTE} Published: {self.source}."
        compared = Table("Compared with the paper", list(columns), list(zip(*columns.values(), strict=True)), note)
        return [compared, self.changes_table] if self.changes else [compared]

    @property
    def changes_table(self) -> Table:
        """The settings that differ from the paper's."""
        return Table("Differences from the paper's configuration", ("Key", "Here", "Paper"), self.changes)


def paper_comparison_of_run(runs: ReportedRuns) -> PaperComparison:
    """Collects the methods of a run for which its configuration has published accuracies."""
    config = runs.record.config
    paper = section(config, "paper")
    changes = changes_from_paper(config)
    if not runs.record.summary["finished"]:
        changes.append(("rounds", "unfinished", "all"))
    entries = _entries(paper, summarise(runs.record.summary["runs"]), "", labels_of(config))
    return PaperComparison(entries, _source(paper), changes)


def paper_comparison_of_sweep(results: Results) -> PaperComparison:
    """Collects the methods of a sweep for which its configuration or an axis has published accuracies."""
    base = section(results.sheet, "paper")
    start = "paper.accuracy."
    entries = []
    for condition in list_conditions(results):
        row = next(
            row
            for row in results.rows
            if all(results.axes[place].value(row) == value for place, value in condition.items())
        )
        swept = parsed(row.get("paper.accuracy"))
        accuracy = {**section(base, "accuracy"), **(swept if isinstance(swept, dict) else {})}
        accuracy |= {key.removeprefix(start): value for key, value in row.items() if key.startswith(start)}
        summaries = summarise_condition(results, condition)
        paper = {**base, "accuracy": accuracy}
        entries += _entries(paper, summaries, name_condition(results, condition), results.labels)
    changes = changes_from_paper(results.sheet)
    for axis in results.axes:
        if not any(key.startswith("paper.") for key in axis.keys):
            changes.append((axis.name, "swept", "one value"))
    return PaperComparison(entries, _source(base), changes)


def changes_from_paper(config: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Lists the settings that differ from those with which a paper's accuracies were published."""
    theirs = section(section(config, "paper"), "setting")
    ours = setting_leaves(config)
    # Another data set implies its own constants.
    implied = ("dataset.mean", "dataset.std") if "dataset.name" in theirs else ()
    return [
        (str(key), printable(flat(ours.get(str(key))), _LONGEST_VALUE), printable(flat(published), _LONGEST_VALUE))
        for key, published in theirs.items()
        if key not in implied
    ]


def _interval(value: Spread) -> str:
    low, high = mean_interval(value)
    return NOTHING if low is None or high is None else f"[{100 * low:.1f}, {100 * high:.1f}]"


def _entries(
    paper: Mapping[str, Any], summaries: Sequence[MethodSummary], condition: str, labels: Mapping[str, str]
) -> list[Published]:
    which = str(paper.get("which"))
    measure = which if which in _MEASURES else "final"
    accuracies = {printable(labels.get(name, str(name))): value for name, value in section(paper, "accuracy").items()}
    entries = []
    for summary in summaries:
        theirs = accuracies.get(summary.method)
        if isinstance(theirs, int | float) and 0 < theirs <= 1:
            ours = getattr(summary, measure)
            entries.append(Published(summary.method, printable(condition), measure, ours, float(theirs)))
    return entries


def _source(paper: Mapping[str, Any]) -> str:
    return printable(str(paper.get("source") or "not named"), 300)
