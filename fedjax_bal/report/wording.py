"""Results as text: table cells, and a verdict that claims no more than the runs show."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fedjax_bal.metrics import (
    MANY_EVALUATIONS,
    MOST_AVERAGED,
    NOTHING,
    SHARE,
    Difference,
    MethodSummary,
    paired_difference,
)

MINUS = "\N{MINUS SIGN}"
LONGEST_NAME = 80
KL_IN_WORDS = (
    "KL: divergence of the classes behind each averaged model from uniform, in nats (0 is even), mean over chains, "
    "evaluated rounds and seeds."
)
_COUNTS = ("no", "one", "two", "three", "four", "five")


class Table(NamedTuple):
    """A table as text: headings, and rows with a cell for each heading."""

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]


def printable(text: str, limit: int | None = None) -> str:
    """Formats a name on one line, without control characters, shortened to `limit` characters if given."""
    line = " ".join(text.split())
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)
    return shown if limit is None or len(shown) <= limit else shown[: limit - 1].rstrip() + "…"


def plural(count: int, noun: str) -> str:
    """Formats a number with its noun: 1 seed, 2 seeds."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def join_some(texts: Sequence[str], most: int) -> str:
    """Joins the first `most` texts, and counts the others."""
    more = [f"and {len(texts) - most:,} more"] if len(texts) > most else []
    return "; ".join([*texts[:most], *more])


def flat(value: Any) -> str:
    """Formats a configuration's value on one line, without the brackets of mappings."""
    if isinstance(value, dict):
        texts = []
        for key, entry in value.items():
            chooses = key in ("name", "scheme", "recipe") and isinstance(entry, str)
            nested = f"({flat(entry)})" if isinstance(entry, dict) else flat(entry)
            texts.append(entry if chooses else f"{key} {nested}")
        return ", ".join(texts)
    if isinstance(value, list):
        return "[" + ", ".join(flat(entry) for entry in value) + "]"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def signed(share: float) -> str:
    """Formats a difference of fractions in percentage points, with its sign."""
    text = f"{100 * share:+.1f}"
    return ("+0.0" if text == "-0.0" else text).replace("-", MINUS)


def points(value: Difference | None) -> str:
    """Formats a difference in percentage points, with its interval if known; a dash for None (the baseline)."""
    if value is None or value.mean is None:
        return NOTHING
    if value.low is None or value.high is None:
        return signed(value.mean)
    return f"{signed(value.mean)} [{signed(value.low)}, {signed(value.high)}]"


def megabytes(traffic_bytes: float | None) -> str:
    """Formats bytes in MB of 10^6 bytes, to three digits or as integers; a dash for None."""
    if traffic_bytes is None:
        return NOTHING
    return three_digits(traffic_bytes / 1e6)


def three_digits(value: float) -> str:
    """Formats a number to three digits, or as an integer from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def shows_divergence(summaries: Sequence[MethodSummary]) -> bool:
    """Returns whether the table has a column of divergences: if a method balances classes, by chains or copies."""
    return any(summary.balances_classes for summary in summaries) and any(
        summary.chain_kl is not None for summary in summaries
    )


def shows_class_means(summaries: Sequence[MethodSummary]) -> bool:
    """Returns whether accuracy and its mean over classes differ by half a point, as on an imbalanced test set."""
    means = [(summary.class_mean.mean, summary.final.mean) for summary in summaries]
    return any(mean is not None and final is not None and abs(mean - final) >= 0.005 for mean, final in means)


def table_notes(summaries: Sequence[MethodSummary], *, partitions: bool, crossed: bool = False) -> list[str]:
    """Explains those numbers of the comparison table that it contains.

    `partitions`: whether each seed has its own partition; `crossed`: whether several seeds run on each of several
    partitions.
    """
    notes = []
    if any(summary.final.std is not None for summary in summaries):
        notes.append("“±” is the sample standard deviation over seeds.")
    span = span_evaluated(summaries)
    notes += [
        f"“{averaged_heading(span).capitalize()}” averages the {averaged_in_words(span)} of a run.",
        "“Best” is the highest accuracy of a run, selected on the test set, so optimistic.",
    ]
    if any(summary.difference and summary.difference.low is not None for summary in summaries):
        if crossed:
            covered = (
                "The seeds on one partition are averaged first, so the interval covers the draw of the partition, but "
                "not other seeds or data sets"
            )
        elif partitions:
            covered = (
                "Each seed has its own partition, so the interval also covers the draw of the partition, but not other "
                "data sets"
            )
        else:
            covered = "It reflects variation between seeds only, not between partitions or data sets"
        notes.append(
            "The interval is a two-sided 95% Student t interval for the mean difference over paired seeds. If the "
            "seeds were drawn again many times, about 95 of 100 such intervals would contain the true mean "
            f"difference. {covered}, and each interval is for one comparison: of many, some exclude 0 by chance."
        )
    return [*([KL_IN_WORDS] if shows_divergence(summaries) else []), " ".join(notes)]


def table(
    summaries: Sequence[MethodSummary],
    target_accuracy: float | None = None,
    short: bool = False,
    baseline: str | None = None,
) -> Table:
    """Builds the comparison for terminal and page; accuracies in percent, differences in percentage points.

    The column of differences is left out if there are none.

    Args:
        summaries: from `compare`.
        target_accuracy: the accuracy to reach, as a fraction; None leaves out its columns.
        short: for a narrow terminal: short headings, no columns of the best accuracy and of traffic to the target, and
            none of the final accuracy if there is a column of `chain_kl` (see `shows_divergence`).
        baseline: names the baseline in the heading of differences; None for the first method.
    """
    uneven = shows_divergence(summaries)
    mean = averaged_heading(span_evaluated(summaries))
    # Heading on the page, heading in a narrow terminal (None: no such column), and cells.
    columns: list[tuple[str, str | None, list[str]]] = [
        ("Method", "method", [summary.method for summary in summaries]),
        (
            f"{mean.capitalize()}, %",
            mean.removeprefix("mean of "),
            [SHARE.show(summary.last5) + _part(summary.finished, summary.seeds, " seeds") for summary in summaries],
        ),
    ]
    if any(summary.difference for summary in summaries):
        first = baseline or summaries[0].method
        paired = any(summary.difference and summary.difference.low is not None for summary in summaries)
        columns.append((
            f"Difference from {first}, points" + " [95% interval]" * paired,
            f"vs {first}" + " [95%]" * paired,
            [points(summary.difference) for summary in summaries],
        ))  # fmt: skip
    if shows_class_means(summaries):
        means = [SHARE.show(summary.class_mean) for summary in summaries]
        columns.append(("Mean over classes, %", "class mean", means))
    columns += [
        ("Worst class, %", "worst", [SHARE.show(summary.worst_class) for summary in summaries]),
        ("Final, %", None if uneven else "final", [SHARE.show(summary.final) for summary in summaries]),
        ("Best, %", None, [SHARE.show(summary.best) for summary in summaries]),
    ]
    if uneven:
        kls = [summary.chain_kl for summary in summaries]
        columns.append(("KL", "KL", [NOTHING if kl is None else f"{kl:.3f}" for kl in kls]))
    if target_accuracy is not None:
        goal = f"{100 * target_accuracy:g}%"
        rounds = []
        traffic = []
        for summary in summaries:
            if summary.rounds_to_target is None:
                rounds.append("not reached")
                traffic.append("not reached")
                continue
            count = f"{summary.rounds_to_target:.1f}".removesuffix(".0")
            rounds.append(count + _part(summary.reached, summary.seeds, " seeds"))
            sent = megabytes(summary.traffic_to_target_bytes)
            traffic.append(sent + ("" if sent == NOTHING else _part(summary.reached, summary.seeds)))
        columns += [(f"Rounds to {goal}", f"to {goal}", rounds), (f"Traffic to {goal}, MB", None, traffic)]
    columns += [
        ("Traffic, MB", "MB", [megabytes(summary.traffic_bytes) for summary in summaries]),
        ("Seeds", "seeds", [str(summary.seeds) for summary in summaries]),
    ]
    shown = [(narrow if short else heading, cells) for heading, narrow, cells in columns]
    headings, cells = zip(*((heading, cells) for heading, cells in shown if heading), strict=True)
    return Table(headings, list(zip(*cells, strict=True)))


def _part(count: int, seeds: int, noun: str = "") -> str:
    return f" ({count} of {seeds}{noun})" * (count < seeds)


def averaged_in_words(span: tuple[int, int]) -> str:
    """Names the evaluations that the headline averages, from the numbers that runs have: last five of 8 evaluations."""
    least, most = (min(count, MOST_AVERAGED) for count in span)
    if most == 1:
        return "only evaluation"
    counts = _COUNTS[most] if least == most else f"{_COUNTS[least]} to {_COUNTS[most]}"
    return f"last {counts}{_of_few(span)} evaluations"


def averaged_heading(span: tuple[int, int]) -> str:
    """The heading of the headline: mean of last 5, mean of last 5 of 8, mean of last 2 to 5."""
    least, most = (min(count, MOST_AVERAGED) for count in span)
    return f"mean of last {most if least == most else f'{least} to {most}'}{_of_few(span)}"


def _of_few(span: tuple[int, int]) -> str:
    """Says of how few evaluations the last five are."""
    least, most = span
    if not MOST_AVERAGED < most < MANY_EVALUATIONS:
        return ""
    return f" of {most}" if least == most else f" of {least} to {most}"


def span_evaluated(summaries: Sequence[MethodSummary]) -> tuple[int, int]:
    """Returns the smallest and largest number of evaluations of the runs with a headline."""
    spans = [summary.evaluations for summary in summaries if summary.last5.mean is not None]
    spans = spans or [(MANY_EVALUATIONS, MANY_EVALUATIONS)]
    return min(least for least, _ in spans), max(most for _, most in spans)


def tied(summaries: Sequence[MethodSummary]) -> bool:
    """Returns whether all methods have the same mean of the last evaluations, to the precision shown."""
    shown = [f"{100 * summary.last5.mean:.1f}" for summary in summaries if summary.last5.mean is not None]
    return len(shown) > 1 and len(set(shown)) == 1


def leader(summaries: Sequence[MethodSummary]) -> MethodSummary | None:
    """Returns the method that leads every other one with a 95% interval that excludes 0; None if there is none."""
    ranked = _ranked(summaries)
    return ranked[0] if len(ranked) > 1 and not tied(ranked) and _rival(ranked) is None else None


def verdict(summaries: Sequence[MethodSummary]) -> str:
    """Describes in one or two sentences the method with the highest mean of the last evaluations, and its lead.

    No winner is named if the interval of a difference covers 0 or all methods end at the same accuracy. With a single
    seed, the text says that there is no interval. Accuracy on an imbalanced test set hides rare classes, so if another
    method has the highest mean over classes, a further sentence says so.
    """
    ranked = _ranked(summaries)
    if not ranked:
        return "No run has an accuracy yet, so there is nothing to compare."
    return _verdict_by_accuracy(summaries, ranked) + _verdict_by_class_mean(ranked)


def _verdict_by_class_mean(ranked: Sequence[MethodSummary]) -> str:
    best = ranked[0]
    top = max(ranked, key=lambda summary: summary.class_mean.mean or 0.0)
    if top is best or not shows_class_means(ranked):
        return ""
    ahead = points(paired_difference(top.class_mean_of_seeds, best.class_mean_of_seeds))
    mean = SHARE.show(top.class_mean)
    return (
        f" The test set is imbalanced: by the mean over classes after the last round {top.method} is highest, {mean}%, "
        f"{ahead} points from {best.method}."
    )


def _verdict_by_accuracy(summaries: Sequence[MethodSummary], ranked: Sequence[MethodSummary]) -> str:
    best = ranked[0]
    first = summaries[0]
    when = averaged_in_words(span_evaluated(ranked))
    if len(ranked) == 1:
        several = f"mean ± standard deviation, {best.last5.seeds} seeds"
        seeds = "one seed: no interval" if best.last5.seeds == 1 else several
        return f"{best.method} reaches an accuracy of {_accuracy(best)} over its {when} ({seeds})."
    if tied(ranked):
        methods = "Both methods" if len(ranked) == 2 else f"All {len(ranked)} methods"
        if len(ranked) < len(summaries):
            methods = f"The {len(ranked)} methods that have an accuracy"
        return f"{methods} have the same mean accuracy over their {when}, {100 * (best.last5.mean or 0.0):.1f}%."
    rival = _rival(ranked)
    if rival is not None and rival[1].low is not None:
        other, difference = rival
        both = _best_two(ranked, other)
        apart = f"{100 * (difference.mean or 0.0):.1f} percentage points apart ({_interval(difference)})"
        also = "" if first in (best, other) else f" {best.method} is {_distance(best, first.method)}."
        return f"No clear winner over the {when}: {both}, {apart}.{also}"
    claim = f"{best.method} has the highest accuracy over its {when}, {_accuracy(best)}"
    if best is first:
        return f"{claim}; the next is {ranked[1].method}, {_distance(ranked[1], first.method)}."
    return f"{claim}, {_distance(best, first.method)}."


def lead(summaries: Sequence[MethodSummary]) -> str:
    """Describes in a few words the method with the highest mean, and its distance from the first method.

    If it is the first method, or has no seed in common with that, the distance is from the next one.
    """
    ranked = _ranked(summaries)
    best = ranked[0]
    if tied(ranked):
        return f"all {100 * (best.last5.mean or 0.0):.1f}%"
    rival = _rival(ranked)
    if rival is not None and rival[1].low is not None:
        other, difference = rival
        return f"no clear winner ({_best_two(ranked, other)}, {points(difference)} points)"
    difference, other = best.difference, summaries[0]
    if (difference is None or difference.mean is None) and len(ranked) > 1:
        other = ranked[1]
        difference = paired_difference(best.last5_of_seeds, other.last5_of_seeds)
    if difference is None or difference.mean is None:
        return f"{best.method} {_accuracy(best)}{' (one seed)' * (best.last5.seeds == 1)}"
    seed = ", one seed" if difference.low is None else ""
    return f"{best.method} {_accuracy(best)} ({points(difference)} points from {other.method}{seed})"


def _best_two(ranked: Sequence[MethodSummary], rival: MethodSummary) -> str:
    """Names the best method and its rival, and the next method if that is clearly below although it is nearer."""
    best, following, *_ = ranked
    both = f"{best.method} {_accuracy(best)}, {following.method} {_accuracy(following)}"
    if rival is following:
        return both
    return f"{both}, clearly below; but {best.method} and {rival.method} {_accuracy(rival)}"


def _ranked(summaries: Sequence[MethodSummary]) -> list[MethodSummary]:
    """Sorts the methods that have an accuracy by their mean of the last evaluations, highest first."""
    return sorted((s for s in summaries if s.last5.mean is not None), key=lambda s: -(s.last5.mean or 0.0))


def _rival(ranked: Sequence[MethodSummary]) -> tuple[MethodSummary, Difference] | None:
    """Returns the best method that the first may not lead, and the difference from it; None if there is none."""
    pairs = ((other, paired_difference(ranked[0].last5_of_seeds, other.last5_of_seeds)) for other in ranked[1:])
    return next(((other, lead) for other, lead in pairs if lead.low is None or lead.low <= 0), None)


def _accuracy(summary: MethodSummary) -> str:
    return f"{SHARE.show(summary.last5)}%"


def _distance(summary: MethodSummary, first: str) -> str:
    difference = summary.difference
    if difference is None or difference.mean is None:
        return f"with no run of the same seed and partition as {first}, so their difference is unknown"
    side = "above" if difference.mean >= 0 else "below"
    size = f"{abs(100 * difference.mean):.1f} percentage points {side} {first}"
    if difference.low is None or difference.high is None:
        return f"{size} (one seed only: no interval; the difference may be chance)"
    clear = "no clear difference" if difference.low <= 0 <= difference.high else "the interval excludes 0"
    return f"{size} ({_interval(difference)}): {clear}"


def _interval(value: Difference) -> str:
    return f"95% interval {signed(value.low or 0.0)} to {signed(value.high or 0.0)}, {value.pairs} paired seeds"
