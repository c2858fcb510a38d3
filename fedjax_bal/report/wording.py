"""Wording of numbers: table cells, and a verdict in a sentence that claims no more than the runs show."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedjax_bal.metrics import (
    MOST_AVERAGED,
    NOTHING,
    SHARE,
    Difference,
    MethodSummary,
    Spread,
    paired_difference,
)

MINUS = "\N{MINUS SIGN}"
LONGEST_NAME = 80
DEVIATION_IN_WORDS = "“±” is the sample standard deviation over seeds. "
_BEST_IN_WORDS = "“Best” is the highest accuracy of a run, selected on the test set, so optimistic. "
_COUNTS = ("no", "one", "two", "three", "four", "five")
_INTERVAL = (
    "The interval is a two-sided 95% Student t interval for the mean difference over paired seeds. If the seeds were "
    "drawn again many times, about 95 of 100 such intervals would hold the true mean difference. {covered}, and each "
    "interval is for one comparison: of many, some exclude 0 by chance."
)
_SEEDS_ALONE = "It reflects variation between seeds only, not between partitions or data sets"
_PARTITIONS_TOO = (
    "Each seed has a partition of its own, so that it covers the draw of the partition too, but not other data sets"
)
_CROSSED = (
    "The seeds on one partition are averaged first, so that it covers the draw of the partition, but not other seeds "
    "or data sets"
)

KL_IN_WORDS = (
    "KL: divergence of the classes behind each averaged model from uniform, in nats (0 is even), mean over chains, "
    "evaluated rounds and seeds."
)


def interval_in_words(*, partitions: bool, crossed: bool = False) -> str:
    """What the 95% intervals say.

    `partitions` tells whether each seed has a partition of its own, `crossed` whether several run on each of several.
    """
    return _INTERVAL.format(covered=_CROSSED if crossed else _PARTITIONS_TOO if partitions else _SEEDS_ALONE)


class Table(NamedTuple):
    """A table as text: a heading for each column, and rows of as many cells."""

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]


def printable(text: str, limit: int | None = None) -> str:
    """A name in one line, without control characters, shortened to `limit` characters if given."""
    line = " ".join(text.split())
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)
    return shown if limit is None or len(shown) <= limit else shown[: limit - 1].rstrip() + "…"


def plural(count: int, noun: str) -> str:
    """A number with its noun: 1 seed, 2 seeds."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def flat(value: Any) -> str:
    """A value of a configuration in one line, without the brackets of mappings."""
    if isinstance(value, dict):
        return ", ".join(_pair(key, entry) for key, entry in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(flat(entry) for entry in value) + "]"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _pair(key: Any, value: Any) -> str:
    if key in ("name", "scheme", "recipe") and isinstance(value, str):
        return value
    return f"{key} ({flat(value)})" if isinstance(value, dict) else f"{key} {flat(value)}"


def points(value: Difference | None) -> str:
    """A difference of shares in percentage points, with its interval if known; a dash for None, the baseline's."""
    if value is None or value.mean is None:
        return NOTHING
    if value.low is None or value.high is None:
        return signed(value.mean)
    return f"{signed(value.mean)} [{signed(value.low)}, {signed(value.high)}]"


def bounds(low: float | None, high: float | None) -> str:
    """An interval of shares in percent; a dash for None."""
    return NOTHING if low is None or high is None else f"[{100 * low:.1f}, {100 * high:.1f}]"


def megabytes(traffic_bytes: float | None) -> str:
    """Bytes in MB of 10^6 bytes, to three figures or integers; a dash for None."""
    if traffic_bytes is None:
        return NOTHING
    value = traffic_bytes / 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def nats(value: float | None) -> str:
    """A divergence in nats, to three decimals; a dash for None."""
    return NOTHING if value is None else f"{value:.3f}"


def shows_divergence(summaries: Sequence[MethodSummary]) -> bool:
    """Tells whether the table has a column of divergences: if a method evens out classes, by chains or copies."""
    return any(summary.evens for summary in summaries) and any(summary.chain_kl is not None for summary in summaries)


def table_notes(summaries: Sequence[MethodSummary], *, partitions: bool, crossed: bool = False) -> list[str]:
    """Says what the numbers of the comparison's table are, as far as it has them; the flags as `interval_in_words`."""
    paired = any(own.difference and own.difference.low is not None for own in summaries)
    deviation = DEVIATION_IN_WORDS * any(own.final.std is not None for own in summaries)
    interval = interval_in_words(partitions=partitions, crossed=crossed) if paired else ""
    span = span_averaged(summaries)
    mean = f"“{averaged_heading(span).capitalize()}” averages the {averaged_in_words(span)} of a run. "
    spreads = f"{deviation}{mean}{_BEST_IN_WORDS}{interval}".strip()
    return [KL_IN_WORDS, spreads] if shows_divergence(summaries) else [spreads]


class _Column(NamedTuple):
    """A column of the comparison: its headings on the page and in a narrow terminal, None for none, and its cells."""

    heading: str
    short: str | None
    cell: Callable[[MethodSummary], str]


def table(
    summaries: Sequence[MethodSummary],
    target_accuracy: float | None = None,
    short: bool = False,
    baseline: str | None = None,
) -> Table:
    """The whole comparison as text, for terminal and page; accuracies in percent, differences in percentage points.

    Where nothing is set against anything, there is no column of differences.

    Args:
        summaries: from `compare`.
        target_accuracy: the share that counts as reached; None leaves its columns out.
        short: for a narrow terminal: short headings, no columns of the best accuracy and of traffic to the target, and
            none of the final accuracy if there is one of `chain_kl` (see `shows_divergence`).
        baseline: the method from which differences are taken, for their heading; None for the first.
    """
    columns = _columns(summaries, target_accuracy, baseline or (summaries[0].method if summaries else "the first"))
    shown = [(column.short if short else column.heading, column.cell) for column in columns]
    headings, cells = zip(*((heading, cell) for heading, cell in shown if heading), strict=True)
    return Table(headings, [tuple(cell(summary) for cell in cells) for summary in summaries])


def _columns(summaries: Sequence[MethodSummary], target: float | None, first: str) -> list[_Column]:
    paired = any(summary.difference and summary.difference.low is not None for summary in summaries)
    uneven, goal = shows_divergence(summaries), "" if target is None else f"{100 * target:g}%"
    mean = averaged_heading(span_averaged(summaries))
    difference = f"Difference from {first}, points" + (" [95% interval]" if paired else "")
    apart = [_Column(difference, f"vs {first}" + (" [95%]" if paired else ""), lambda own: points(own.difference))]
    to_target = [
        _Column(f"Rounds to {goal}", f"to {goal}", _rounds_to_target),
        _Column(f"Traffic to {goal}, MB", None, _traffic_to_target),
    ]
    return [
        _Column("Method", "method", lambda own: own.method),
        _Column(f"{mean.capitalize()}, %", mean.removeprefix("mean of "), _last5),
        *(apart if any(own.difference for own in summaries) else []),
        _Column("Worst class, %", "worst", lambda own: SHARE.show(own.worst_class)),
        _Column("Final, %", None if uneven else "final", lambda own: SHARE.show(own.final)),
        _Column("Best, %", None, lambda own: SHARE.show(own.best)),
        *([_Column("KL", "KL", lambda own: nats(own.chain_kl))] if uneven else []),
        *(to_target if goal else []),
        _Column("Traffic, MB", "MB", lambda own: megabytes(own.traffic_bytes)),
        _Column("Seeds", "seeds", lambda own: str(own.seeds)),
    ]


def tied(summaries: Sequence[MethodSummary]) -> bool:
    """Tells whether several methods have the same mean of the last evaluations to the digit shown."""
    shown = [f"{100 * summary.last5.mean:.1f}" for summary in summaries if summary.last5.mean is not None]
    return len(shown) > 1 and len(set(shown)) == 1


def leader(summaries: Sequence[MethodSummary]) -> MethodSummary | None:
    """The method that is ahead of each other one, the 95% interval of their difference excluding 0; None without."""
    ranked = _ranked(summaries)
    return ranked[0] if len(ranked) > 1 and not tied(ranked) and _rival(ranked) is None else None


def _rival(ranked: Sequence[MethodSummary]) -> tuple[MethodSummary, Difference] | None:
    """The best other method that the first may not be ahead of, and the first one's difference from it."""
    pairs = ((own, paired_difference(ranked[0].last5_of_seeds, own.last5_of_seeds)) for own in ranked[1:])
    return next(((own, lead) for own, lead in pairs if lead.low is None or lead.low <= 0), None)


def averaged_in_words(span: tuple[int, int]) -> str:
    """The evaluations of which the headline is a mean, such as: last five evaluations."""
    least, most = span
    if most == 1:
        return "only evaluation"
    return f"last {_COUNTS[most] if least == most else f'{_COUNTS[least]} to {_COUNTS[most]}'} evaluations"


def averaged_heading(span: tuple[int, int]) -> str:
    """The heading of their mean: mean of last 5, mean of last 2 to 5."""
    least, most = span
    return f"mean of last {most if least == most else f'{least} to {most}'}"


def span_averaged(summaries: Sequence[MethodSummary]) -> tuple[int, int]:
    """How many evaluations the headlines of methods are means of, the fewest and the most."""
    known = [own.averaged for own in summaries if own.last5.mean is not None] or [(MOST_AVERAGED, MOST_AVERAGED)]
    return min(least for least, _ in known), max(most for _, most in known)


def verdict(summaries: Sequence[MethodSummary]) -> str:
    """One or two sentences on the method with the highest mean of its last five, and its distance from the first.

    They name no winner where the interval of a difference covers 0 or all end at the same accuracy, and say that there
    is no interval if only one seed was run.
    """
    ranked = _ranked(summaries)
    if not ranked:
        return "No run has an accuracy yet, so there is nothing to compare."
    best, first, when = ranked[0], summaries[0], averaged_in_words(span_averaged(ranked))
    if len(ranked) == 1:
        seeds = "one seed: no interval"
        several = f"mean ± standard deviation, {best.last5.seeds} seeds"
        return (
            f"{best.method} reaches an accuracy of {_percent_sign(best.last5)} over its {when} "
            f"({seeds if best.last5.seeds == 1 else several})."
        )
    if tied(ranked):
        same = f"{100 * (best.last5.mean or 0.0):.1f}%"
        return f"{_all(ranked, summaries)} have the same mean accuracy over their {when}, {same}."
    rival = _rival(ranked)
    if rival is not None and rival[1].low is not None:
        other, lead = rival
        both = f"{best.method} {_percent_sign(best.last5)}, {other.method} {_percent_sign(other.last5)}"
        also = "" if first in (best, other) else f" {best.method} is {_distance(best, first.method)}."
        return f"No clear winner over the {when}: {both}, {_apart(lead)}.{also}"
    lead = f"{best.method} has the highest accuracy over its {when}, {_percent_sign(best.last5)}"
    if best is first:
        return f"{lead}; the next is {ranked[1].method}, {_distance(ranked[1], first.method)}."
    return f"{lead}, {_distance(best, first.method)}."


def lead(summaries: Sequence[MethodSummary]) -> str:
    """The method with the highest mean of its last five, and its distance from the first, in a few words."""
    ranked, first = _ranked(summaries), summaries[0]
    if tied(ranked):
        return f"all {100 * (ranked[0].last5.mean or 0.0):.1f}%"
    best, rival = ranked[0], _rival(ranked)
    if rival is not None and rival[1].low is not None:
        other, lead = rival
        both = f"{best.method} {_percent_sign(best.last5)}, {other.method} {_percent_sign(other.last5)}"
        return f"no clear winner ({both}, {points(lead)} points)"
    difference = best.difference
    known = difference is not None and difference.mean is not None
    seed = ", one seed" if difference is not None and difference.low is None else ""
    apart = f" ({points(difference)} points from {first.method}{seed})" if known else ""
    return f"{best.method} {_percent_sign(best.last5)}{apart}"


def _ranked(summaries: Sequence[MethodSummary]) -> list[MethodSummary]:
    """Those with an accuracy, the highest mean of the last five first."""
    return sorted((s for s in summaries if s.last5.mean is not None), key=lambda s: -(s.last5.mean or 0.0))


def _all(ranked: Sequence[MethodSummary], summaries: Sequence[MethodSummary]) -> str:
    if len(ranked) < len(summaries):
        return f"The {len(ranked)} methods that have an accuracy"
    return "Both methods" if len(ranked) == 2 else f"All {len(ranked)} methods"


def _distance(summary: MethodSummary, first: str) -> str:
    difference = summary.difference
    if difference is None or difference.mean is None:
        return f"with no seed in common with {first}, so their difference is not known"
    side = "above" if difference.mean >= 0 else "below"
    size = f"{abs(100 * difference.mean):.1f} percentage points {side} {first}"
    if difference.low is None or difference.high is None:
        return f"{size} (one seed only: no interval; the difference may be chance)"
    clear = "no clear difference" if difference.low <= 0 <= difference.high else "the interval excludes 0"
    return f"{size} ({_interval(difference)}): {clear}"


def _apart(lead: Difference) -> str:
    return f"{100 * (lead.mean or 0.0):.1f} percentage points apart ({_interval(lead)})"


def _interval(value: Difference) -> str:
    ends = f"{signed(value.low or 0.0)} to {signed(value.high or 0.0)}"
    return f"95% interval {ends}, {value.pairs} paired seeds"


def _percent_sign(value: Spread) -> str:
    return f"{SHARE.show(value)}%"


def _last5(summary: MethodSummary) -> str:
    missing = summary.finished < summary.seeds
    return SHARE.show(summary.last5) + f" ({summary.finished} of {summary.seeds} seeds)" * missing


def _rounds_to_target(summary: MethodSummary) -> str:
    if summary.rounds_to_target is None:
        return "not reached"
    rounds = f"{summary.rounds_to_target:.1f}".removesuffix(".0")
    return rounds + f" ({summary.reached} of {summary.seeds} seeds)" * (summary.reached < summary.seeds)


def _traffic_to_target(summary: MethodSummary) -> str:
    # The rounds stand beside it and say how many seeds did not reach the target; a second time would be too wide.
    if summary.rounds_to_target is None:
        return "not reached"
    sent = megabytes(summary.traffic_to_target_bytes)
    return (
        sent
        if sent == NOTHING or summary.reached == summary.seeds
        else f"{sent} ({summary.reached} of {summary.seeds})"
    )


def signed(share: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    text = f"{100 * share:+.1f}"
    return ("+0.0" if text == "-0.0" else text).replace("-", MINUS)
