"""The report's tables, as text, and the numbers behind them."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.lab import RunClients
from fedjax_bal.metrics import (
    METRICS,
    REPORT_TABLES,
    SHARE,
    TEXT,
    MethodSummary,
    compare,
    divergences,
    mean_interval,
    paired_difference,
    spread,
    spread_of_draws,
)
from fedjax_bal.report.wording import LONGEST_NAME, MINUS, Table, join_some, leader, megabytes, printable, table

_NONE_PUBLISHED: Mapping[tuple[str, str], float] = MappingProxyType({})
MOST_CLIENTS = 20
"""The largest number of clients of which a report shows each."""

_WORST_CLIENTS = 10
_MOST_NAMED = 12  # maximum number of failed runs or broken clients listed by name
_LONGEST_TEXT = 400


class Details(NamedTuple):
    """A table of the report: title, rows, a note on its numbers, and for each row whether it is highlighted."""

    title: str
    table: Table
    note: str
    marked: Sequence[bool] = ()


def summarise_group(runs: Sequence[Mapping[str, Any]]) -> list[MethodSummary]:
    """Compares methods of runs that share their data with the first method; shortens names to fit a table."""
    return [summary._replace(method=printable(summary.method, LONGEST_NAME)) for summary in compare(runs)]


def comparison(
    groups: Sequence[Sequence[MethodSummary]], target: float | None, note: str, condition: str = ""
) -> Details:
    """Builds the table that compares methods, with the best method of each group highlighted.

    `groups` are summaries from `compare`; each group shares its data and is compared with its first method. If every
    group is a single method, the column of differences is left out. `target` is the accuracy to reach, as a fraction;
    `condition` distinguishes this table from others on the page.
    """
    marked = []
    for group in groups:
        best = None if len(group) == 1 < len(groups) else leader(group)
        marked += [summary is best for summary in group]
    title = f"Comparison of methods{': ' * bool(condition)}{printable(condition, LONGEST_NAME)}"
    return Details(title, group_table(groups, target), note, marked)


def group_table(groups: Sequence[Sequence[MethodSummary]], target: float | None, *, short: bool = False) -> Table:
    """Builds the table of `comparison` for the page or, with `short`, for the terminal."""
    baseline = "first on the same data" if short else "the first method on the same data"
    summaries = [summary for group in groups for summary in group]
    return table(summaries, target, short, None if len(groups) == 1 else baseline)


def details(runs: Sequence[Mapping[str, Any]]) -> list[Details]:
    """Builds further tables from a summary's `runs`; leaves out columns without numbers."""
    tables = []
    for shown in REPORT_TABLES:
        of_table = [(metric, metric.column) for metric in METRICS.values()]
        columns = [
            (metric, column)
            for metric, column in of_table
            if column and column.table is shown and any(run.get(metric.name) is not None for run in runs)
        ]
        # A single optional column, such as one group of classes, isn't informative.
        if sum(column.optional for _, column in columns) == 1:
            columns = [(metric, column) for metric, column in columns if not column.optional]
        if not columns:
            continue
        rows = []
        for method in dict.fromkeys(run["method"] for run in runs):
            values = [[run.get(metric.name) for run in runs if run["method"] == method] for metric, _ in columns]
            cells = [metric.unit.show(spread(known)) for (metric, _), known in zip(columns, values, strict=True)]
            rows.append((printable(method, LONGEST_NAME), *cells))
        heads = (", ".join(filter(None, (column.heading, metric.unit.symbol))) for metric, column in columns)
        notes = dict.fromkeys([shown.note, *(column.note for _, column in columns)])
        tables.append(Details(shown.title, Table(("Method", *heads), rows), " ".join(filter(None, notes))))
    return tables


def by_client(clients: Sequence[RunClients]) -> list[Details]:
    """Builds the table of each client's accuracy with each method: of up to 20 clients, or of the ten worst.

    It is empty without results by client, or if clients of one name have different rows, as with a partition for each
    seed.
    """
    sizes: dict[str, tuple[int, int]] = {}
    accuracies: dict[str, dict[str, list[float | None]]] = {}  # by client and method
    for run in clients:
        for name, training, test, accuracy in zip(*run[2:6], strict=True):
            if sizes.setdefault(name, (training, test)) != (training, test):
                return []
            known = None if np.isnan(accuracy) else float(accuracy)
            accuracies.setdefault(name, {}).setdefault(run.method, []).append(known)
    if not sizes:
        return []
    methods = list(dict.fromkeys(run.method for run in clients))
    means = {name: [spread(found.get(method, [])) for method in methods] for name, found in accuracies.items()}
    shown = list(sizes)
    note = (
        "The model that each client uses, on its own test rows at the last evaluation. clients.csv has this and the "
        "mean over classes for each client and seed."
    )
    if len(shown) > MOST_CLIENTS:
        known = {name: [mean.mean for mean in row if mean.mean is not None] for name, row in means.items()}
        tested = [name for name in shown if known[name]]
        shown = sorted(tested, key=lambda name: sum(known[name]) / len(known[name]))[:_WORST_CLIENTS]
        note += f" Shown are the {len(shown)} of {len(tested):,} clients with the lowest mean over the methods."
    heads = ("Client", "Training rows", "Test rows", *(f"{printable(method, LONGEST_NAME)}, %" for method in methods))
    rows = [
        (printable(name, LONGEST_NAME), *(f"{count:,}" for count in sizes[name]), *map(SHARE.show, means[name]))
        for name in shown
    ]
    return [Details("Accuracy by client", Table(heads, rows), note)]


def failed(runs: Sequence[Mapping[str, Any]]) -> str:
    """Names the failed runs and the reasons; empty if there are none."""
    named = [f"{_named(run)} ({printable(run['failure'], _LONGEST_TEXT)})" for run in runs if run.get("failure")]
    return f"Runs that failed, and so have no final accuracy: {join_some(named, _MOST_NAMED)}." if named else ""


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """Describes early stops, broken clients, and how balanced the classes are on which methods train."""
    runs = summary["runs"]
    sentences = []
    early = [
        f"{_named(run)} after round {run['stopped_early']}" for run in runs if run.get("stopped_early") is not None
    ]
    if early:
        sentences.append(
            "Stopped early, because the metric on validation rows no longer got better: "
            f"{join_some(early, _MOST_NAMED)}. Final accuracies are those of these rounds; those of the best round by "
            "validation are further below."
        )
    broken = [
        f"{_named(run)}: {run['excluded'] or 0:g} left out, "
        f"{run['clipped'] or 0:g} scaled down ({printable(run['broken_clients'], _LONGEST_TEXT)})"
        for run in runs
        if run.get("broken_clients")
    ]
    if broken:
        sentences.append(f"Broken clients. {join_some(broken, _MOST_NAMED)}.")
    for part in summary["partitions"]:
        copies = part.get("augmentation")
        if copies and sum(copies["before"]):
            before, after = (divergences(np.array([copies[key]])).item() for key in ("before", "after"))
            sentences.append(
                f"Augmentation of {_methods(part)}: {copies['extra_rows']:,} copies, which would take "
                f"{megabytes(copies['extra_bytes'])} MB to store, "
                f"{100 * copies['extra_rows'] / sum(copies['before']):.1f}% more than the originals; the divergence of "
                f"all clients' classes from equal shares goes from {before:.2f} to {after:.2f} nats."
            )
    for part in summary.get("batches", []):
        sentences.append(
            f"Mini-batches of {_methods(part)}, which the method fills up: the mean divergence of a client's "
            f"classes from equal shares goes from {part['kl_before']:.2f} to {part['kl_after']:.2f} nats."
        )
    for method in dict.fromkeys(run["method"] for run in runs):
        known = [run["composition"] for run in runs if run["method"] == method and run.get("composition")]
        ranks = spread([composition.get("rank_correlation") for composition in known])
        if ranks.mean is not None:
            deviation = "" if ranks.std is None else f" ± {ranks.std:.2f}"
            sentences.append(
                f"Class composition of clients as {printable(method, LONGEST_NAME)} estimates it: its rank correlation "
                f"with the true one is {ranks.mean:.2f}{deviation}, mean over clients and seeds (1 is the right order "
                "of the classes, 0 is chance).".replace(" -", f" {MINUS}")
            )
    return sentences


def _named(run: Mapping[str, Any]) -> str:
    return f"{printable(run['method'], LONGEST_NAME)}, seed {run['seed']}"


def _methods(part: Mapping[str, Any]) -> str:
    return ", ".join(printable(str(method), LONGEST_NAME) for method in part["methods"])


def statistics(
    runs: Sequence[Mapping[str, Any]], published: Mapping[tuple[str, str], float] = _NONE_PUBLISHED
) -> Iterator[dict[str, Any]]:
    """Yields the statistics of runs that share their data: one row per method and metric.

    A row has n, mean, standard deviation, the mean's 95% interval, the paired difference from the first method with its
    interval, and the number in `published` (by method and metric) with the difference from it. A run's seed may be a
    `SeededDraw`.
    """
    methods = list(dict.fromkeys(run["method"] for run in runs))
    for name in (metric.name for metric in METRICS.values() if metric.of_run and metric.unit is not TEXT):
        by_seed: dict[str, dict[Any, float]] = {method: {} for method in methods}
        for run in runs:
            if run.get(name) is not None:
                by_seed[run["method"]][run["seed"]] = run[name]
        for method in methods if any(by_seed.values()) else ():
            mean = spread_of_draws(by_seed[method])
            low, high = mean_interval(mean)
            keys = ("difference", "difference_low", "difference_high", "pairs")
            first = method == methods[0]
            difference = (None,) * 4 if first else paired_difference(by_seed[method], by_seed[methods[0]])
            theirs = published.get((method, name))
            yield {
                "method": method, "metric": name,
                "n": mean.seeds, "mean": mean.mean, "deviation": mean.std, "low": low, "high": high,
                **dict(zip(keys, difference, strict=True)),
                "published": theirs,
                "from_published": None if theirs is None or mean.mean is None else mean.mean - theirs,
            }  # fmt: skip


def encoded(text: str) -> bytes:
    """Encodes a text as UTF-8; surrogates, which JSON and folder names can contain, are replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
