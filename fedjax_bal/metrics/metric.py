"""What a metric is made of: its unit, its column in a report, and what it computes where."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedjax_bal.metrics.seeds import Spread

if TYPE_CHECKING:
    from fedjax_bal.metrics.results import RoundResult, RunHistory

NOTHING = "\N{EN DASH}"
"""Stands for a number that is missing."""


class Unit(NamedTuple):
    """A symbol for headings, empty for plain numbers; the factor of a value; the format of the product."""

    symbol: str
    factor: float
    digits: str

    def show(self, value: Spread) -> str:
        """A mean over seeds, with the standard deviation if there is one."""
        if value.mean is None:
            return NOTHING
        numbers = [value.mean] if value.std is None else [value.mean, value.std]
        return " ± ".join(f"{self.factor * number:{self.digits}}" for number in numbers)


SHARE = Unit("%", 100, ".1f")
POINTS = Unit("points", 100, ".1f")
NATS = Unit("nats", 1, ".3f")
SECONDS = Unit("s", 1, ",.1f")
NUMBER = Unit("", 1, "g")
TEXT = Unit("", 1, "s")


class ReportTable(NamedTuple):
    """A table of a report besides the comparison: its title, and a note on all of its numbers."""

    title: str
    note: str


CLASSES = ReportTable(
    "Classes",
    "On the test set, at the last evaluation.",
)
CURVE = ReportTable("Other summaries of the curve", "")
CLIENTS = ReportTable(
    "Clients",
    "The model that each client uses, on its own test images at the last evaluation: the global one, or its own with a "
    "method that gives it one. Every client counts the same.",
)
OWN_MODELS = ReportTable(
    "Clients, own models",
    "Each model on its own client's test images.",
)
TIME = ReportTable(
    "Simulated time",
    "How long the rounds would take with the clients' speeds and the deadline of this configuration: the sum over "
    "rounds of the slowest chain's local training; sending is not counted.",
)
PRIVACY = ReportTable(
    "Privacy",
    "Epsilon of (epsilon, delta)-differential privacy after all rounds, for one client more or less.",
)
OWN = ReportTable("Your own metrics", "From plug-ins, at the last evaluation.")
REPORT_TABLES = (CLASSES, CURVE, CLIENTS, OWN_MODELS, TIME, PRIVACY, OWN)


class Column(NamedTuple):
    """A column of a report for a metric; the unit follows the heading, and its note that of the table.

    An optional column is left out if it is the only one, as where all classes are many-shot.
    """

    table: ReportTable
    heading: str
    optional: bool = False
    note: str = ""


class Measured(NamedTuple):
    """A number that the compiled program measures for each client that trained, and reports for its cohort.

    Attributes:
        name: its key in what a round reports.
        asked: `asked(evaluation, federation)`, from the options and known when the program is traced: a number that
            isn't asked for costs nothing and is not reported.
        of_client: `of_client(trained)`, the client's number, a scalar, from a `ClientModel` of the engine. It is
            computed in evaluated rounds only, and is 0 in other rounds and for clients that don't deliver.
        of_cohort: `of_cohort(values, cohort, evaluation)`, the reported value, from the clients' numbers `[G, L]`.
    """

    name: str
    asked: Callable[[Any, Any], bool]
    of_client: Callable[[Any], Any]
    of_cohort: Callable[[Any, Any, Any], Any]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric: everything that is computed of it, and how it is shown.

    Attributes:
        name: its key everywhere.
        meaning: what it is, in a sentence. Accuracy without more words is the global model's on the test images.
        of_round: computes it from an evaluated round; nan and infinity are written as null, None means that the run
            doesn't have this metric. None for a metric of whole runs.
        of_run: computes the summary's value, None for null; "last" repeats the last round's. None for a metric of
            rounds alone.
        column: where a report shows the summary's value; None for nowhere, or for a place of its own.
        unit: its unit.
        swept: whether a sweep's table has the summary's value.
        best: `max` or `min` of a metric that early stopping can follow.
        measured: what the compiled program measures for it; None for a metric that the host computes alone.
        drawn: whether a report draws the rounds' values.
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
    drawn: bool = False
