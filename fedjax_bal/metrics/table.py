"""The table of metrics: the name, computation and unit of each, and the place where a report shows it.

The keys of `metrics.jsonl`, of the runs in `summary.json` and of `results.csv`, and the columns of a report's further
tables, are those of this table, in its order.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedjax_bal.metrics.classification import (
    OVER_CLIENTS,
    accuracy,
    balanced_accuracy,
    listed_clients,
    macro_f1,
    mean_known,
    order_statistics,
    ranked_known,
    recalls,
    worst_class_accuracy,
)
from fedjax_bal.metrics.seeds import LARGEST_SHOWN, MOST_AVERAGED, Spread
from fedjax_bal.metrics.traffic import name_faults
from fedjax_bal.registry import Registry
from fedjax_bal.validate import is_number

if TYPE_CHECKING:
    from fedjax_bal.metrics.results import RoundResult, RunHistory

NOTHING = "\N{EN DASH}"
"""The text shown for a missing number."""


class Unit(NamedTuple):
    """A unit: its symbol in headings, empty for plain numbers; the factor of values; the format of the product."""

    symbol: str
    factor: float
    digits: str

    def show(self, value: Spread) -> str:
        """Formats a mean over seeds, with the standard deviation if there is one."""
        if value.mean is None:
            return NOTHING
        numbers = [value.mean] if value.std is None else [value.mean, value.std]
        return " ± ".join(f"{self.factor * number:{self.digits}}" for number in numbers)


SHARE = Unit("%", 100, ".1f")
POINTS = Unit("points", 100, ".1f")
NATS = Unit("nats", 1, ".3f")
SECONDS = Unit("s", 1, ",.1f")
NUMBER = Unit("", 1, "g")
ROUNDS = Unit("", 1, ",.1f")
MEGABYTES = Unit("MB", 1e-6, ",.1f")
TEXT = Unit("", 1, "s")


class ReportTable(NamedTuple):
    """A table of a report: its title, and a note on all of its numbers."""

    title: str
    note: str


COMPARISON = ReportTable("Comparison of methods", "")
FURTHER = ReportTable(
    "Further accuracies", "On the test set; unless the heading says otherwise, at the last evaluation."
)
CLIENTS = ReportTable(
    "Clients",
    "The model that each client uses, on its own test rows at the last evaluation: the global one or, with a "
    "personalised method, its own. All clients count equally.",
)
OWN_MODELS = ReportTable("Clients, own models", "Each model on its own client's test rows.")
NEW_CLIENTS = ReportTable(
    "New clients",
    "Clients that joined when training was over: mean accuracy over them, each on its own test rows, of the final "
    "global model and of this model fine-tuned on the client.",
)
TIME = ReportTable(
    "Simulated time",
    "How long the rounds would take with the clients' speeds and the deadline of this configuration: the sum over "
    "rounds of the slowest chain's local training or, with asynchronous rounds, the time of the server's last step; "
    "sending is not counted.",
)
PRIVACY = ReportTable(
    "Privacy", "Epsilon of (epsilon, delta)-differential privacy after all rounds, for one client more or less."
)
OWN = ReportTable("Your own metrics", "From plug-ins, at the last evaluation.")
REPORT_TABLES = (FURTHER, CLIENTS, OWN_MODELS, NEW_CLIENTS, TIME, PRIVACY, OWN)


class Column(NamedTuple):
    """A report's column for a metric; the unit follows the heading, and the column's note follows the table's.

    Headings say what they mean without the table, and are unique: they name columns of papers' tables, too. An optional
    column is left out if it is the only optional one, for instance if all classes are many-shot.
    """

    table: ReportTable
    heading: str
    optional: bool = False
    note: str = ""


class Measured(NamedTuple):
    """A number that the compiled program measures for each client that trained, and reports for its cohort.

    Attributes:
        name: its key in what a round reports.
        enabled: `enabled(evaluation, federation)`, whether the number is needed, asked when a run is built; otherwise
            it costs nothing and is not reported.
        of_client: `of_client(trained)`, the client's number, a scalar, from a `ClientModel` of the engine. It is
            computed in evaluated rounds only, and is 0 in other rounds and for clients that don't deliver.
        of_cohort: `of_cohort(values, cohort, evaluation)`, the reported value, from the clients' numbers `[G, L]`.
        dtype: of the client's number; `float` for one that doesn't count.
    """

    name: str
    enabled: Callable[[Any, Any], bool]
    of_client: Callable[[Any], Any]
    of_cohort: Callable[[Any, Any, Any], Any]
    dtype: Any = "int32"


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric: how it is computed, and how it is shown.

    Attributes:
        name: its key everywhere.
        meaning: its definition in a sentence. "Accuracy" alone is the global model's on the test images.
        of_round: computes it from an evaluated round; nan and infinity are written as null, None means that the run
            doesn't have this metric. None for a metric of whole runs.
        of_run: computes the summary's value, None for null; "last" repeats the last round's. None for a metric of
            rounds alone.
        column: the report's column for the summary's value; None if the report shows it elsewhere or not at all.
        unit: its unit.
        swept: whether a sweep's table has the summary's value.
        best: `max` or `min` for a metric that early stopping can follow.
        measured: the measurement by the compiled program; None for a metric that the host computes alone.
        of_failed: whether the summary of a run that failed has the value, too. Results are those of finished runs.
    """

    name: str
    meaning: str
    of_round: Callable[["RoundResult"], Any] | None = None
    of_run: Callable[["RunHistory"], Any] | Literal["last"] | None = None
    column: Column | None = None
    unit: Unit = SHARE
    swept: bool = True
    best: Callable[..., Any] | None = None
    measured: Measured | None = None
    of_failed: bool = False


_SHOTS = (
    "Classes are many-, medium- or few-shot by their training rows in the whole federation; evaluation.shots sets "
    "the boundaries."
)
_AT_BEST = (
    "At the best validation: in the round with the best validation metric. Unlike the highest accuracy of all, this "
    "isn't selected on the test set."
)
_SPREAD = "Spread: standard deviation over clients."
_WORST10 = "Worst 10%: mean over the tenth of the clients with the lowest accuracies."
_TRAINED = "After local training: of the last evaluated round's cohort."
_TUNED = "Fine-tuned: the final global model, trained on each client with plain cross-entropy."

OWN_HITS = Measured(
    "own_hits",
    lambda evaluation, federation: federation.tests is not None,
    lambda trained: trained.hits_on_own_test_rows(),
    lambda hits, cohort, evaluation: hits,
)
"""The number of each client's test rows that its own model classifies correctly, for `own_accuracy`."""


def record_round(result: "RoundResult") -> dict[str, Any]:
    """Computes the metrics of a round, ready for JSON."""
    values = {metric.name: metric.of_round(result) for metric in METRICS.values() if metric.of_round}
    return {name: _plain(value) for name, value in values.items() if value is not None}


def summarise_run(run: "RunHistory") -> dict[str, Any]:
    """Computes the metrics of a run in its summary, ready for JSON."""
    values: dict[str, Any] = {}
    for metric in METRICS.values():
        if run.failure and metric.of_run and not metric.of_failed:
            values[metric.name] = None
        elif metric.of_run:
            values[metric.name] = _plain(run.last.get(metric.name) if metric.of_run == "last" else metric.of_run(run))
    return values


def _plain(value: Any) -> Any:
    """Converts a value for JSON; a number that is not finite, or too large for reports, becomes None."""
    value = value.item() if isinstance(value, np.generic | np.ndarray) else value
    return None if is_number(value) and not abs(value) <= LARGEST_SHOWN else value


def _of_run(name: str, meaning: str, of_run: Callable[["RunHistory"], Any], unit: Unit = NUMBER, **more: Any) -> Metric:
    """Makes a metric of whole runs alone."""
    return Metric(name, meaning, None, of_run, unit=unit, **more)


def _reported(name: str, meaning: str, of_run: Any = None, unit: Unit = NUMBER, **more: Any) -> Metric:
    """Makes a metric whose value the round reports under its name."""
    return Metric(name, meaning, lambda it: it.reported.get(name), of_run, unit=unit, **more)


def _test(name: str, meaning: str, score: Callable[[np.ndarray], Any], *more: Any) -> Metric:
    """Makes a metric that is a score of the test images."""
    return Metric(name, meaning, lambda it: score(it.confusion), *more)


def _validation(name: str, meaning: str, score: Callable[[np.ndarray], float], *more: Any) -> Metric:
    """Makes a metric that is a score of the validation rows."""
    return Metric(name, meaning, lambda it: None if it.validation is None else score(it.validation), *more, best=max)


def _shots(group: str, heading: str) -> Metric:
    """Makes the metric of the mean accuracy over a group of classes."""
    of_round = lambda it: mean_known(recalls(it.confusion)[it.groups[group]]) if group in it.groups else None
    meaning = f"Mean accuracy over the {group}-shot classes, by their training rows in the whole federation."
    return Metric(f"{group}_shot_accuracy", meaning, of_round, "last", Column(FURTHER, heading, True, _SHOTS))


def _over_clients(
    name: str,
    whose: str,
    values: Callable[["RoundResult"], np.ndarray | None],
    columns: Mapping[str, Column | None],
    measured: Measured | None = None,
) -> list[Metric]:
    """Makes the summaries of an accuracy over clients; runs have those whose ending is a key of `columns`, too."""

    def of_round(summary: Callable[[np.ndarray], Any], it: "RoundResult") -> float | None:
        accuracies = values(it)
        if accuracies is None:
            return None
        ranked = ranked_known(accuracies)
        return float(summary(ranked)) if len(ranked) else np.nan

    return [
        Metric(
            name + end,
            f"{words} of {whose}, each on its own client's test rows.",
            partial(of_round, summary),
            "last" if end in columns else None,
            columns.get(end),
            POINTS if end == "_std" else SHARE,
            measured=None if end else measured,
        )
        for end, (words, summary) in OVER_CLIENTS.items()
    ]


def _fine_tuned(end: str, heading: str, note: str = _TUNED, unit: Unit = SHARE) -> Metric:
    """Makes a metric of the clients' models that are fine-tuned after the last round."""
    name = f"personalised_accuracy{end}"
    words, _ = OVER_CLIENTS[end]
    meaning = f"{words} of the final model fine-tuned on each client, each on its own client's test rows."
    of_run = lambda run: run.fine_tuned.get(name) if is_number(run.fine_tuned.get(name)) else None
    return Metric(name, meaning, None, of_run, Column(OWN_MODELS, heading, note=note), unit)


def _mean_of_last(count: int, run: "RunHistory") -> float | None:
    """Computes the mean accuracy of the last `count` evaluations, or of all if there are fewer."""
    return float(np.mean([line["test_accuracy"] for line in run.lines[-count:]])) if run.last else None


def _mean_over_rounds(name: str) -> Callable[["RunHistory"], float | None]:
    """Returns a function that computes the mean of a metric over the evaluated rounds that have it."""

    def mean(run: "RunHistory") -> float | None:
        numbers = run.numbers(name)
        return math.fsum(numbers) / len(numbers) if numbers else None

    return mean


def _traffic(run: "RunHistory | None") -> int | None:
    return None if run is None else sum(line["bytes_up"] + line["bytes_down"] for line in run.lines)


def _seconds(run: "RunHistory | None") -> float | None:
    total = None if run is None else run.total("simulated_s")
    return None if total is None else round(total, 6)


def _faults(run: "RunHistory") -> str | None:
    lists = [line.get("broken_clients") for line in run.lines]
    rows = [row for named in lists if isinstance(named, list) for row in named]
    return name_faults(rows, (run.total("excluded") or 0) + (run.total("clipped") or 0))


_METRICS = (
    # Whole runs.
    _of_run("rounds", "Rounds trained.", lambda run: run.lines[-1]["round"] if run.lines else 0, of_failed=True),
    _of_run("evaluations", "Evaluated rounds.", lambda run: len(run.lines), of_failed=True),
    _of_run(
        "final_accuracy",
        "Accuracy at the last evaluation.",
        lambda run: run.last.get("test_accuracy"),
        SHARE,
        column=Column(COMPARISON, "Final accuracy"),
    ),
    _of_run(
        "best_accuracy",
        "Highest accuracy of all evaluations, and therefore selected on the test set.",
        lambda run: max(run.numbers("test_accuracy"), default=None),
        SHARE,
        column=Column(COMPARISON, "Best accuracy"),
    ),
    _of_run(
        "last5_accuracy",
        "Mean accuracy of the last five evaluations, or of all if there are fewer.",
        partial(_mean_of_last, MOST_AVERAGED),
        SHARE,
        column=Column(COMPARISON, "Mean of last 5"),
    ),
    _of_run(
        "rounds_to_target",
        "First evaluated round whose accuracy reaches `evaluation.target_accuracy`.",
        lambda run: run.rounds_to_target,
        ROUNDS,
        column=Column(COMPARISON, "Rounds to target"),
    ),
    _of_run(
        "traffic_bytes",
        "Bytes that the method sends to and from all clients.",
        _traffic,
        MEGABYTES,
        column=Column(COMPARISON, "Traffic"),
    ),
    _of_run(
        "traffic_to_target_bytes",
        "Bytes sent up to the round that reaches the target.",
        lambda run: _traffic(run.until_target),
        MEGABYTES,
        column=Column(COMPARISON, "Traffic to target"),
    ),
    # None with fewer than ten evaluations, since the heading says ten.
    _of_run(
        "last10_accuracy",
        "Mean accuracy of the last ten evaluations; only for runs with at least ten.",
        lambda run: _mean_of_last(10, run) if len(run.lines) >= 10 else None,
        SHARE,
        column=Column(FURTHER, "Mean of last 10"),
    ),
    _of_run(
        "stopped_early",
        "Round in which the run ended because its validation metric had stopped improving.",
        lambda run: run.stopped_early,
    ),
    _of_run(
        "best_validation_round",
        "Round in which the validation metric was best.",
        lambda run: run.validated.get("round"),
    ),
    _of_run(
        "accuracy_at_best_validation",
        "Accuracy in that round.",
        lambda run: run.validated.get("test_accuracy"),
        SHARE,
        column=Column(FURTHER, "At the best validation", note=_AT_BEST),
    ),
    # The global model in each evaluated round.
    _test("test_accuracy", "Fraction of the test set classified correctly.", accuracy),
    _validation("validation_accuracy", "Accuracy on the validation rows.", accuracy, "last"),
    _validation(
        "validation_balanced_accuracy", "Mean over classes of the accuracy on the validation rows.", balanced_accuracy
    ),
    _validation(
        "validation_macro_f1",
        "Mean over classes of the harmonic mean of precision and recall on the validation rows.",
        macro_f1,
    ),
    Metric(
        "validation_loss",
        "Cross-entropy on the validation rows.",
        lambda it: None if it.evaluation.validation is None else it.evaluation.validation.loss,
        unit=NATS,
        best=min,
    ),
    _test(
        "balanced_accuracy",
        "Mean over classes of the accuracy in each.",
        balanced_accuracy,
        "last",
        Column(COMPARISON, "Mean over classes"),
    ),
    _test(
        "macro_f1",
        "Mean over classes of the harmonic mean of precision and recall.",
        macro_f1,
        "last",
        Column(FURTHER, "Macro F1"),
    ),
    _test(
        "worst_class_accuracy",
        "Accuracy in the class where it is lowest.",
        worst_class_accuracy,
        "last",
        Column(COMPARISON, "Worst class"),
    ),
    _test(
        "per_class_accuracy", "Accuracy in each class, a list.", lambda confusion: list(map(_plain, recalls(confusion)))
    ),
    _shots("many", "Many-shot"),
    _shots("medium", "Medium-shot"),
    _shots("few", "Few-shot"),
    Metric("test_loss", "Cross-entropy on the test set.", lambda it: it.evaluation.loss, unit=NATS),
    # Local training, and the models that are averaged.
    _reported("train_loss", "Mean of the losses of the clients' local steps.", unit=NATS),
    Metric(
        "chain_kl",
        "Mean over chains of the divergence of a chain's classes from even ones, in nats.",
        lambda it: mean_known(it.chain_divergences),
        _mean_over_rounds("chain_kl"),
        Column(COMPARISON, "KL"),
        NATS,
        swept=False,
    ),
    Metric(
        "chain_kls",
        "These divergences in ascending order, at most a hundred of them.",
        lambda it: order_statistics(it.chain_divergences),
        unit=NATS,
    ),
    Metric(
        "cohort_kl",
        "Divergence of the classes of a round's delivering clients, taken together, from even ones, in nats.",
        lambda it: it.cohort_divergence,
        _mean_over_rounds("cohort_kl"),
        unit=NATS,
        swept=False,
    ),
    _reported("update_diversity", "Mean squared distance of the clients' updates from their mean."),
    _reported(
        "local_accuracy",
        "Share of the cohort's training rows that each client's model classifies correctly after local training.",
        unit=SHARE,
        measured=Measured(
            "local_accuracy",
            lambda evaluation, federation: evaluation.local_accuracy,
            lambda trained: trained.hits_on_own_rows(),
            lambda hits, cohort, evaluation: hits.sum() / cohort.sizes.sum(),
        ),
    ),
    _reported(
        "local_test_accuracy",
        "Mean accuracy of the cohort's models after local training, on `evaluation.local_test_images` test rows.",
        unit=SHARE,
        measured=Measured(
            "local_test_accuracy",
            lambda evaluation, federation: evaluation.local_test_images > 0,
            lambda trained: trained.hits_on_test_images(),
            lambda hits, cohort, evaluation: (
                hits.sum() / (evaluation.local_test_images * (cohort.local_steps > 0).sum())
            ),
        ),
    ),
    # Accuracies on the clients' test rows.
    *_over_clients(
        "client_accuracy",
        "the models that clients use",
        lambda it: it.client_accuracies,
        {
            "": Column(CLIENTS, "Mean over clients"),
            "_std": Column(CLIENTS, "Spread over clients", note=_SPREAD),
            "_worst10": Column(CLIENTS, "Worst 10% of clients", note=_WORST10),
        },
    ),
    *_over_clients(
        "own_accuracy",
        "the models after local training",
        lambda it: it.own_accuracies,
        {
            "": Column(OWN_MODELS, "After local training", note=_TRAINED),
            "_std": None,
            "_worst10": Column(OWN_MODELS, "Worst 10% after local training", note=_WORST10),
        },
        OWN_HITS,
    ),
    _fine_tuned("", "Fine-tuned"),
    _fine_tuned("_std", "Spread fine-tuned", _SPREAD, POINTS),
    _fine_tuned("_worst10", "Worst 10% fine-tuned", _WORST10),
    _of_run(
        "new_client_accuracy",
        "Mean over new clients of the accuracy of the final global model, each on its own client's test rows.",
        lambda run: run.fine_tuned.get("new_client_accuracy"),
        SHARE,
        column=Column(NEW_CLIENTS, "New clients"),
    ),
    _of_run(
        "new_client_fine_tuned_accuracy",
        "Mean over new clients of the accuracy of this model fine-tuned on each, each on its own client's test rows.",
        lambda run: run.fine_tuned.get("new_client_fine_tuned_accuracy"),
        SHARE,
        column=Column(NEW_CLIENTS, "New clients fine-tuned"),
    ),
    Metric(
        "client_accuracies",
        "The accuracies behind `client_accuracy`, a list in the order of the clients, with null for a client without "
        "test rows; left out for more than a thousand clients.",
        lambda it: None if it.client_accuracies is None else listed_clients(it.client_accuracies),
    ),
    # Counts since the previous evaluation.
    _reported("clients", "Clients whose update arrived since the previous evaluation."),
    _reported("dropped", "Clients that were selected as well, but whose update did not arrive, or too late."),
    _reported(
        "bytes_up",
        "Bytes sent by clients since the previous evaluation, including those for this evaluation.",
    ),
    _reported(
        "bytes_down",
        "Bytes sent to clients since the previous evaluation, including those for this evaluation.",
    ),
    _reported(
        "simulated_s",
        "Seconds that the rounds would take with the clients' simulated speeds.",
        _seconds,
        SECONDS,
        column=Column(TIME, "Simulated time"),
    ),
    _of_run(
        "simulated_s_to_target",
        "Seconds up to the round that reaches the target.",
        lambda run: _seconds(run.until_target),
        SECONDS,
        column=Column(TIME, "Simulated time to target", note="To target: of runs that reach it."),
    ),
    _reported(
        "excluded",
        "Updates left out because they were not finite or too large.",
        lambda run: run.total("excluded"),
        swept=False,
        of_failed=True,
    ),
    _reported(
        "clipped",
        "Updates scaled down to the largest norm.",
        lambda run: run.total("clipped"),
        swept=False,
        of_failed=True,
    ),
    _reported(
        "broken_clients", "Rounds, clients and reasons of such updates.", _faults, TEXT, swept=False, of_failed=True
    ),
    # Effects of methods on class imbalance.
    _of_run(
        "clients_per_chain",
        "Clients that train one after another in a chain (mediator).",
        lambda run: run.clients_per_chain,
        swept=False,
        of_failed=True,
    ),
    _of_run("copies", "Augmented images added to the federation.", lambda run: run.copies, swept=False, of_failed=True),
    # Measurements by methods' parts.
    _reported(
        "epsilon",
        "Epsilon of (epsilon, delta)-differential privacy after these rounds, for one client more or less.",
        "last",
        column=Column(PRIVACY, "Epsilon"),
    ),
)
METRICS = Registry({metric.name: metric for metric in _METRICS})
"""All metrics by name, in the order of the table."""
