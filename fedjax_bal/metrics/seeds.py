"""Statistics of a set of runs: means and spreads over seeds, paired differences, curves, class and client accuracies.

The terminal's table and the report show the same numbers because both take them from here. The standard deviation and
the interval of a single seed are None.
"""

import operator
import warnings
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.metrics.classification import ranked_known
from fedjax_bal.validate import is_number

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
"""Differences count as significant if their p-value, corrected for the number of comparisons, is below this."""
LARGEST_SHOWN = 1e100
"""The largest number that is written and read: sums of squares don't overflow. Larger ones count as infinite."""
MOST_AVERAGED = 5
"""The number of last evaluations that `last5_accuracy` averages; all evaluations if a run has fewer."""

LARGEST_GAP = 0.005
"""The difference between accuracy and its mean over classes from which on a test set counts as imbalanced."""

MANY_EVALUATIONS = 20
"""A run with fewer evaluations says how many there are, because their last five cover much of its training."""


class Spread(NamedTuple):
    """A quantity over seeds.

    Attributes:
        mean: the mean over the seeds that have a value; None if none has.
        std: the sample standard deviation (divisor n - 1); None for fewer than two seeds.
        seeds: n, the number of seeds that have a value.
    """

    mean: float | None
    std: float | None
    seeds: int


class SeededDraw(NamedTuple):
    """The two seeds of a run: its partition's, None if unknown, and the run's."""

    partition: int | None
    seed: Hashable


class Difference(NamedTuple):
    """A method's mean minus another one's, paired by seed.

    Attributes:
        mean: the mean of the differences; None if the two have no seed in common.
        low: lower end of the two-sided 95% Student t interval for that mean; None for fewer than two pairs.
        high: its upper end.
        pairs: the number of seeds that both methods have.
        std: the sample standard deviation of the differences; None for fewer than two pairs, as the others below.
        p: the p-value of the two-sided paired t test; below 0.05 where the interval excludes 0. None for differences
            that are all equal, but not 0.
        p_holm: `p` after Holm's correction for all comparisons with the same method; None if it wasn't corrected.
    """

    mean: float | None
    low: float | None
    high: float | None
    pairs: int
    std: float | None = None
    p: float | None = None
    p_holm: float | None = None

    @property
    def significant(self) -> bool:
        """True if the difference is significant at 5% after Holm's correction."""
        return self.p_holm is not None and self.p_holm < SIGNIFICANCE


class MethodSummary(NamedTuple):
    """One row of the comparison. Accuracies are fractions in [0, 1].

    Attributes:
        method: the method's name.
        seeds: the number of its runs.
        final: accuracy after the last round.
        best: the highest accuracy of a run, which is selected on the test set.
        last5: the mean accuracy of a run's last five evaluations.
        rounds_to_target: mean number of rounds to the target accuracy over the seeds that reached it, or None.
        reached: the number of seeds that reached it.
        traffic_bytes: bytes up and down, mean over seeds, or None.
        difference: of `headline`, from the first method; None for the first method itself.
        traffic_to_target_bytes: bytes sent until the target, mean over the seeds that reached it; None unless known for
            all of them.
        chain_kl: divergence from uniform classes of the data that averaged models were trained on, in nats, mean over
            seeds, or None.
        worst_class: accuracy in the class where it is lowest, after the last round.
        class_mean: mean over classes of the accuracy in each, after the last round.
        finished: the number of runs that have an accuracy.
        balances_classes: whether chains of several clients, or augmented copies, make the classes of `chain_kl` more
            uniform.
        evaluations: the smallest and the largest number of evaluations of a run.
        last5_of_seeds: each run's `last5` by its seed or `SeededDraw`.
        class_mean_of_seeds: each run's `class_mean`.
        by_class_mean: whether methods are compared by `class_mean`, as on an imbalanced test set, instead of `last5`.
    """

    method: str
    seeds: int
    final: Spread
    best: Spread
    last5: Spread
    rounds_to_target: float | None
    reached: int
    traffic_bytes: float | None
    difference: Difference | None
    traffic_to_target_bytes: float | None = None
    chain_kl: float | None = None
    worst_class: Spread = Spread(None, None, 0)
    class_mean: Spread = Spread(None, None, 0)
    finished: int = 0
    balances_classes: bool = False
    evaluations: tuple[int, int] = (MANY_EVALUATIONS, MANY_EVALUATIONS)
    last5_of_seeds: Mapping[Any, float] = MappingProxyType({})
    class_mean_of_seeds: Mapping[Any, float] = MappingProxyType({})
    by_class_mean: bool = False

    @property
    def headline(self) -> Spread:
        """The accuracy by which methods are compared: `class_mean` or `last5`."""
        return self.class_mean if self.by_class_mean else self.last5

    @property
    def headline_of_seeds(self) -> Mapping[Any, float]:
        """Each run's `headline` by its seed or `SeededDraw`."""
        return self.class_mean_of_seeds if self.by_class_mean else self.last5_of_seeds


class Curve(NamedTuple):
    """A value over rounds: the mean over seeds, and a band of one standard deviation around it.

    Attributes:
        rounds: `Int[E]`, ascending.
        mean: `Float[E]`.
        low: `Float[E]`, mean - standard deviation; None for a single seed.
        high: `Float[E]`, mean + standard deviation; None for a single seed.
    """

    rounds: np.ndarray
    mean: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None


def compare(runs: Sequence[Mapping[str, Any]], *, by_class_mean: bool | None = None) -> list[MethodSummary]:
    """Summarises the runs of each method over seeds and compares it with the first method.

    The runs of one seed share partition, initial weights and absences, so differences are paired by seed: the shared
    variation cancels, and the interval is narrower than that of two separate means. The seed of a run may be a
    `SeededDraw`: accuracies are then summarised by `spread_of_draws`.

    Args:
        runs: `runs` of a `summary.json`: mappings with method, seed, final_accuracy, best_accuracy, last5_accuracy,
            rounds_to_target, traffic_bytes and, if known, traffic_to_target_bytes, chain_kl, worst_class_accuracy,
            balanced_accuracy, clients_per_chain and copies; all but method and seed may be None.
        by_class_mean: whether to compare the methods by their mean over classes; None for `is_imbalanced(runs)`.

    Returns:
        One summary per method, in the order in which the methods first appear. The p-values of the differences have
        Holm's correction for their number.

    Raises:
        ValueError: a method has two runs with the same seed.
    """
    for (method, seed), times in Counter((run["method"], run["seed"]) for run in runs).items():
        if times > 1:
            raise ValueError(
                f"runs: received {times} runs of method {method!r} with seed {seed}; "
                "each pair of method and seed may stand there once; leave all but one out"
            )
    methods = list(dict.fromkeys(run["method"] for run in runs))
    grouped = {method: [run for run in runs if run["method"] == method] for method in methods}
    by_class_mean = is_imbalanced(runs) if by_class_mean is None else by_class_mean
    summaries = [_summarise(method, grouped[method], by_class_mean=by_class_mean) for method in methods]
    if not summaries:
        return []
    first, *others = summaries
    differences = [paired_difference(other.headline_of_seeds, first.headline_of_seeds) for other in others]
    corrected = zip(others, apply_holm(differences), strict=True)
    return [first, *(other._replace(difference=difference) for other, difference in corrected)]


def is_imbalanced(runs: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether some method's accuracy and mean over classes differ by half a point.

    Then the classes of the test set have different sizes, and accuracy says little about the rare ones.

    >>> is_imbalanced([{"method": "fedavg", "final_accuracy": 0.97, "balanced_accuracy": 0.42}])
    True
    """
    gaps: dict[str, list[float]] = {}
    for run in runs:
        accuracy, class_mean = run.get("final_accuracy"), run.get("balanced_accuracy")
        if accuracy is not None and class_mean is not None:
            gaps.setdefault(run["method"], []).append(class_mean - accuracy)
    return any(abs(fmean(of_method)) >= LARGEST_GAP for of_method in gaps.values())


def evaluations(runs: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Returns the smallest and the largest number of evaluations of a run; `MANY_EVALUATIONS` if it isn't known.

    >>> evaluations([{"last5_accuracy": 0.5, "evaluations": 2}, {"last5_accuracy": 0.5, "evaluations": 40}])
    (2, 40)
    """
    finished = [run for run in runs if run.get("last5_accuracy") is not None]
    counts = [run.get("evaluations") or MANY_EVALUATIONS for run in finished]
    return min(counts, default=MANY_EVALUATIONS), max(counts, default=MANY_EVALUATIONS)


def spread(values: Sequence[float | None]) -> Spread:
    """Computes mean and sample standard deviation of one number or None per seed.

    >>> spread([1.0, 3.0, None])
    Spread(mean=2.0, std=1.4142135623730951, seeds=2)
    """
    numbers = np.array([value for value in values if value is not None], dtype=float)
    mean = float(numbers.mean()) if numbers.size else None
    std = float(numbers.std(ddof=1)) if numbers.size > 1 else None
    return Spread(mean, std, numbers.size)


def spread_of_draws(values: Mapping[Any, float]) -> Spread:
    """Computes the spread of numbers by seed or `SeededDraw`; with several partitions, averages within each first.

    >>> spread_of_draws({SeededDraw(5, 0): 1.0, SeededDraw(5, 1): 3.0, SeededDraw(6, 0): 4.0, SeededDraw(6, 1): 4.0})
    Spread(mean=3.0, std=1.4142135623730951, seeds=2)
    """
    return spread(_independent(values))


def _independent(values: Mapping[Any, float]) -> list[float]:
    """Returns the numbers that count as independent: the mean on each partition, or those of a single partition."""
    groups: dict[Any, list[float]] = {}
    for draw, value in values.items():
        groups.setdefault(draw.partition if isinstance(draw, SeededDraw) else draw, []).append(value)
    return [fmean(group) for group in groups.values()] if len(groups) > 1 else list(values.values())


# scipy.stats is imported late: that takes longer than everything else that a command without statistics needs.


def seed_values(runs: Sequence[Mapping[str, Any]], metric: str) -> dict[str, dict[Any, float]]:
    """Returns the known values of a metric by method and seed, of runs as in a summary.

    Example:
        >>> seed_values([{"method": "a", "seed": 0, "kl": 0.5}, {"method": "b", "seed": 0, "kl": None}], "kl")
        {'a': {0: 0.5}, 'b': {}}
    """
    values: dict[str, dict[Any, float]] = {run["method"]: {} for run in runs}
    for run in runs:
        if is_number(run.get(metric)):
            values[run["method"]][run["seed"]] = run[metric]
    return values


def paired_difference(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> Difference:
    r"""Computes the mean of `ours - theirs` over common seeds or draws, with its two-sided 95% Student t interval.

    With n differences of mean d and sample standard deviation s the interval is
    $d \pm t_{0.975, n-1}\, s / \sqrt{n}$.
    """
    from scipy.stats import ttest_rel

    common = [draw for draw in ours if draw in theirs]
    left = _independent({draw: ours[draw] for draw in common})
    right = _independent({draw: theirs[draw] for draw in common})
    mean = fmean(map(operator.sub, left, right)) if common else None
    if len(left) < 2:
        return Difference(mean, None, None, len(left))
    std = float(np.std(np.subtract(left, right), ddof=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # if all differences are equal, or 0
        test = ttest_rel(left, right)
    low, high = map(float, test.confidence_interval(CONFIDENCE))
    p = float(test.pvalue)
    if std <= 1e-9 * abs(mean or 0.0):
        # Equal differences have no spread to test against, as those of a few whole numbers; equal runs don't differ.
        p = 1.0 if mean == 0 else None
    return Difference(mean, low, high, len(left), std, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects the p-values of m tests for their number, by Holm's step-down procedure.

    The k-th smallest p-value, counted from 0, is multiplied by m - k; none becomes smaller than the one before it.
    Rejecting where the result is below 0.05 rejects any true hypothesis with a probability of at most 5%, however the
    tests depend on each other.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(np.maximum.accumulate(np.asarray(p_values, float)[order] * factors), 1)
    return corrected.tolist()


def apply_holm(differences: Sequence[Difference]) -> list[Difference]:
    """Fills in `p_holm` of differences, corrected for the number of differences that have a p-value."""
    corrected = iter(holm([difference.p for difference in differences if difference.p is not None]))
    return [
        difference if difference.p is None else difference._replace(p_holm=next(corrected))
        for difference in differences
    ]


def seeds_needed(std: float, difference: float, *, level: float = SIGNIFICANCE, power: float = 0.8) -> int:
    """Computes how many pairs a two-sided paired t test needs.

    Args:
        std: the standard deviation of paired differences.
        difference: the mean difference to show, in the same unit; not 0.
        level: the p-value below which the test is significant.
        power: the probability with which it is, if the true mean is `difference`.

    Returns:
        The smallest number of pairs, at least 2.

    Example:
        >>> seeds_needed(std=0.012, difference=0.01)
        14
    """
    from scipy.stats import nct, norm, t

    if std == 0:
        return 2
    effect = abs(difference) / std
    pairs = max(2, int(((norm.isf(level / 2) + norm.ppf(power)) / effect) ** 2))  # the normal distribution needs fewer
    while nct.sf(t.isf(level / 2, pairs - 1), pairs - 1, effect * pairs**0.5) < power:
        pairs += 1
    return pairs


def mean_interval(value: Spread) -> tuple[float | None, float | None]:
    """Computes the two-sided 95% Student t interval of a mean over seeds; `(None, None)` for fewer than two.

    >>> [round(end, 3) for end in mean_interval(spread([1.0, 3.0]))]
    [-10.706, 14.706]
    """
    from scipy.stats import t

    if value.mean is None or value.std is None:
        return None, None
    low, high = t.interval(CONFIDENCE, value.seeds - 1)
    error = value.std / value.seeds**0.5
    return value.mean + float(low) * error, value.mean + float(high) * error


def curve(lines: Sequence[Mapping[str, Any]], method: str, value: str) -> Curve:
    """Computes the curve of one method's metric over rounds, from its seeds.

    Only rounds for which every seed of the method has the value are included: the mean of a changing set of seeds would
    jump, and the mean of the surviving runs would make a diverging method look better than it is.

    Args:
        lines: lines of a `metrics.jsonl`.
        method: its name.
        value: the key of the metric, such as "test_accuracy".

    Returns:
        The curve; empty without such a round.
    """
    runs: dict[Hashable, dict[int, float]] = {}
    for line in lines:
        if line["method"] == method:
            values = runs.setdefault(line["seed"], {})
            if line.get(value) is not None:
                values[line["round"]] = line[value]
    common = sorted(set.intersection(*map(set, runs.values()))) if runs else []
    table = np.array([[values[at] for at in common] for values in runs.values()], dtype=float)
    table = table.reshape(len(runs), len(common))
    return Curve(np.array(common, dtype=int), *_band(table))


def cumulate(lines: Sequence[Mapping[str, Any]], name: str, counts: Sequence[str]) -> list[dict[str, Any]]:
    """Returns copies of lines, in order of rounds, with the sum of some counts of the run so far, under a name.

    It is None from the first line without one of the counts on.
    """
    totals: dict[tuple[str, int], float | None] = {}
    result = []
    for line in sorted(lines, key=lambda line: line["round"]):
        run = (line["method"], line["seed"])
        parts = (totals.get(run, 0), *map(line.get, counts))
        known = [part for part in parts if part is not None]
        totals[run] = sum(known) if len(known) == len(parts) else None
        result.append({**line, name: totals[run]})
    return result


def class_accuracies(
    lines: Sequence[Mapping[str, Any]], method: str
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None] | None:
    """Computes each class's accuracy at the last evaluation: mean over seeds, and mean -/+ one standard deviation.

    Each is `Float[C]`, nan for a class without a value in some run; the bounds are None for a single seed. Returns None
    if the method has no class accuracies.
    """
    rows = [line.get("per_class_accuracy") for line in _last_lines(lines, method)]
    table = np.array([row for row in rows if row is not None], dtype=float)
    return _band(table) if table.size else None


def ranked_clients(runs: Sequence[np.ndarray]) -> np.ndarray | None:
    """Computes the accuracies of clients from worst to best, at every hundredth of the clients, mean over runs.

    Args:
        runs: the clients' accuracies in each run, `Float[N]`; nan for a client without test rows.

    Returns:
        `Float[101]`; None without a client that has test rows.

    Example:
        >>> ranked_clients([np.array([1.0, np.nan, 0.0]), np.array([0.5, 0.5, 0.5])])[[0, 50, 100]].tolist()
        [0.25, 0.5, 0.75]
    """
    shares = np.linspace(0, 1, 101)
    known = [ranked_known(np.asarray(run)) for run in runs]
    ranked = [np.interp(shares, np.linspace(0, 1, len(run)), run) for run in known if len(run)]
    return np.mean(ranked, axis=0) if ranked else None


def pooled_confusion(runs: Sequence[Mapping[str, Any]], method: str) -> np.ndarray | None:
    """Computes the fraction of each true class (row) predicted as each class, over all seeds, `Float[C, C]`.

    Rows of classes that the test set lacks are nan; None if no run has a matrix.
    """
    matrix = _total_confusion(runs, method)
    if matrix is None:
        return None
    total = matrix.toarray()
    counts = total.sum(axis=1, keepdims=True)
    return np.divide(total, counts, out=np.full_like(total, np.nan), where=counts > 0)


def predicted_shares(runs: Sequence[Mapping[str, Any]], method: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Computes the fraction of test images that a method predicts as each class, over all seeds, and the true one.

    Both are `Float[C]`; None if no run has a confusion matrix with images.

    Example:
        >>> runs = [{"method": "a", "confusion_matrix": [[3, 1], [2, 2]]}]
        >>> [shares.tolist() for shares in predicted_shares(runs, "a")]
        [[0.625, 0.375], [0.5, 0.5]]
    """
    total = _total_confusion(runs, method)
    return None if total is None or not total.sum() else (total.sum(0) / total.sum(), total.sum(1) / total.sum())


def _total_confusion(runs: Sequence[Mapping[str, Any]], method: str) -> Any:
    """Returns the sum of all seeds' matrices; sparse, since most entries are 0 if there are thousands of classes."""
    from scipy.sparse import csr_array

    matrices = [run.get("confusion_matrix") for run in runs if run["method"] == method]
    counts = [csr_array(matrix, dtype=float) for matrix in matrices if matrix is not None]
    return sum(counts[1:], counts[0]) if counts else None


def _summarise(method: str, runs: list[Mapping[str, Any]], *, by_class_mean: bool) -> MethodSummary:
    reached = spread([run["rounds_to_target"] for run in runs])
    sent = spread([run.get("traffic_to_target_bytes") for run in runs if run["rounds_to_target"] is not None])
    last5, class_means = _by_seed(runs, "last5_accuracy"), _by_seed(runs, "balanced_accuracy")
    return MethodSummary(
        method=method,
        seeds=len(runs),
        final=_over_draws(runs, "final_accuracy"),
        best=_over_draws(runs, "best_accuracy"),
        last5=spread_of_draws(last5),
        rounds_to_target=reached.mean,
        reached=reached.seeds,
        traffic_bytes=spread([run["traffic_bytes"] for run in runs]).mean,
        difference=None,
        traffic_to_target_bytes=sent.mean if sent.seeds == reached.seeds else None,
        chain_kl=spread([run.get("chain_kl") for run in runs]).mean,
        worst_class=_over_draws(runs, "worst_class_accuracy"),
        class_mean=spread_of_draws(class_means),
        finished=len(last5),
        balances_classes=any((run.get("clients_per_chain") or 1) > 1 or (run.get("copies") or 0) > 0 for run in runs),
        evaluations=evaluations(runs),
        last5_of_seeds=last5,
        class_mean_of_seeds=class_means,
        by_class_mean=by_class_mean,
    )


def _last_lines(lines: Sequence[Mapping[str, Any]], method: str) -> list[Mapping[str, Any]]:
    """Returns the line of the last evaluation of each of a method's runs."""
    ordered = sorted(lines, key=lambda line: line["round"])
    return list({line["seed"]: line for line in ordered if line["method"] == method}.values())


def _over_draws(runs: list[Mapping[str, Any]], name: str) -> Spread:
    return spread_of_draws(_by_seed(runs, name))


def _by_seed(runs: list[Mapping[str, Any]], name: str) -> dict[Any, float]:
    return {run["seed"]: run[name] for run in runs if run.get(name) is not None}


def _band(table: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    if len(table) == 0:
        return np.zeros(0), None, None
    mean = table.mean(axis=0)
    if len(table) == 1:
        return mean, None, None
    std = table.std(axis=0, ddof=1)
    return mean, mean - std, mean + std
