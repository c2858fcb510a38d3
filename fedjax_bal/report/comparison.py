"""The comparison of methods: who shares data with whom, a verdict, and the tables of numbers."""

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.config import leaves, name_in_results
from fedjax_bal.lab import ClientResults
from fedjax_bal.metrics import (
    MANY_EVALUATIONS,
    METRICS,
    MOST_AVERAGED,
    NOTHING,
    REPORT_TABLES,
    SHARE,
    TEXT,
    Difference,
    MethodSummary,
    ReportTable,
    SeededDraw,
    Unit,
    compare,
    divergences,
    mean_interval,
    paired_difference,
    spread,
    spread_of_draws,
)
from fedjax_bal.report.reading import DONE, ReportedRuns, entries, labels_of, planned_runs, state_of
from fedjax_bal.report.tables import MINUS, Table, megabytes, points, printable

AVERAGED = f"Mean of last {MOST_AVERAGED}, %"
"""The heading of the accuracy by which methods are compared."""
KL = (
    "KL: divergence of the classes behind each averaged model from uniform, in nats (0 is even), mean over chains, "
    "evaluated rounds and seeds."
)
MOST_CLIENTS = 20
"""The largest number of clients that a report shows one by one."""

_OF_DATA = ("dataset", "partition", "partition_seeds", "auxiliary", "evaluation.validation", "evaluation.client_test")
_NONE_PUBLISHED: Mapping[tuple[str, str], float] = MappingProxyType({})
_WORST_CLIENTS = 10
_MOST_KEYS = 4
_LONGEST_TEXT = 400
_LONGEST_IN_HEADING = 12  # characters of a name
_DEVIATION = "“±” is the sample standard deviation over seeds."
_ACCURACIES = (
    f"“Mean of last {MOST_AVERAGED}” averages the last evaluations of a run, or all of them if there are fewer. “Best” "
    "is the highest accuracy of a run: selected on the test set, and so optimistic."
)
_FEW_EVALUATIONS = "With so few evaluations, the last five cover much of the training."
_INTERVAL = (
    "The interval is a two-sided 95% Student t interval for the mean difference over paired seeds: if the seeds were "
    "drawn again many times, about 95 of 100 such intervals would contain the true mean difference. Each "
    "interval is for one comparison: among many, some exclude 0 by chance."
)
_SEEDS_ALONE = "It covers variation between seeds only, not between partitions or data sets."
_PARTITIONS = "Each seed has its own partition, so it covers the draw of the partition, but not other data sets."
_CROSSED = (
    "The seeds on one partition are averaged first, so it covers the draw of the partition, but not other seeds or "
    "data sets."
)

_STATES = (
    "Accuracies of an unfinished run are those of its evaluated rounds. A run stops early when its metric on "
    "validation rows no longer improves. A failed run has no final accuracy."
)
_CORRELATION = Unit("", 1, ".2f")


class MethodComparison(NamedTuple):
    """The methods of some runs, in groups that share their data, so that only they can be compared.

    Attributes:
        runs: the runs of each group; a seed may be a `SeededDraw`.
        groups: the summaries of each group, compared with its first method.
        differing: keys of the data in which the groups differ.
        table: the table of all methods.
    """

    runs: list[list[dict[str, Any]]]
    groups: list[list[MethodSummary]]
    differing: list[str]
    table: Table

    @property
    def verdicts(self) -> list[str]:
        """The conclusion for each group of several methods, or for all methods."""
        if len(self.groups) < 2:
            return [verdict(self.groups[0] if self.groups else [])]
        return [f"On the data of {group[0].method}: {verdict(group)}" for group in self.groups if len(group) > 1]

    @property
    def warning(self) -> str:
        """Warns that methods of several groups can't be compared directly; empty for one group."""
        if len(self.groups) < 2:
            return ""
        some = ", ".join(self.differing[:_MOST_KEYS]) + ", ..." * (len(self.differing) > _MOST_KEYS)
        return (
            f"Not all methods use the same data ({some}): differences between them aren't due to the methods alone, "
            "and are given only between methods on the same data."
        )

    def statistics(self, published: Mapping[tuple[str, str], float] = _NONE_PUBLISHED) -> list[dict[str, Any]]:
        """Computes the numbers behind the table, see `statistics`."""
        return [row for group in self.runs for row in statistics(group, published)]


def compare_runs(runs: ReportedRuns) -> MethodComparison:
    """Compares the methods of runs, each with those on the same data."""
    shared = _by_data(runs)
    groups = [summarise(group) for group in shared]
    of_data = lambda key: _is_of_data(_without_method(key))
    keys = [key for key, _ in differences(runs.configs) if of_data(key)]
    if not keys:  # the methods of one folder differ
        every = [(known, key, value) for known in map(leaves, runs.configs.values()) for key, value in known.items()]
        keys = [key for known, key, value in every if of_data(key) and value != known.get(_without_method(key))]
    table = comparison_table(groups, runs.record.summary["target_accuracy"], notes(groups))
    return MethodComparison(shared, groups, list(dict.fromkeys(keys)) or ["their rows"], table)


def differences(configs: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Lists the keys in which configurations differ, with their values."""
    leaves_of = {name: leaves(config) for name, config in configs.items()}
    differing = []
    for key in dict.fromkeys(key for known in leaves_of.values() for key in known if key != "name"):
        if len({repr(known.get(key)) for known in leaves_of.values()}) > 1:
            values = (f"{name}: {known.get(key, 'absent')}" for name, known in leaves_of.items())
            differing.append((key, "; ".join(values)))
    return differing


def _without_method(key: str) -> str:
    return re.sub(r"^methods\.\d+\.", "", key)


def _is_of_data(key: str) -> bool:
    return any(f"{key}.".startswith(f"{section}.") for section in _OF_DATA)


def _by_data(runs: ReportedRuns) -> list[list[dict[str, Any]]]:
    """Groups runs by what determines which client holds which rows: settings, and the data set's own numbers.

    Runs whose seeds have a partition each get a `SeededDraw` as their seed, so that only runs on the same partition are
    paired.
    """
    # The digest tells files of one name apart. An unfinished first session has written none; with a partition for each
    # seed, it is the first one's, which another list of seeds needn't have.
    digests = {
        str(method): part.get("sha256") for part in runs.record.summary["partitions"] for method in part["methods"]
    }
    data: dict[str, Hashable] = {}
    partitions: dict[str, dict[Any, Any]] = {}  # seed of the partition by seed of the run
    for folder, config in runs.configs.items():
        base = leaves({key: value for key, value in config.items() if key != "methods"})
        by_seed = dict(zip(entries(config, "seeds"), entries(config, "partition_seeds"), strict=False))
        labels = labels_of(config)
        for entry in entries(config, "methods"):
            whole = base | (leaves(entry) if isinstance(entry, dict) else {})  # a method may override any section
            if by_seed:  # instead of all `partition.seed`; another list of seeds may have some of these pairs, too
                whole |= {"partition_seeds": "by seed", "partition.seed": None}
            label = labels[name_in_results(entry)]
            method = f"{label} ({folder})" if folder else label
            keys = sorted((key, repr(leaf)) for key, leaf in whole.items() if _is_of_data(key))
            data[method] = (*keys, None if by_seed else digests.get(method))
            partitions[method] = by_seed
    shared: dict[Hashable, list[dict[str, Any]]] = {}
    for run in runs.record.summary["runs"]:
        by_seed = partitions.get(run["method"], {})
        seed = SeededDraw(by_seed[run["seed"]], run["seed"]) if run["seed"] in by_seed else run["seed"]
        shared.setdefault(data.get(run["method"]), []).append({**run, "seed": seed})
    return list(shared.values())


def summarise(runs: Sequence[Mapping[str, Any]]) -> list[MethodSummary]:
    """Compares methods of runs that share their data with the first method; shortens names to fit a table."""
    return [summary._replace(method=printable(summary.method)) for summary in compare(runs)]


def comparison_table(
    groups: Sequence[Sequence[MethodSummary]], target: float | None, note: str = "", condition: str = ""
) -> Table:
    """Builds the table of methods, with the best one of each group highlighted.

    Accuracies are in percent, differences in percentage points, traffic in MB of 10^6 bytes.

    Args:
        groups: summaries from `compare`; each group shares its data, and is compared with its first method.
        target: the accuracy to reach, as a fraction; None leaves out its columns.
        note: the note on the numbers.
        condition: distinguishes this table from others on the page.
    """
    methods = list(chain.from_iterable(groups))
    best = {place for place, method in enumerate(methods) for group in groups if method is leader(group)}
    columns: dict[str, Sequence[str]] = {"Method": [method.method for method in methods]}
    short: dict[str, str | None] = {"Method": "method", AVERAGED: f"last {MOST_AVERAGED}", "Final, %": "final"}
    columns[AVERAGED] = [SHARE.show(method.last5) + _some(method.finished, method.seeds) for method in methods]
    if any(method.difference for method in methods):
        first = methods[0].method if len(groups) == 1 else "the first method on the same data"
        heading = f"Difference from {first}, points [95% interval]"
        named = len(groups) == 1 and len(first) <= _LONGEST_IN_HEADING
        short[heading] = f"vs {first if named else 'first'} [95%]"
        columns[heading] = [points(method.difference) for method in methods]
    if _imbalanced(methods):
        columns["Mean over classes, %"] = [SHARE.show(method.class_mean) for method in methods]
    columns["Worst class, %"] = [SHARE.show(method.worst_class) for method in methods]
    columns["Final, %"] = [SHARE.show(method.final) for method in methods]
    columns["Best, %"] = [SHARE.show(method.best) for method in methods]
    if _balances_classes(methods):
        short["Final, %"] = None
        columns["KL"] = [NOTHING if method.chain_kl is None else f"{method.chain_kl:.3f}" for method in methods]
    if target is not None:
        rounds, traffic = f"Rounds to {100 * target:g}%", f"Traffic to {100 * target:g}%, MB"
        columns[rounds] = [
            "never"
            if method.rounds_to_target is None
            else f"{method.rounds_to_target:.1f}".removesuffix(".0") + _some(method.reached, method.seeds)
            for method in methods
        ]
        columns[traffic] = [
            NOTHING
            if method.traffic_to_target_bytes is None
            else megabytes(method.traffic_to_target_bytes) + _some(method.reached, method.seeds)
            for method in methods
        ]
        short |= {rounds: f"to {100 * target:g}%", traffic: None}
    columns["Traffic, MB"] = [megabytes(method.traffic_bytes) for method in methods]
    if _few_evaluations(methods):
        columns["Evaluations"] = [" to ".join(map(str, sorted({*method.evaluations}))) for method in methods]
    columns["Seeds"] = [str(method.seeds) for method in methods]
    short |= {"Best, %": None, "Worst class, %": "worst", "Mean over classes, %": "class mean", "Seeds": "seeds"}
    short |= {"Traffic, MB": "MB", "Evaluations": None}
    columns = {heading: cells for heading, cells in columns.items() if {*cells} != {NOTHING}}
    title = f"Comparison of methods: {printable(condition)}" if condition else "Comparison of methods"
    return Table(title, list(columns), list(zip(*columns.values(), strict=True)), note, best, short)


def _some(count: int, seeds: int) -> str:
    return f" ({count} of {seeds})" * (count < seeds)


def _balances_classes(methods: Sequence[MethodSummary]) -> bool:
    """Whether a method balances classes, with chains or copies."""
    known = any(method.chain_kl is not None for method in methods)
    return known and any(method.balances_classes for method in methods)


def _imbalanced(methods: Sequence[MethodSummary]) -> bool:
    """Whether accuracy and its mean over classes differ by half a point, as on an imbalanced test set."""
    means = [(method.class_mean.mean, method.final.mean) for method in methods]
    return any(mean is not None and final is not None and abs(mean - final) >= 0.005 for mean, final in means)


def _few_evaluations(methods: Sequence[MethodSummary]) -> bool:
    return any(method.evaluations[0] < MANY_EVALUATIONS for method in methods if method.last5.mean is not None)


def notes(groups: Sequence[Sequence[MethodSummary]]) -> str:
    """Selects the sentences on the numbers that a table contains."""
    methods = list(chain.from_iterable(groups))
    draws = [[draw for draw in method.last5_of_seeds if isinstance(draw, SeededDraw)] for method in methods]
    counts = [(len({draw.partition for draw in of_method}), len(of_method)) for of_method in draws]
    partitions = any(count > 1 for count, _ in counts)
    crossed = partitions and any(runs > count for count, runs in counts)
    said = [KL] if _balances_classes(methods) else []
    if any(method.final.std is not None for method in methods):
        said.append(_DEVIATION)
    said.append(_ACCURACIES)
    if _few_evaluations(methods):
        said.append(_FEW_EVALUATIONS)
    if any(method.difference and method.difference.low is not None for method in methods):
        said += [_INTERVAL, _CROSSED if crossed else _PARTITIONS if partitions else _SEEDS_ALONE]
    return " ".join(said)


def ranked(methods: Sequence[MethodSummary]) -> list[MethodSummary]:
    """Sorts the methods that have an accuracy, highest mean first."""
    return sorted((s for s in methods if s.last5.mean is not None), key=lambda s: -(s.last5.mean or 0.0))


def tied(methods: Sequence[MethodSummary]) -> bool:
    """Returns whether all methods have the same accuracy, to the precision shown."""
    shown = [f"{100 * method.last5.mean:.1f}" for method in methods if method.last5.mean is not None]
    return len(shown) > 1 and len(set(shown)) == 1


def leader(methods: Sequence[MethodSummary]) -> MethodSummary | None:
    """Returns the method that leads every other one with a 95% interval that excludes 0; None if there is none."""
    in_order = ranked(methods)
    return in_order[0] if len(in_order) > 1 and not tied(in_order) and _rival(in_order) is None else None


def _rival(in_order: Sequence[MethodSummary]) -> tuple[MethodSummary, Difference] | None:
    """Returns the best method that the first may not lead, and the difference from it; None if there is none."""
    pairs = ((other, paired_difference(in_order[0].last5_of_seeds, other.last5_of_seeds)) for other in in_order[1:])
    return next(((other, lead) for other, lead in pairs if lead.low is None or lead.low <= 0), None)


def verdict(methods: Sequence[MethodSummary]) -> str:
    """Names the method with the highest accuracy, and whether its lead may be chance.

    Accuracy on an imbalanced test set hides rare classes, so if another method has the highest mean over classes, a
    further sentence says so.
    """
    in_order = ranked(methods)
    if not in_order:
        return "No run has an accuracy yet."
    best = in_order[0]
    accuracy = f"{SHARE.show(best.last5)}%"
    rival = None if tied(in_order) else _rival(in_order)
    if len(in_order) == 1:
        said = f"{best.method} reaches an accuracy of {accuracy}."
    elif tied(in_order):
        said = f"All methods with an accuracy have the same mean, {100 * (best.last5.mean or 0.0):.1f}%."
    elif rival is None:
        said = f"{best.method} has the highest accuracy, {accuracy}: the 95% intervals of all its leads exclude 0."
    elif rival[1].low is None:
        said = f"{best.method} has the highest accuracy, {accuracy}; with fewer than two paired seeds it may be chance."
    else:
        other = rival[0]
        said = (
            f"No clear winner: {best.method} has the highest accuracy, {accuracy}, but the 95% interval of its lead "
            f"over {other.method}, {SHARE.show(other.last5)}%, includes 0."
        )
    top = max(in_order, key=lambda method: method.class_mean.mean or 0.0)
    if top is not best and _imbalanced(in_order):
        said += f" On this imbalanced test set, {top.method} has the highest mean over classes."
    return said


def run_states(runs: ReportedRuns) -> list[Table]:
    """Tables of unfinished, stopped and failed runs, and of clients whose updates were left out or scaled down."""
    known = {(run["method"], run["seed"]): run for run in runs.record.summary["runs"]}
    rows = []
    for folder, config in runs.configs.items():
        for planned in planned_runs(config):
            method = f"{planned.method} ({folder})" if folder else planned.method
            run = known.get((method, planned.seed))
            state = state_of(run, planned)
            done = run["rounds"] if run else 0
            if state != DONE:
                reason = f": {printable(run['failure'], _LONGEST_TEXT)}" if run and run["failure"] else ""
                of = "" if planned.rounds is None else f" of {planned.rounds}"
                rows.append((printable(method), str(planned.seed), f"round {done}{of}", f"{state}{reason}"))
    broken = [
        (
            printable(run["method"]),
            str(run["seed"]),
            f"{run['excluded'] or 0:g}",
            f"{run['clipped'] or 0:g}",
            printable(run["broken_clients"], _LONGEST_TEXT),
        )
        for run in runs.record.summary["runs"]
        if run.get("broken_clients")
    ]
    tables = [
        Table("Unfinished, stopped and failed runs", ("Method", "Seed", "Round", "State"), rows, _STATES),
        Table("Broken clients", ("Method", "Seed", "Left out", "Scaled down", "Rounds, clients and reasons"), broken),
    ]
    return [table for table in tables if table.rows]


def details(runs: Sequence[Mapping[str, Any]], wanted: Sequence[ReportTable] = REPORT_TABLES) -> list[Table]:
    """Builds further tables from a summary's `runs`; leaves out columns without numbers."""
    tables = []
    for shown in wanted:
        columns = [
            (metric, metric.column)
            for metric in METRICS.values()
            if metric.column and metric.column.table is shown and any(run.get(metric.name) is not None for run in runs)
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
            rows.append((printable(method), *cells))
        heads = (", ".join(filter(None, (column.heading, metric.unit.symbol))) for metric, column in columns)
        notes = dict.fromkeys([shown.note, *(column.note for _, column in columns)])
        tables.append(Table(shown.title, ("Method", *heads), rows, " ".join(filter(None, notes))))
    return tables


def class_balance(summary: Mapping[str, Any]) -> list[Table]:
    """Tables of the class balance that methods train on, and of how well a method estimates it."""
    from fedjax_bal.data import DISTANCES, client_distances  # imports jax

    copies = []
    for part in summary["partitions"]:
        added = part.get("augmentation")
        if added and sum(added["before"]):
            before, after = (divergences(np.array([added[key]])).item() for key in ("before", "after"))
            more = f"{100 * added['extra_rows'] / sum(added['before']):.1f}"
            cells = f"{added['extra_rows']:,}", more, megabytes(added["extra_bytes"]), f"{before:.2f}", f"{after:.2f}"
            copies.append((_methods(part), *cells))
    distances = []
    for part in summary["partitions"]:
        if np.size(part.get("class_counts") or []):
            found = client_distances(np.array(part["class_counts"]), part.get("samples"))
            known = [values for distance in found.values() for values in distance]
            if all(values.size for values in known):
                distances.append((_methods(part), *(f"{values.mean():.2f}" for values in known)))
    batches = [
        (_methods(part), f"{part['kl_before']:.2f}", f"{part['kl_after']:.2f}") for part in summary.get("batches", [])
    ]
    estimates = []
    runs = summary["runs"]
    for method in dict.fromkeys(run["method"] for run in runs):
        known = [run["composition"] for run in runs if run["method"] == method and run.get("composition")]
        ranks = spread([composition.get("rank_correlation") for composition in known])
        if ranks.mean is not None:
            estimates.append((printable(method), _CORRELATION.show(ranks).replace("-", MINUS)))
    tables = [
        Table(
            "Distances between clients' classes",
            ("Methods", *(f"{name} {to}" for name in DISTANCES for to in ("from all", "from each other"))),
            distances,
            "Means over clients, and over pairs of clients: KL in nats, the others from 0, equal, to 1, no class in "
            "common.",
        ),
        Table(
            "Augmentation",
            ("Methods", "Copies", "Of the originals, %", "If stored, MB", "Divergence before, nats", "After, nats"),
            copies,
            "Divergence of all clients' classes from equal shares.",
        ),
        Table(
            "Classes in mini-batches",
            ("Methods", "Of clients, nats", "Of mini-batches, nats"),
            batches,
            "Mean divergence from equal shares: of the classes of a client, and of its mini-batches with the "
            "rows that the method adds.",
        ),
        Table(
            "Estimated classes of clients",
            ("Method", "Rank correlation"),
            estimates,
            "Between a client's estimated and true class shares, mean over clients and seeds: 1 means the right order "
            "of the classes, 0 chance.",
        ),
    ]
    return [table for table in tables if table.rows]


def _methods(part: Mapping[str, Any]) -> str:
    return ", ".join(printable(str(method)) for method in part["methods"])


def by_client(clients: Sequence[ClientResults]) -> list[Table]:
    """Builds the table of each client's accuracy with each method: of up to 20 clients, or of the ten worst.

    It is empty without results by client, or if clients of one name have different rows, as with a partition for each
    seed.
    """
    sizes: dict[str, tuple[int, int]] = {}
    accuracies: dict[str, dict[str, list[float | None]]] = {}  # by client and method
    for run in clients:
        for name, training, test, accuracy in zip(run.labels, *run[3:6], strict=True):
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
    heads = ("Client", "Training rows", "Test rows", *(f"{printable(method)}, %" for method in methods))
    rows = []
    for name in shown:
        rows.append((printable(name), *(f"{count:,}" for count in sizes[name]), *map(SHARE.show, means[name])))
    return [Table("Accuracy by client", heads, rows, note)]


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
