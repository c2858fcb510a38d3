"""Numbers as people read them: table cells, and the answer in a sentence that claims no more than the runs show."""

from collections.abc import Sequence
from typing import NamedTuple

from fedjax_bal.report.statistics import Difference, MethodSummary, Spread

MINUS = "\N{MINUS SIGN}"
NOTHING = "\N{EN DASH}"
LONGEST_NAME = 80
INTERVAL_IN_WORDS = (
    "The interval is a two-sided 95% Student t interval for the mean difference over paired seeds. If the seeds were "
    "drawn anew many times, about 95 of 100 such intervals would hold the true mean difference. It speaks of the "
    "variation between seeds only, not of other partitions or data sets, and each interval is for one comparison: "
    "of many, some exclude 0 by chance."
)


class Table(NamedTuple):
    """A comparison as text.

    Attributes:
        headings: one per column.
        rows: one per method, as many cells as there are headings.
    """

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]


def printable(text: str, limit: int | None = None) -> str:
    r"""A name in one line, without control characters, shortened where there is no room for more.

    Args:
        text: from anywhere.
        limit: the most characters to keep, or None for all.

    Returns:
        The text that can be shown.

    >>> printable("a\nb\x00"), printable("Ankle boot", 6)
    ('a b\ufffd', 'Ankle…')
    """
    line = " ".join(text.split())
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)
    return shown if limit is None or len(shown) <= limit else shown[: limit - 1].rstrip() + "…"


def percent(value: Spread) -> str:
    """A share over seeds in percent: mean, and standard deviation where there is one.

    Args:
        value: shares in [0, 1].

    Returns:
        Such as "71.2 ± 0.8"; a dash without a value.

    >>> percent(Spread(0.7123, 0.008, 3)), percent(Spread(0.5, None, 1))
    ('71.2 ± 0.8', '50.0')
    """
    if value.mean is None:
        return NOTHING
    return f"{100 * value.mean:.1f}" if value.std is None else f"{100 * value.mean:.1f} ± {100 * value.std:.1f}"


def points(value: Difference | None) -> str:
    """A difference in percentage points, with its interval where there is one.

    Args:
        value: differences of shares; None for the method that the others are set against.

    Returns:
        Such as "+1.9 [+0.4, +3.4]"; a dash without a value.

    >>> points(Difference(0.019, 0.004, 0.034, 3)), points(Difference(0.5, None, None, 1)), points(None)
    ('+1.9 [+0.4, +3.4]', '+50.0', '–')
    """
    if value is None or value.mean is None:
        return NOTHING
    if value.low is None or value.high is None:
        return _signed(value.mean)
    return f"{_signed(value.mean)} [{_signed(value.low)}, {_signed(value.high)}]"


def megabytes(traffic_bytes: float | None) -> str:
    """Bytes in MB of 10^6 bytes, to three figures or whole numbers.

    Args:
        traffic_bytes: the count, or None.

    Returns:
        Such as "1,235" or "0.0123"; a dash without a value.

    >>> megabytes(1_234_567_890), megabytes(12_345), megabytes(None)
    ('1,235', '0.0123', '–')
    """
    if traffic_bytes is None:
        return NOTHING
    value = traffic_bytes / 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def row(summary: MethodSummary, target: bool = True) -> tuple[str, ...]:
    """One method's line of the comparison.

    Args:
        summary: of the method.
        target: whether the table has the column of rounds to a target accuracy.

    Returns:
        One cell for each heading of `table`.

    >>> one = Spread(0.5, None, 1)
    >>> row(MethodSummary("fedavg", 1, one, one, one, 12.0, 1, 2e6, None))
    ('fedavg', '50.0', '–', '50.0', '50.0', '12', '2', '1')
    """
    missing = summary.seeds - summary.final.seeds
    final = percent(summary.final) + (f" ({summary.final.seeds} of {summary.seeds} seeds)" if missing else "")
    cells = [summary.method, final, points(summary.difference), percent(summary.last5), percent(summary.best)]
    cells += [_rounds_to_target(summary)] if target else []
    return (*cells, megabytes(summary.traffic_bytes), str(summary.seeds))


def table(summaries: Sequence[MethodSummary], target_accuracy: float | None = None, short: bool = False) -> Table:
    """The whole comparison as text, for terminal and page alike.

    Args:
        summaries: from `compare`.
        target_accuracy: the share that counts as reached; None leaves that column out.
        short: headings for a narrow terminal.

    Returns:
        Headings and rows; accuracies in percent, differences in percentage points.

    >>> one = Spread(0.5, None, 1)
    >>> table([MethodSummary("fedavg", 1, one, one, one, None, 0, 2e6, None)]).rows
    [('fedavg', '50.0', '–', '50.0', '50.0', '2', '1')]
    """
    target = target_accuracy is not None
    first = summaries[0].method if summaries else "the first"
    paired = any(summary.difference and summary.difference.low is not None for summary in summaries)
    if short:
        goal = [f"to {100 * target_accuracy:g}%"] if target_accuracy is not None else []
        versus = f"vs {first}" + (" [95%]" if paired else "")
        return Table(
            ("method", "final", versus, "last 5", "best", *goal, "MB", "seeds"),
            [row(summary, target) for summary in summaries],
        )
    headings = [
        "Method",
        "Final accuracy, %",
        f"Difference from {first}, points" + (" [95% interval]" if paired else ""),
    ]
    headings += ["Mean of last 5, %", "Best, %"]
    headings += [f"Rounds to {100 * target_accuracy:g}%"] if target_accuracy is not None else []
    headings += ["Traffic, MB", "Seeds"]
    return Table(tuple(headings), [row(summary, target) for summary in summaries])


def verdict(summaries: Sequence[MethodSummary]) -> str:
    """Which method is best by mean final accuracy, and how far from the first, without overclaiming.

    Args:
        summaries: from `compare`.

    Returns:
        One or two sentences: "no clear difference" where the interval covers 0, and that there is no interval where
        only one seed was run.

    >>> one = Spread(0.5, None, 1)
    >>> verdict([MethodSummary("fedavg", 1, one, one, one, None, 0, 2e6, None)])
    'fedavg reaches a final accuracy of 50.0% (one seed: no interval).'
    """
    ranked = sorted((s for s in summaries if s.final.mean is not None), key=lambda s: -(s.final.mean or 0.0))
    if not ranked:
        return "No run has a final accuracy yet, so there is nothing to compare."
    best, first = ranked[0], summaries[0]
    if len(ranked) == 1:
        one = (
            "one seed: no interval" if best.final.seeds == 1 else f"mean ± standard deviation, {best.final.seeds} seeds"
        )
        return f"{best.method} reaches a final accuracy of {_percent_sign(best.final)} ({one})."
    lead = f"{best.method} has the highest mean final accuracy, {_percent_sign(best.final)}"
    if best is first:
        return f"{lead}; the next is {ranked[1].method}, {_distance(ranked[1], first.method)}."
    return f"{lead}, {_distance(best, first.method)}."


def _distance(summary: MethodSummary, first: str) -> str:
    difference = summary.difference
    if difference is None or difference.mean is None:
        return f"with no seed in common with {first}, so their difference is not known"
    side = "above" if difference.mean >= 0 else "below"
    size = f"{abs(100 * difference.mean):.1f} percentage points {side} {first}"
    if difference.low is None or difference.high is None:
        return f"{size} (one seed in common: no interval, so this may be chance)"
    interval = f"95% interval {_signed(difference.low)} to {_signed(difference.high)}, {difference.pairs} paired seeds"
    clear = "no clear difference" if difference.low <= 0 <= difference.high else "the interval excludes 0"
    return f"{size} ({interval}): {clear}"


def _percent_sign(value: Spread) -> str:
    return f"{percent(value)}%"


def _rounds_to_target(summary: MethodSummary) -> str:
    share = f"{summary.reached} of {summary.seeds} seeds"
    if summary.rounds_to_target is None:
        return f"not reached ({share})" if summary.seeds > 1 else "not reached"
    rounds = f"{summary.rounds_to_target:.1f}".removesuffix(".0")
    return rounds if summary.reached == summary.seeds else f"{rounds} ({share})"


def _signed(share: float) -> str:
    text = f"{100 * share:+.1f}"
    return ("+0.0" if text == "-0.0" else text).replace("-", MINUS)
