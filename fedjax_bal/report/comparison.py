"""The comparison of methods: which methods share data, a verdict, and the tables of numbers."""

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.config import leaves, name_in_results
from fedjax_bal.metrics import (
    MANY_EVALUATIONS,
    METRICS,
    MOST_AVERAGED,
    NOTHING,
    REPORT_TABLES,
    SHARE,
    SIGNIFICANCE,
    TEXT,
    Difference,
    MethodSummary,
    ReportTable,
    SeededDraw,
    Unit,
    apply_holm,
    compare,
    divergences,
    is_imbalanced,
    mean_interval,
    paired_difference,
    seed_values,
    seeds_needed,
    spread,
    spread_of_draws,
)
from fedjax_bal.report.reading import DONE, SO_FAR, ReportedRuns, entries, labels_of, planned_runs
from fedjax_bal.report.tables import MINUS, Table, join_some, megabytes, p_value, points, printable

AVERAGED = f"Mean of last {MOST_AVERAGED}, %"
CLASS_MEAN = "Mean over classes, %"
"""The headings of the accuracies by which methods are compared: the second one on imbalanced test sets."""
P_HOLM = "p (Holm)"
STAR = f"* significant at {SIGNIFICANCE:.0%} (paired t test, with Holm's correction for the number of comparisons)."
KL = (
    "KL: divergence from uniform of the classes behind each averaged model, in nats (0 is even); mean over chains, "
    "evaluated rounds and seeds."
)
_UNEQUAL_ROUNDS = "The runs have different numbers of rounds, so their final accuracies are not directly comparable."
PROVISIONAL = "Some runs are not finished: results are provisional and count only runs that have ended."
MOST_CLIENTS = 20
"""The largest number of clients that a report shows one by one."""

_OF_DATA = ("dataset", "partition", "partition_seeds", "auxiliary", "evaluation.validation", "evaluation.client_test")
_NONE_PUBLISHED: Mapping[tuple[str, str], float] = MappingProxyType({})
_WORST_CLIENTS = 10
_MOST_KEYS = 4
_MOST_NAMED = 8
_LONGEST_TEXT = 400
_LONGEST_IN_HEADING = 12  # characters of a name
_DEVIATION = "“±” is the sample standard deviation over {}."
_ACCURACIES = (
    f"“Mean of last {MOST_AVERAGED}” is that of a run's last evaluations. “Best” is selected on the test set and "
    "therefore optimistic."
)
_BY_CLASS_MEAN = (
    "The classes of the test set have different sizes, so methods are compared by the mean over classes, at the last "
    "evaluation."
)
_FEW_EVALUATIONS = "Evaluations of a run: {}, so that the last five cover much of the training."
_INTERVAL = (
    "Intervals are two-sided 95% Student t intervals of paired differences, {}, each for one comparison (fedjax-bal "
    "guide reading_results)."
)
_SEEDS_ALONE = "between seeds only, on one partition"
_PARTITIONS = "between seeds with their own partitions"
OVER_PARTITIONS = "partitions, whose seeds are averaged first"
_CROSSED = f"between {OVER_PARTITIONS}"
_SMALLEST_TOLD = 0.01  # the smallest difference for which a report estimates the number of seeds
_MOST_SEEDS = 1000

_STATES = (
    "The accuracy is from the last evaluation. No other table counts unfinished runs. A run stops early when its "
    "metric on validation rows no longer improves. A failed run has no final accuracy."
)
_CORRELATION = Unit("", 1, ".2f")


class MethodComparison(NamedTuple):
    """The methods of some runs, in groups that share their data, so that only they can be compared.

    Attributes:
        runs: the runs of each group; a seed may be a `SeededDraw`.
        groups: the summaries of each group, compared with its first method.
        differing: keys of the data in which the groups differ.
        table: the table of all methods.
        finished: whether all runs are over.
    """

    runs: list[list[dict[str, Any]]]
    groups: list[list[MethodSummary]]
    differing: list[str]
    table: Table
    finished: bool

    @property
    def tables(self) -> list[Table]:
        """The table of all methods; none if no run is over."""
        return [self.table] if any(SO_FAR not in run for group in self.runs for run in group) else []

    @property
    def verdicts(self) -> list[str]:
        """The conclusion and remarks on it; of several groups, the conclusion for each one with several methods."""
        if len(self.groups) < 2:
            methods = self.groups[0] if self.groups else []
            return [verdict(methods), *remarks(methods, finished=self.finished)]
        return [f"On the data of {group[0].method}: {verdict(group)}" for group in self.groups if len(group) > 1]

    @property
    def warnings(self) -> list[str]:
        """Warns that results are provisional, and that methods of several groups can't be compared directly."""
        said = [] if self.finished else [PROVISIONAL]
        ended = [run for group in self.runs for run in group if SO_FAR not in run and not run.get("failure")]
        if len({run.get("rounds") for run in ended if run.get("stopped_early") is None}) > 1:
            said.append(_UNEQUAL_ROUNDS)
        if len(self.groups) < 2:
            return said
        some = ", ".join(self.differing[:_MOST_KEYS]) + ", ..." * (len(self.differing) > _MOST_KEYS)
        said.append(
            f"Not all methods use the same data ({some}): differences between them aren't due to the methods alone, "
            "and are given only between methods on the same data."
        )
        return said

    def statistics(self, published: Mapping[tuple[str, str], float] = _NONE_PUBLISHED) -> list[dict[str, Any]]:
        """Computes the numbers behind the table, see `statistics`."""
        return [row for group in self.runs for row in statistics(group, published)]


def compare_runs(runs: ReportedRuns) -> MethodComparison:
    """Compares the methods of runs, each with those on the same data."""
    shared = _by_data(runs)
    by_class_mean = is_imbalanced(runs.record.summary["runs"])
    groups = [summarise(group, by_class_mean=by_class_mean) for group in shared]
    of_data = lambda key: _is_of_data(_without_method(key))
    keys = [key for key, _ in differences(runs.configs) if of_data(key)]
    if not keys:  # the methods of one folder differ
        every = [(known, key, value) for known in map(leaves, runs.configs.values()) for key, value in known.items()]
        keys = [key for known, key, value in every if of_data(key) and value != known.get(_without_method(key))]
    table = comparison_table(groups, runs.record.summary["target_accuracy"], notes(groups))
    return MethodComparison(
        shared, groups, list(dict.fromkeys(keys)) or ["their rows"], table, runs.record.summary["finished"]
    )


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


def summarise(runs: Sequence[Mapping[str, Any]], *, by_class_mean: bool | None = None) -> list[MethodSummary]:
    """Compares methods of runs as `compare` does; shortens names to fit a table."""
    compared = compare(runs, by_class_mean=by_class_mean)
    return [summary._replace(method=printable(summary.method)) for summary in compared]


def comparison_table(
    groups: Sequence[Sequence[MethodSummary]], target: float | None, note: str = "", condition: str = ""
) -> Table:
    """Builds the table of methods, with the best one of each group highlighted.

    The first column is the accuracy by which methods are compared, the second its difference from the first method.
    With several differences, a star marks the significant ones, and a column has their p-values (both after Holm's
    correction). Accuracies are in percent, differences in percentage points, traffic in MB of 10^6 bytes.

    Args:
        groups: summaries from `compare`; each group shares its data, and is compared with its first method.
        target: the accuracy to reach, as a fraction; None leaves out its columns.
        note: the note on the numbers.
        condition: distinguishes this table from others on the page.
    """
    methods = list(chain.from_iterable(groups))
    leaders = [leader(group) for group in groups]
    best = {place for place, method in enumerate(methods) if any(method is top for top in leaders)}
    columns: dict[str, Sequence[str]] = {"Method": [method.method for method in methods]}
    short: dict[str, str | None] = {"Method": "method", AVERAGED: f"last {MOST_AVERAGED}", CLASS_MEAN: "class mean"}
    short |= {P_HOLM: None, "Worst class, %": "worst", "Final, %": "final", "Best, %": None, "Evaluations": None}
    short |= {"Traffic, MB": "MB", "Seeds": "seeds"}
    by_class_mean = any(method.by_class_mean for method in methods)
    lead = CLASS_MEAN if by_class_mean else AVERAGED
    columns[lead] = [SHARE.show(method.headline) + _some(method.finished, method.seeds) for method in methods]
    if any(method.difference for method in methods):
        first = methods[0].method if len(groups) == 1 else "the first method on the same data"
        heading = f"Difference from {first}, points [95% interval]"
        named = len(groups) == 1 and len(first) <= _LONGEST_IN_HEADING
        short[heading] = f"vs {first if named else 'first'} [95%]"
        corrected = _are_corrected(groups)
        columns[heading] = [points(method.difference, star=corrected) for method in methods]
        columns[P_HOLM] = [p_value(method.difference) if corrected else NOTHING for method in methods]
    if by_class_mean:
        columns[AVERAGED] = [SHARE.show(method.last5) for method in methods]
    columns["Worst class, %"] = [SHARE.show(method.worst_class) for method in methods]
    columns["Final, %"] = [SHARE.show(method.final) for method in methods]
    columns["Best, %"] = [SHARE.show(method.best) for method in methods]
    if _balances_classes(methods):
        short["Final, %"] = None
        columns["KL"] = [NOTHING if method.chain_kl is None else f"{method.chain_kl:.3f}" for method in methods]
    if target is not None:
        rounds, traffic = f"Rounds to {100 * target:g}%", f"Traffic to {100 * target:g}%, MB"
        columns[rounds] = [
            ("never" if method.finished else NOTHING)
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
    if _few_evaluations(methods) and " to " in _count_evaluations(methods):
        columns["Evaluations"] = [" to ".join(map(str, sorted({*method.evaluations}))) for method in methods]
    columns["Seeds"] = [str(method.seeds) for method in methods]
    columns = {heading: cells for heading, cells in columns.items() if {*cells} != {NOTHING}}
    title = f"Comparison of methods: {printable(condition)}" if condition else "Comparison of methods"
    optional = ["Traffic, MB", "Seeds", "KL", "Final, %", *(name for name in columns if name.startswith("Rounds to "))]
    if by_class_mean:
        optional.append(AVERAGED)
    return Table(title, list(columns), list(zip(*columns.values(), strict=True)), note, best, short, optional)


def _some(count: int, seeds: int) -> str:
    return f" ({count} of {seeds})" * (count < seeds)


def _balances_classes(methods: Sequence[MethodSummary]) -> bool:
    """Returns whether a method balances classes, with chains or copies."""
    known = any(method.chain_kl is not None for method in methods)
    return known and any(method.balances_classes for method in methods)


def _are_corrected(groups: Sequence[Sequence[MethodSummary]]) -> bool:
    """Returns whether p-values are corrected, as in a group with several of them."""
    return any(sum(bool(method.difference and method.difference.p is not None) for method in g) > 1 for g in groups)


def _few_evaluations(methods: Sequence[MethodSummary]) -> bool:
    return any(method.evaluations[0] < MANY_EVALUATIONS for method in methods if method.last5.mean is not None)


def _count_evaluations(methods: Sequence[MethodSummary]) -> str:
    counts = [count for method in methods if method.last5.mean is not None for count in method.evaluations]
    return str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def notes(groups: Sequence[Sequence[MethodSummary]]) -> str:
    """Selects the sentences on the numbers that a table contains."""
    methods = list(chain.from_iterable(groups))
    said = [KL] if _balances_classes(methods) else []
    if any(method.by_class_mean for method in methods):
        said.append(_BY_CLASS_MEAN)
    if any(method.final.std is not None for method in methods):
        said.append(_DEVIATION.format(OVER_PARTITIONS if _variation(methods) == _CROSSED else "seeds"))
    said.append(_ACCURACIES)
    if _few_evaluations(methods):
        said.append(_FEW_EVALUATIONS.format(_count_evaluations(methods)))
    if any(method.difference and method.difference.low is not None for method in methods):
        said.append(_INTERVAL.format(_variation(methods)))
    if _are_corrected(groups):
        said.append(STAR)
    return " ".join(said)


def _variation(methods: Sequence[MethodSummary]) -> str:
    """Names the variation that intervals cover."""
    draws = [[draw for draw in method.last5_of_seeds if isinstance(draw, SeededDraw)] for method in methods]
    counts = [(len({draw.partition for draw in of_method}), len(of_method)) for of_method in draws]
    if not any(partitions > 1 for partitions, _ in counts):
        return _SEEDS_ALONE
    return _CROSSED if any(runs > partitions for partitions, runs in counts) else _PARTITIONS


def ranked(methods: Sequence[MethodSummary]) -> list[MethodSummary]:
    """Sorts the methods that have an accuracy, highest mean first."""
    return sorted((s for s in methods if s.headline.mean is not None), key=lambda s: -(s.headline.mean or 0.0))


def tied(methods: Sequence[MethodSummary]) -> bool:
    """Returns whether all methods have the same accuracy, to the precision shown."""
    shown = [f"{100 * method.headline.mean:.1f}" for method in methods if method.headline.mean is not None]
    return len(shown) > 1 and len(set(shown)) == 1


def leader(methods: Sequence[MethodSummary]) -> MethodSummary | None:
    """Returns the method whose leads over all others are significant, with Holm's correction; None without one."""
    in_order = ranked(methods)
    if len(in_order) < 2 or tied(in_order) or _rival(in_order) is not None:
        return None
    return in_order[0] if in_order[0].finished == in_order[0].seeds else None  # the others might have been worse


def _rival(in_order: Sequence[MethodSummary]) -> tuple[MethodSummary, Difference] | None:
    """Returns the best method that the first doesn't lead significantly, and the difference from it; or None."""
    best, *others = in_order
    leads = apply_holm([paired_difference(best.headline_of_seeds, other.headline_of_seeds) for other in others])
    for other, lead in zip(others, leads, strict=True):
        if not lead.significant or (lead.low or 0.0) <= 0:  # of the common seeds, another may be the best
            return other, lead
    return None


def verdict(methods: Sequence[MethodSummary]) -> str:
    """Names the method with the highest accuracy, and whether its lead may be chance."""
    in_order = ranked(methods)
    if not in_order:
        return "No run has a final accuracy yet."
    best = in_order[0]
    accuracy = "mean accuracy over classes" if best.by_class_mean else "accuracy"
    value = f"{SHARE.show(best.headline)}%"
    if len(in_order) == 1:
        return f"{best.method} reaches {'a' if best.by_class_mean else 'an'} {accuracy} of {value}."
    if tied(in_order):
        return f"To one decimal, all methods have the same {accuracy}, {100 * (best.headline.mean or 0.0):.1f}%."
    rival = _rival(in_order)
    leads = f"{best.method} has the highest {accuracy}, {value}"
    if best.finished < best.seeds:
        return f"No clear winner: {leads}, but in only {best.finished} of {best.seeds} runs."
    holm = f" with Holm's correction for {len(in_order) - 1} comparisons" if len(in_order) > 2 else ""
    if rival is None:
        return f"{leads}: {'all its leads are' if holm else 'its lead is'} significant at 5%{holm}."
    other, lead = rival
    if lead.low is None:
        return f"{leads}; with fewer than two paired seeds it may be chance."
    if lead.p is None:
        same = "is the same in all runs, so that there is no spread to test"
        doubt = f"its lead over {other.method}, {SHARE.show(other.headline)}%, {same}"
    elif lead.low <= 0:
        doubt = f"the 95% interval of its lead over {other.method}, {SHARE.show(other.headline)}%, includes 0"
    else:
        doubt = f"its lead over {other.method}, {SHARE.show(other.headline)}%, isn't significant at 5%{holm}"
    return f"No clear winner: {leads}, but {doubt}."


def remarks(methods: Sequence[MethodSummary], *, finished: bool = True) -> list[str]:
    """Adds to the verdict which methods differ from the first, the highest ordinary accuracy, and seeds needed.

    The first holds for three methods or more, the second for an imbalanced test set, the last if all runs are over.
    """
    in_order = ranked(methods)
    said = []
    differences = {method.method: method.difference for method in methods if method.difference}
    if len(differences) > 1 and any(difference.p_holm is not None for difference in differences.values()):
        first = methods[0].method
        apart = {name: difference.mean or 0.0 for name, difference in differences.items() if difference.significant}
        for where, names in (
            ("above", [name for name, mean in apart.items() if mean > 0]),
            ("below", [name for name, mean in apart.items() if mean < 0]),
        ):
            if names:
                said.append(f"Significantly {where} {first}: {join_some(names, _MOST_NAMED, ', ')}.")
        if not apart:
            said.append(f"No method differs significantly from {first}.")
    shares = {SHARE.show(method.last5) for method in in_order}
    if in_order and in_order[0].by_class_mean and (len(in_order) == 1 or len(shares) > 1):
        top = max(in_order, key=lambda method: method.last5.mean or 0.0)
        accuracy = f"{top.method} has {'the highest' if len(in_order) > 1 else 'an'} accuracy"
        said.append(f"The test set is imbalanced: over all its rows, {accuracy} of {SHARE.show(top.last5)}%.")
    rival = _rival(in_order) if len(in_order) > 1 and not tied(in_order) else None
    if finished and rival and rival[1].std:
        other, lead = rival
        difference = max(abs(lead.mean or 0.0), _SMALLEST_TOLD)
        needed = seeds_needed(lead.std or 0.0, difference, level=SIGNIFICANCE / (len(in_order) - 1))
        count = f"more than {_MOST_SEEDS:,}" if needed > _MOST_SEEDS else f"about {needed}"
        pairs = "partitions" if _variation(methods) == _CROSSED else "seeds"
        if needed > lead.pairs:
            said.append(
                f"Given the spread so far, {count} {pairs} would show a difference of {100 * difference:.1f} points "
                f"between {in_order[0].method} and {other.method} (with a power of 80%)."
            )
    return said


def run_states(runs: ReportedRuns) -> list[Table]:
    """Tables of unfinished, stopped and failed runs, and of clients whose updates were left out or scaled down."""
    known = {(run["method"], run["seed"]): run for run in runs.record.summary["runs"]}
    rows = []
    for folder, config in runs.configs.items():
        for planned in planned_runs(config):
            method = f"{planned.method} ({folder})" if folder else planned.method
            run = known[method, planned.seed]
            if run["state"] != DONE:
                so_far = run.get(SO_FAR, run)
                reason = f": {printable(run['failure'], _LONGEST_TEXT)}" if run["failure"] else ""
                of = "" if planned.rounds is None else f" of {planned.rounds}"
                accuracy = spread([so_far.get("final_accuracy")])
                cells = f"round {so_far['rounds']}{of}", SHARE.show(accuracy), f"{run['state']}{reason}"
                rows.append((printable(method), str(planned.seed), *cells))
    broken = [
        (
            printable(run["method"]),
            str(run["seed"]),
            f"{so_far['excluded'] or 0:g}",
            f"{so_far['clipped'] or 0:g}",
            printable(so_far["broken_clients"], _LONGEST_TEXT),
        )
        for run in runs.record.summary["runs"]
        if (so_far := run.get(SO_FAR, run)).get("broken_clients")
    ]
    heads = ("Method", "Seed", "Round", "Accuracy, %", "State")
    tables = [
        Table("Unfinished, stopped and failed runs", heads, rows, _STATES),
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
            "common. Of more than 200 clients, over evenly spaced ones.",
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
            "rows that the method adds. Of more than 50 clients, over evenly spaced ones.",
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


def by_client(runs: ReportedRuns) -> list[Table]:
    """Builds the table of each client's accuracy with each method: of up to 20 clients, or of the ten worst.

    It is empty without results by client, or if clients of one name have different rows, as with a partition for each
    seed.
    """
    clients = runs.record.clients
    drawn = len(_by_data(runs)) > 1 or any(config.get("partition_seeds") for config in runs.configs.values())
    if drawn and not all(run.named for run in clients):
        return []
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
    interval and p-value, before and after Holm's correction for the differences of this metric, and the number in
    `published` (by method and metric) with the difference from it. A run's seed may be a `SeededDraw`.
    """
    for name in (metric.name for metric in METRICS.values() if metric.of_run and metric.unit is not TEXT):
        values = seed_values(runs, name)
        if not any(values.values()):
            continue
        first, *others = values.values()
        differences = [None, *apply_holm([paired_difference(own, first) for own in others])]
        for (method, own), difference in zip(values.items(), differences, strict=True):
            mean = spread_of_draws(own)
            low, high = mean_interval(mean)
            theirs = published.get((method, name))
            yield {
                "method": method, "metric": name,
                "n": mean.seeds, "mean": mean.mean, "deviation": mean.std, "low": low, "high": high,
                "difference": difference and difference.mean,
                "difference_low": difference and difference.low, "difference_high": difference and difference.high,
                "pairs": difference and difference.pairs,
                "p": difference and difference.p, "p_holm": difference and difference.p_holm,
                "published": theirs,
                "from_published": None if theirs is None or mean.mean is None else mean.mean - theirs,
            }  # fmt: skip
