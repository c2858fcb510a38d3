"""Compares accuracies with those that a paper reports for the same setting."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_bal.config import setting_leaves
from fedjax_bal.metrics import NOTHING, SHARE, MethodSummary, Spread, mean_interval
from fedjax_bal.report.labels import labels_of
from fedjax_bal.report.sweep_results import Results, list_conditions, name_condition, parsed, summarise_condition
from fedjax_bal.report.tables import Details
from fedjax_bal.report.wording import (
    LONGEST_NAME,
    Table,
    averaged_in_words,
    flat,
    join_some,
    printable,
    signed,
    span_evaluated,
)
from fedjax_bal.validate import is_number

FAR = 0.02
_MEASURES = {"final": "Final accuracy", "best": "Best accuracy of a run", "last5": "Mean of the {}"}
_MOST_CHANGES = 8
_LONGEST_CHANGE = 120


class Published(NamedTuple):
    """A method's accuracy under one condition, and the published one.

    Attributes:
        method: the method's name.
        condition: the swept condition; empty for a run.
        which: the measure, a key of the configuration's `paper.which`.
        ours: our accuracy over seeds.
        theirs: the published accuracy as a fraction.
        averaged: describes the evaluations averaged by a mean of the last ones.
    """

    method: str
    condition: str
    which: str
    ours: Spread
    theirs: float
    averaged: str = ""

    @property
    def difference(self) -> float | None:
        """Ours minus theirs; None if ours is missing."""
        return None if self.ours.mean is None else self.ours.mean - self.theirs

    @property
    def mark(self) -> str:
        """A star if the difference, at the shown precision, exceeds two points."""
        return "*" * (self.difference is not None and round(abs(self.difference), 3) > FAR)


class PaperComparison(NamedTuple):
    """The accuracies of a run or sweep compared with a paper's.

    Attributes:
        entries: one per method.
        source: the paper.
        changes: differences from the paper's configuration, as text. If there are any, no accuracy differences are
            shown, because another setting has other accuracies even when it is reproduced exactly.
    """

    entries: tuple[Published, ...]
    source: str
    changes: tuple[str, ...] = ()


def paper_comparison_of_run(
    config: Mapping[str, Any], summaries: Sequence[MethodSummary], *, finished: bool = True
) -> PaperComparison:
    """Collects the methods of a run for which its configuration has published accuracies."""
    paper = _section(config.get("paper"))
    labels = labels_of(config)
    changes = [*changes_from_paper(config), *([] if finished else ["the run is not finished"])]
    return PaperComparison(tuple(_entries(paper, summaries, "", labels)), _source(paper), tuple(changes))


def paper_comparison_of_sweep(results: Results) -> PaperComparison:
    """Collects the methods of a sweep for which its configuration or an axis has published accuracies."""
    base = _section(results.sheet.get("paper"))
    start = "paper.accuracy."
    entries = []
    for condition in list_conditions(results):
        row = next(
            row
            for row in results.rows
            if all(results.axes[place].value(row) == value for place, value in condition.items())
        )
        accuracy = {**_section(base.get("accuracy")), **_section(parsed(row.get("paper.accuracy")))}
        accuracy |= {key.removeprefix(start): value for key, value in row.items() if key.startswith(start)}
        summaries = summarise_condition(results, condition)
        paper = {**base, "accuracy": accuracy}
        entries += _entries(paper, summaries, name_condition(results, condition), results.labels)
    swept = [f"{axis.name} swept" for axis in results.axes if not any(key.startswith("paper.") for key in axis.keys)]
    return PaperComparison(tuple(entries), _source(base), (*changes_from_paper(results.sheet), *swept))


def changes_from_paper(config: Mapping[str, Any]) -> list[str]:
    """Describes changes of the paper's configuration, such as: 2 of 200 rounds, model mlp in place of lenet5."""
    theirs = _section(_section(config.get("paper")).get("setting"))
    leaves = setting_leaves(config)
    # Another data set implies its own constants.
    implied = ("dataset.mean", "dataset.std") if "dataset.name" in theirs else ()
    changes = []
    for key, published in theirs.items():
        if key in implied:
            continue
        ours = leaves.get(str(key))
        method, _, path = str(key).rpartition(": ")
        change = f"{path.removesuffix('.name').removesuffix('.scheme')} {flat(ours)} in place of {flat(published)}"
        if path == "training.rounds" and is_number(ours) and is_number(published) and ours < published:
            change = f"{ours} of {published} rounds"
        changes.append(printable(f"{method}: {change}" if method else change, _LONGEST_CHANGE))
    return changes


def paper_tables(paper: PaperComparison) -> list[Details]:
    """Builds tables of our and published accuracies, one row per method and condition; none without published ones."""
    if not paper.entries:
        return []
    conditions = len({entry.condition for entry in paper.entries}) > 1
    heads = ["Method", *(["Condition"] if conditions else []), "Ours, %", "95% interval", "Seeds", "Published, %"]
    if not paper.changes:
        heads.append("Difference, points")
    rows = []
    for entry in paper.entries:
        low, high = mean_interval(entry.ours)
        interval = NOTHING if low is None or high is None else f"[{100 * low:.1f}, {100 * high:.1f}]"
        row = [entry.method, *([entry.condition] if conditions else []), SHARE.show(entry.ours), interval]
        row += [str(entry.ours.seeds), f"{100 * entry.theirs:.1f}"]
        if not paper.changes:
            row.append(NOTHING if entry.difference is None else signed(entry.difference) + entry.mark)
        rows.append(tuple(row))
    measure = " and ".join(dict.fromkeys(_MEASURES[entry.which].format(entry.averaged) for entry in paper.entries))
    mark = "" if paper.changes else f" * marks more than {100 * FAR:g} points between ours and the published ones."
    note = (
        f"{measure}: ours is mean ± standard deviation over seeds, with the 95% Student t interval of the mean.{mark} "
        f"Published: {paper.source}."
    )
    changed = f"{_not_the_papers(paper)} " if paper.changes else ""
    return [Details("Compared with the paper", Table(tuple(heads), rows), f"{changed}{note}")]


def _not_the_papers(paper: PaperComparison) -> str:
    return f"Not the paper's configuration, and so no reproduction: {join_some(paper.changes, _MOST_CHANGES)}."


def published_by_metric(paper: PaperComparison, condition: str = "") -> dict[tuple[str, str], float]:
    """Published accuracies under one condition, by method and metric; empty if the setting isn't the paper's."""
    if paper.changes:
        return {}
    entries = [entry for entry in paper.entries if entry.condition == condition]
    return {(entry.method, f"{entry.which}_accuracy"): entry.theirs for entry in entries}


def paper_verdict(paper: PaperComparison) -> str:
    """A sentence on the number of accuracies close to the published ones; empty without published ones."""
    known = [entry for entry in paper.entries if entry.difference is not None]
    if not known:
        return ""
    if paper.changes:
        return _not_the_papers(paper)
    near = sum(not entry.mark for entry in known)
    farthest = max(known, key=lambda entry: abs(entry.difference or 0.0))
    where = f" at {farthest.condition}" if farthest.condition else ""
    return (
        f"{near} of {len(known)} accuracies are within {100 * FAR:g} points of the published ones; the farthest is "
        f"{farthest.method}{where}, by {signed(farthest.difference or 0.0)} points."
    )


def _entries(
    paper: Mapping[str, Any], summaries: Sequence[MethodSummary], condition: str, labels: Mapping[str, str]
) -> list[Published]:
    which = paper.get("which")
    measure = which if isinstance(which, str) and which in _MEASURES else "final"
    accuracy = _section(paper.get("accuracy")).items()
    known = {printable(str(labels.get(name, name)), LONGEST_NAME): value for name, value in accuracy}
    when = averaged_in_words(span_evaluated(summaries))
    entries = []
    for summary in summaries:
        theirs = known.get(summary.method)
        if isinstance(theirs, int | float) and 0 < theirs <= 1:
            ours = getattr(summary, measure)
            entries.append(Published(summary.method, printable(condition), measure, ours, float(theirs), when))
    return entries


def _source(paper: Mapping[str, Any]) -> str:
    return printable(str(paper.get("source") or "not named"), 300)


def _section(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
