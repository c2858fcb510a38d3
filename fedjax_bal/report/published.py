"""Accuracies beside those that a paper reports for the same setting."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_bal.config import ConfigError, parse_yaml, setting_leaves
from fedjax_bal.metrics import NOTHING, SHARE, MethodSummary, Spread, mean_interval
from fedjax_bal.report.sweep_results import Results, Situation, name_situation, situations, summarise_situation
from fedjax_bal.report.tables import Details
from fedjax_bal.report.wording import Table, averaged_in_words, bounds, flat, printable, signed, span_averaged
from fedjax_bal.validate import is_number

FAR = 0.02
_MEASURES = {"final": "Final accuracy", "best": "Best accuracy of a run", "last5": "Mean of the {}"}
_MOST_CHANGES, _LONGEST_CHANGE = 8, 120


class Published(NamedTuple):
    """A method's accuracy under one condition, beside the published one.

    Attributes:
        method: its name.
        condition: what sets it apart from others of a sweep; empty for a run.
        which: the measure, a key of a configuration's `paper.which`.
        ours: over seeds.
        theirs: the published share.
        averaged: the evaluations that a mean of the last ones is of, in words.
    """

    method: str
    condition: str
    which: str
    ours: Spread
    theirs: float
    averaged: str = ""

    @property
    def difference(self) -> float | None:
        """Ours minus theirs; None without ours."""
        return None if self.ours.mean is None else self.ours.mean - self.theirs

    @property
    def mark(self) -> str:
        """A star for a difference of more than two points, to the digit shown."""
        return "*" * (self.difference is not None and round(abs(self.difference), 3) > FAR)


class Beside(NamedTuple):
    """The accuracies of a run or a sweep beside those of a paper, and the paper.

    Attributes:
        entries: of each method.
        source: the paper.
        changes: what differs from the paper's configuration, in words. With any of it there are no differences in
            accuracy: another setting has other accuracies, reproduced or not.
    """

    entries: tuple[Published, ...]
    source: str
    changes: tuple[str, ...] = ()


def beside_of_run(config: Mapping[str, Any], summaries: Sequence[MethodSummary], *, finished: bool = True) -> Beside:
    """The methods for which the configuration of a run has published accuracies."""
    paper = _section(config.get("paper"))
    changes = [*changes_from_paper(config), *([] if finished else ["the run is not finished"])]
    return Beside(tuple(_entries(paper, summaries, "")), _source(paper), tuple(changes))


def beside_of_sweep(results: Results) -> Beside:
    """The methods of a sweep for which its configuration, or an axis, has published accuracies."""
    base = _section(results.sheet.get("paper"))
    found = []
    for situation in situations(results):
        paper = {**base, "accuracy": {**_section(base.get("accuracy")), **_swept(results, situation)}}
        found += _entries(paper, summarise_situation(results, situation), name_situation(results, situation))
    beyond = [f"{own.name} swept" for own in results.axes if not any(key.startswith("paper.") for key in own.keys)]
    return Beside(tuple(found), _source(base), (*changes_from_paper(results.sheet), *beyond))


def changes_from_paper(config: Mapping[str, Any]) -> list[str]:
    """The changes of the paper's configuration in words, such as: 2 of 200 rounds, model mlp in place of lenet5."""
    theirs, ours = _section(_section(config.get("paper")).get("setting")), setting_leaves(config)
    # The constants of another data set go with it.
    implied = ("dataset.mean", "dataset.std") if "dataset.name" in theirs else ()
    kept = {str(key): value for key, value in theirs.items() if key not in implied}
    return [printable(_change(key, ours.get(key), value), _LONGEST_CHANGE) for key, value in kept.items()]


def _change(key: str, ours: Any, theirs: Any) -> str:
    method, _, path = key.rpartition(": ")
    start = f"{method}: " if method else ""
    if path == "training.rounds" and is_number(ours) and is_number(theirs) and ours < theirs:
        return f"{start}{ours} of {theirs} rounds"
    shown = path.removesuffix(".name").removesuffix(".scheme")
    return f"{start}{shown} {flat(ours)} in place of {flat(theirs)}"


def paper_tables(beside: Beside) -> list[Details]:
    """Tables for ours beside theirs: methods by conditions if there are several, and all numbers; none without any."""
    if not beside.entries:
        return []
    several = len({own.condition for own in beside.entries}) > 1
    interval = "The interval is that of our mean, 95% Student t over seeds."
    listed, note = _listed(beside, conditions=several), f"{_measured(beside)} {interval}"
    if not several:
        return [Details("Beside the paper", listed, f"{paper_caption(beside)} {interval}")]
    matrix = Details("Beside the paper", side_by_side(beside), paper_caption(beside))
    return [matrix, Details("Ours and the paper's" if beside.changes else "Differences from the paper", listed, note)]


def paper_caption(beside: Beside) -> str:
    """The caption of a table beside a paper: what differs, the measure, what a star means, and the source."""
    return f"{_not_the_papers(beside)} {_measured(beside)}" if beside.changes else _measured(beside)


def _measured(beside: Beside) -> str:
    measure = " and ".join(dict.fromkeys(_MEASURES[own.which].format(own.averaged) for own in beside.entries))
    mark = "" if beside.changes else f"; * marks more than {100 * FAR:g} points between them"
    return f"{measure} in %, ours ± standard deviation over seeds (published){mark}. Published: {beside.source}."


def _not_the_papers(beside: Beside) -> str:
    named = "; ".join(beside.changes[:_MOST_CHANGES])
    more = f"; and {len(beside.changes) - _MOST_CHANGES} more" if len(beside.changes) > _MOST_CHANGES else ""
    return f"Not the paper's configuration, and so no reproduction: {named}{more}."


def side_by_side(beside: Beside) -> Table:
    """A row for each method, a column for each condition: ours, and theirs in brackets."""
    found = {(own.method, own.condition): own for own in beside.entries}
    methods, conditions = (list(dict.fromkeys(key)) for key in zip(*found, strict=True))
    mark = lambda own: "" if beside.changes else own.mark
    cell = lambda own: f"{SHARE.show(own.ours)} ({100 * own.theirs:.1f}){mark(own)}" if own else NOTHING
    rows = [(method, *(cell(found.get((method, condition))) for condition in conditions)) for method in methods]
    return Table(("Method", *(condition or "Ours (published), %" for condition in conditions)), rows)


def published_by_metric(beside: Beside, condition: str = "") -> dict[tuple[str, str], float]:
    """The published accuracies under one condition by method and metric; none for another setting than the paper's."""
    if beside.changes:
        return {}
    return {(own.method, f"{own.which}_accuracy"): own.theirs for own in beside.entries if own.condition == condition}


def paper_verdict(beside: Beside) -> str:
    """A sentence on how many accuracies are near the published ones; empty if there are none."""
    known = [own for own in beside.entries if own.difference is not None]
    if not known:
        return ""
    if beside.changes:
        return _not_the_papers(beside)
    near = sum(not own.mark for own in known)
    widest = max(known, key=lambda own: abs(own.difference or 0.0))
    where = f" at {widest.condition}" if widest.condition else ""
    return (
        f"{near} of {len(known)} accuracies are within {100 * FAR:g} points of the published ones; the farthest is "
        f"{widest.method}{where}, by {signed(widest.difference or 0.0)} points."
    )


def _listed(beside: Beside, *, conditions: bool) -> Table:
    heads = ("Ours, %", "95% interval", "Seeds", "Published, %", "Difference, points")[: 4 if beside.changes else 5]
    apart = lambda own: NOTHING if own.difference is None else signed(own.difference) + own.mark
    rows = [
        (
            own.method,
            *([own.condition] if conditions else []),
            SHARE.show(own.ours),
            bounds(*mean_interval(own.ours)),
            str(own.ours.seeds),
            f"{100 * own.theirs:.1f}",
            *([] if beside.changes else [apart(own)]),
        )
        for own in beside.entries
    ]
    return Table(("Method", *(["Condition"] if conditions else []), *heads), rows)


def _entries(paper: Mapping[str, Any], summaries: Sequence[MethodSummary], condition: str) -> list[Published]:
    theirs, which = _section(paper.get("accuracy")), paper.get("which")
    measure = which if isinstance(which, str) and which in _MEASURES else "final"
    known = {printable(str(name), 80): value for name, value in theirs.items()}
    return [
        Published(
            own.method,
            printable(condition),
            measure,
            getattr(own, measure),
            float(known[own.method]),
            averaged_in_words(span_averaged(summaries)),
        )
        for own in summaries
        if isinstance(known.get(own.method), int | float) and 0 < known[own.method] <= 1
    ]


def _swept(results: Results, situation: Situation) -> dict[str, Any]:
    """The published accuracies that stand on an axis, under one condition."""
    at = lambda row: all(results.axes[place].value(row) == value for place, value in situation.items())
    row = next(filter(at, results.rows))
    start = "paper.accuracy."
    own = {key.removeprefix(start): value for key, value in row.items() if key.startswith(start)}
    return {**_mapping(row.get("paper.accuracy")), **own}


def _mapping(text: Any) -> Mapping[str, Any]:
    """A mapping, which a sweep's table has as text; empty for anything else."""
    try:
        return _section(parse_yaml(text, "paper.accuracy") if isinstance(text, str) else text)
    except ConfigError:
        return {}


def _source(paper: Mapping[str, Any]) -> str:
    return printable(str(paper.get("source") or "not named"), 300)


def _section(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
