"""What a table of accuracies leaves out, by class, client, validation and time; only where there is something."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_bal.metrics import Spread, spread
from fedjax_bal.report.wording import LONGEST_NAME, NOTHING, Table, percent, printable


class Details(NamedTuple):
    """A further table of the report.

    Attributes:
        title: its heading.
        table: a row for each method.
        note: what its numbers are.
    """

    title: str
    table: Table
    note: str


class _Plan(NamedTuple):
    """What a table is made of: the keys of `runs` with their headings, its words, and how a number is written."""

    title: str
    columns: Mapping[str, str]
    note: str
    cell: Callable[[Spread], str] = percent


def _seconds(value: Spread) -> str:
    if value.mean is None:
        return NOTHING
    return f"{value.mean:,.1f}" + (f" ± {value.std:,.1f}" if value.std is not None else "")


_MOST_BROKEN = 12  # runs of which broken clients are named
_LONGEST_TEXT = 400

_SHOTS = {
    "many_shot_accuracy": "Many-shot, %",
    "medium_shot_accuracy": "Medium-shot, %",
    "few_shot_accuracy": "Few-shot, %",
}
_PLANS = (
    _Plan(
        "Classes",
        {"balanced_accuracy": "Mean over classes, %", "worst_class_accuracy": "Worst class, %", **_SHOTS},
        "On the test set, at the last evaluation. Classes are many-, medium- or few-shot by their training images in "
        "the whole federation; evaluation.shots says where the groups end.",
    ),
    _Plan(
        "Other readings of the curve",
        {
            "last10_accuracy": "Mean of last 10, %",
            "accuracy_at_best_validation": "Test accuracy at the best validation, %",
        },
        "The mean of a run's last ten evaluations. The accuracy on the test set in the round in which the validation "
        "metric was best, which unlike the best of all nobody has picked on the test set.",
    ),
    _Plan(
        "Clients, global model",
        {
            "client_accuracy": "Mean, %",
            "client_accuracy_std": "Spread, points",
            "client_accuracy_worst10": "Worst 10%, %",
        },
        "The global model on each client's own test images, at the last evaluation; every client counts the same. "
        "Spread: standard deviation over clients. Worst 10%: mean of that tenth of them.",
    ),
    _Plan(
        "Clients, own models",
        {
            "own_accuracy": "After local training, %",
            "own_accuracy_worst10": "Worst 10%, %",
            "personalised_accuracy": "Fine-tuned, %",
            "personalised_accuracy_std": "Spread, points",
            "personalised_accuracy_worst10": "Worst 10% fine-tuned, %",
        },
        "Each model on its own client's test images. After local training: of the last evaluated round's cohort. "
        "Fine-tuned: the final global model, trained on each client with plain cross-entropy.",
    ),
    _Plan(
        "Simulated time",
        {"simulated_s": "All rounds, s", "simulated_s_to_target": "To the target accuracy, s"},
        "How long the rounds would take with the clients' speeds and the deadline of this configuration: the sum over "
        "rounds of the slowest chain's local training; sending is not counted. To the target: of runs that reach it.",
        _seconds,
    ),
)
DETAILS = tuple(key for plan in _PLANS for key in plan.columns)
"""The keys of a run that these tables show."""


def details(runs: Sequence[Mapping[str, Any]]) -> list[Details]:
    """The tables for which there are numbers.

    Args:
        runs: `runs` of a `summary.json`; what is missing or None has no cell, and a column without cells is left out,
            as are many-, medium- and few-shot classes where all classes are of one kind.

    Returns:
        The tables.

    >>> run = {"method": "fedavg", "seed": 0, "balanced_accuracy": 0.5, "worst_class_accuracy": 0.25}
    >>> details([run])[0].table
    Table(headings=('Method', 'Mean over classes, %', 'Worst class, %'), rows=[('fedavg', '50.0', '25.0')])
    """
    known = {key for key in DETAILS if any(run.get(key) is not None for run in runs)}
    if len(known & set(_SHOTS)) < 2:
        known -= set(_SHOTS)
    return [_details(plan, runs, known) for plan in _PLANS if known & set(plan.columns)]


def ending(runs: Sequence[Mapping[str, Any]]) -> str | None:
    """Which runs ended before their last round, in words.

    Args:
        runs: `runs` of a `summary.json`.

    Returns:
        What there is to know when numbers are compared; None where no run was stopped early.

    >>> ending([{"method": "a", "seed": 3, "stopped_early": 40}]).split(": ")[1].split(".")[0]
    'a after round 40 (seed 3)'
    """
    early: dict[str, list[str]] = {}
    for run in runs:
        if run.get("stopped_early") is not None:
            early.setdefault(run["method"], []).append(f"{run['stopped_early']} (seed {run['seed']})")
    if not early:
        return None
    named = "; ".join(f"{printable(name, LONGEST_NAME)} after round {', '.join(at)}" for name, at in early.items())
    return (
        f"Stopped early, because the metric on validation images no longer got better: {named}. Final accuracies are "
        "those of these rounds; that of the best round by validation is further below."
    )


def broken(runs: Sequence[Mapping[str, Any]]) -> str | None:
    """Which clients were left out of rounds, or had their updates scaled down, in words.

    Args:
        runs: `runs` of a `summary.json`.

    Returns:
        What there is to know when numbers are compared; None where no client broke.

    >>> broken([{"method": "a", "seed": 3, "excluded": 2, "clipped": 0, "broken_clients": "client 7 in round 4"}])
    'Broken clients. a, seed 3: 2 left out, 0 scaled down (client 7 in round 4).'
    """
    told = [
        f"{printable(run['method'], LONGEST_NAME)}, seed {run['seed']}: {run['excluded'] or 0:g} left out, "
        f"{run['clipped'] or 0:g} scaled down ({printable(run['broken_clients'], _LONGEST_TEXT)})"
        for run in runs
        if run.get("broken_clients")
    ]
    rest = f"; and {len(told) - _MOST_BROKEN} more runs" if len(told) > _MOST_BROKEN else ""
    return f"Broken clients. {'; '.join(told[:_MOST_BROKEN])}{rest}." if told else None


def _details(plan: _Plan, runs: Sequence[Mapping[str, Any]], known: set[str]) -> Details:
    keys = [key for key in plan.columns if key in known]
    rows = []
    for method in dict.fromkeys(run["method"] for run in runs):
        own = [run for run in runs if run["method"] == method]
        cells = [plan.cell(spread([run.get(key) for run in own])) for key in keys]
        rows.append((printable(method, LONGEST_NAME), *cells))
    return Details(plan.title, Table(("Method", *(plan.columns[key] for key in keys)), rows), plan.note)
