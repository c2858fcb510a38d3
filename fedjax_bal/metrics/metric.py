"""A metric as it is declared, and the tables of a report in which it can have a column."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedjax_bal.metrics.units import SHARE, Unit

if TYPE_CHECKING:
    from fedjax_bal.metrics.results import RoundResult, RunHistory


class ReportTable(NamedTuple):
    """A table of a report beside the comparison: its title, and a note on all of its numbers."""

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


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric.

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
    """

    name: str
    meaning: str
    of_round: Callable[["RoundResult"], Any] | None = None
    of_run: Callable[["RunHistory"], Any] | Literal["last"] | None = None
    column: Column | None = None
    unit: Unit = SHARE
    swept: bool = True
    best: Callable[..., Any] | None = None
