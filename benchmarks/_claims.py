"""Checks the claims of papers.yaml against the runs in results/papers: paired differences, and verdicts.

The unit of replication is a draw of the partition: where runs have several, the seeds of each are averaged first, and
both sides are paired by draw. Runs on a single partition are paired by seed.
"""

import csv
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import yaml

from fedjax_bal.config import builtin_configs, read_command
from fedjax_bal.metrics.seeds import Difference, SeededDraw, paired_difference, spread_of_draws

KEPT = Path(__file__).parent / "results" / "papers"
CURVES = "_curves.csv"
CLAIMS = Path(__file__).parent / "papers.yaml"
VERDICTS = ("holds", "in part", "does not hold", "not decided", "could not be tested", "not run yet")
DECIDED = VERDICTS[:3]
FULL, SHORTENED, STAND_IN = SETTINGS = ("in full", "shortened", "stand-in")
EXACT = "by a formula"
"""What the runs of a claim repeat of the paper's experiment.

In full: the paper's data, model and settings, all rounds, and at least two seeds for both sides of each comparison.
Shortened: the same with fewer rounds or one seed. Stand-in: other data, a smaller federation or model, other settings.
"""
LEAST_SHARE = 0.25  # share of an experiment's rounds needed to decide a claim that doesn't ask for fewer
LEAST_POINTS, LEAST_RATIO = 3.0, 0.1
"""Minimum difference that decides without an interval: points of accuracy, or a fraction of the larger value."""
SWING_RATIO = 0.5  # the same for a standard deviation: one must be twice the other
SAFE_POINTS = 5.0  # a difference decided without an interval, and smaller than this, is marked

DRAW = "partition.seed"  # the column with the seed of the partition

Row = Mapping[str, str]


class Metric(NamedTuple):
    """A compared metric: its name in prose, its unit and factor, its value in a run and its curve, and decimals.

    `ratio` is the fraction of the larger value that decides without an interval; without one, points do.
    """

    meaning: str
    unit: str
    factor: float
    of: Callable[[Row, list[Row]], float | None]
    places: int = 1
    ratio: float | None = None

    def least(self, values: tuple[float, float]) -> float:
        """Returns the least difference of two values that decides without an interval."""
        ratio = LEAST_RATIO if self.ratio is None and self.factor != 100 else self.ratio
        return LEAST_POINTS if ratio is None else ratio * max(map(abs, values))


class Result(NamedTuple):
    """The stored runs of an experiment that have the same number of rounds."""

    experiment: str
    rounds: int
    rows: list[Row]
    curves: dict[tuple[str, ...], list[Row]]

    @property
    def axes(self) -> list[str]:
        """The keys that distinguish the points of a sweep; draws of the partition are replicates, not points."""
        return [key for key in self.rows[0] if "." in key and key != DRAW]

    @property
    def seeds(self) -> str:
        """Describes the number of seeds per method and point, or of partitions if there are several."""
        draws: dict[tuple[str, ...], list[SeededDraw]] = {}
        for row in self.rows:
            draws.setdefault((*(row[key] for key in self.axes), row["method"]), []).append(draw_of(row))
        several = len({draw.partition for own in draws.values() for draw in own}) > 1
        numbers = [len({draw.partition for draw in own} if several else own) for own in draws.values()]
        fewest, most = min(numbers), max(numbers)
        count = count_partitions if several else count_seeds
        return count(most) if fewest == most else f"{fewest} to {count(most)}"

    def rows_of(self, side: Mapping[str, Any]) -> list[Row]:
        """Returns the runs of one method, and of one point in a sweep."""
        wanted = {key: _plain(value) for key, value in side.items()}
        return [row for row in self.rows if all(_plain(row.get(key, "")) == value for key, value in wanted.items())]

    def values(self, side: Mapping[str, Any], metric: str) -> dict[SeededDraw, float]:
        """Returns a metric by partition and seed, for the runs of one method, and of one point in a sweep."""
        rows = self.rows_of(side)
        known = {draw_of(row): METRICS[metric].of(row, self.curves.get(run_of(row), [])) for row in rows}
        return {draw: METRICS[metric].factor * value for draw, value in known.items() if value is not None}


class Pair(NamedTuple):
    """One comparison: names and means of both sides, their difference, and whether it is as claimed.

    Without a result, it wasn't run, or failed as `failure` says; with a result but no difference, no run reached the
    target. `runs` has the partitions and seeds of each side, `common` those of both. If a side has runs that the other
    lacks, `across` has the least and the largest difference between any two runs of both sides. `margin` is what the
    difference must exceed.
    """

    higher: str
    lower: str
    point: str
    values: tuple[float, float]
    runs: tuple[Sequence[SeededDraw], Sequence[SeededDraw]]
    common: Sequence[SeededDraw]
    difference: Difference
    across: tuple[float, float] | None
    comparison: Mapping[str, Any]
    result: Result | None
    as_claimed: bool | None
    margin: float = 0
    failure: str = ""

    @property
    def metric(self) -> str:
        """The compared metric."""
        return self.comparison.get("metric", "last5_accuracy")

    @property
    def partitions(self) -> int:
        """The number of draws of the partition that both sides were run with."""
        return len({draw.partition for draw in self.common})

    @property
    def is_close(self) -> bool:
        """Tells whether one seed decided it by few points."""
        mean, low = self.difference.mean, self.difference.low
        points = METRICS[self.metric].least((0.0, 0.0)) == LEAST_POINTS
        decided = self.as_claimed is not None and low is None and points
        return decided and mean is not None and abs(mean - self.margin) < SAFE_POINTS


class Outcome(NamedTuple):
    """A claim, its verdict, the reason or what would decide it if there are no runs, and its comparisons.

    `setting` is one of SETTINGS, or EXACT; it is empty if there are no runs.
    """

    claim: Mapping[str, Any]
    verdict: str
    reason: str
    pairs: list[Pair]
    missing: int
    failures: list[str]
    setting: str

    @property
    def ranking(self) -> str:
        """Orders the compared methods by the metric that the claim names under `ranking`; empty if it names none."""
        result = next((pair.result for pair in self.pairs if pair.result), None)
        if "ranking" not in self.claim or result is None:
            return ""
        metric = self.claim["ranking"]
        pairs = [pair for pair in self.pairs if pair.result is result]
        names = dict.fromkeys(name for pair in pairs for name in (pair.higher, pair.lower))
        values = {name: result.values({"method": name}, metric) for name in names}
        common = set.intersection(*map(set, values.values()))
        if not common:
            return ""
        means = {name: fmean(own[draw] for draw in common) for name, own in values.items()}
        order = sorted(means, key=means.__getitem__, reverse=True)
        listed = ", ".join(f"`{name}` {means[name]:.1f}" for name in order)
        return f"By {METRICS[metric].meaning}, {replicates(list(common))}, the order is {listed}."


@cache
def papers() -> dict[str, Any]:
    """Reads the papers with their claims, in file order."""
    return yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))


def experiment_of(name: str) -> str:
    """Returns the experiment whose configuration has this name, such as papers/flcir/cifar10 for flcir_cifar10."""
    return f"papers/{name.replace('_', '/', 1)}"


@cache
def rounds_of(experiment: str) -> int:
    """Reads the number of rounds of an experiment's configuration."""
    return read_command(builtin_configs()[experiment]).stated["training"]["rounds"]


def _partition(experiment: str) -> Mapping[str, Any]:
    """Reads the partition of an experiment's configuration."""
    return read_command(builtin_configs()[experiment]).stated.get("partition", {})


def results() -> dict[str, list[Result]]:
    """Reads all stored runs by experiment, those with the most rounds first."""
    found: dict[str, list[Result]] = {}
    for file in sorted(KEPT.glob("*.csv")):
        if not file.name.endswith(CURVES):
            experiment, rounds = _content(file)
            curves: dict[tuple[str, ...], list[Row]] = {}
            for row in stored(file.with_name(file.stem + CURVES)):
                curves.setdefault(run_of(row), []).append(row)
            found.setdefault(experiment, []).append(Result(experiment, rounds, stored(file), curves))
    return {name: sorted(own, key=lambda result: -result.rounds) for name, own in found.items()}


def stored(file: Path) -> list[Row]:
    """Reads a table of runs or curves, if it exists; without a column of partitions, they have the configuration's."""
    own = {DRAW: str(_partition(_content(file)[0]).get("seed", 0))}
    return [{**own, **row} for row in table(file)] if file.exists() else []


def _content(file: Path) -> tuple[str, int]:
    """Returns the experiment and the number of rounds that a table's name stands for."""
    stem = file.name.removesuffix(CURVES).removesuffix(".csv")
    name, _, rounds = stem.removesuffix("_rounds").rpartition("_")
    whole = not stem.endswith("_rounds")
    experiment = experiment_of(stem if whole else name)
    return experiment, rounds_of(experiment) if whole else int(rounds)


def run_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the columns that identify a run in both tables of an experiment."""
    return row.get("point", ""), str(row.get(DRAW, "")), row["method"], str(row["seed"])


def draw_of(row: Row) -> SeededDraw:
    """Returns a run's partition and seed."""
    return SeededDraw(int(row[DRAW]) if row.get(DRAW) else None, row["seed"])


def table(file: Path) -> list[Row]:
    """Reads the rows of a CSV file."""
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def outcome(paper: Mapping[str, Any], claim: Mapping[str, Any], known: Mapping[str, list[Result]]) -> Outcome:
    """Decides a claim from all of its comparisons."""
    compared = [pair for comparison in claim.get("compare", ()) for pair in _pairs(claim, comparison, known)]
    pairs = [pair for pair in compared if pair.result]
    failures = list(dict.fromkeys(pair.failure for pair in compared if pair.failure))
    decided = [pair.as_claimed for pair in compared if pair.result or pair.failure]
    reason = claim.get("untested") or unrun(paper, claim["run"])
    if "exact" in claim:
        return Outcome(claim, VERDICTS[0], claim["exact"], pairs, 0, [], EXACT)
    verdict = _verdict(decided) if decided else VERDICTS[4 if reason else 5]
    if decided and "open" in claim:
        verdict = VERDICTS[3]
    reason = "" if decided else reason or claim.get("decides", "")
    return Outcome(claim, verdict, reason, pairs, len(compared) - len(decided), failures, _setting(paper, pairs))


def _setting(paper: Mapping[str, Any], pairs: list[Pair]) -> str:
    """Returns what the comparisons together repeat of the paper's experiment: no more than the least of them."""
    ran = [(pair.result, pair.common) for pair in pairs if pair.result]
    if any(_is_stand_in(paper, result) for result, _ in ran):
        return STAND_IN
    if any(result.rounds < rounds_of(result.experiment) or len(common) < 2 for result, common in ran):
        return SHORTENED
    return FULL if ran else ""


def _is_stand_in(paper: Mapping[str, Any], result: Result) -> bool:
    listed = any(fnmatch(result.experiment, pattern) for pattern in paper.get("stand_ins", ()))
    return listed or any(row.get("changes") for row in result.rows)


def unrun(paper: Mapping[str, Any], experiment: str) -> str:
    """Returns the reason why an experiment isn't run; empty if there is none."""
    return next((why for pattern, why in paper.get("unrun", {}).items() if fnmatch(experiment, pattern)), "")


def _verdict(decided: list[bool | None]) -> str:
    if all(decided):
        return "holds"
    if any(decided):
        return "in part"
    return "does not hold" if False in decided else "not decided"


def _pairs(
    claim: Mapping[str, Any], comparison: Mapping[str, Any], known: Mapping[str, list[Result]]
) -> Iterator[Pair]:
    """Yields one comparison per higher side, lower side and point."""
    experiment = comparison.get("run", claim["run"])
    least = lambda: comparison.get("rounds", LEAST_SHARE * rounds_of(experiment))
    usable = [result for result in known.get(experiment, ()) if result.rounds >= least()]
    sides = (_several(comparison[key]) for key in ("higher", "lower"))
    margin = _margin(comparison, known)
    for higher, lower, point in itertools.product(*sides, _several(comparison.get("at", {}))):
        if higher != lower:
            yield _pair(comparison, higher, lower, point, usable, margin)


def _margin(comparison: Mapping[str, Any], known: Mapping[str, list[Result]]) -> float:
    """Returns a comparison's margin, which may be a share of the mean difference of another one."""
    margin = comparison.get("margin", 0)
    if not isinstance(margin, Mapping):
        return margin
    usable = known.get(margin["run"], [])
    mean = _pair(margin, margin["higher"], margin["lower"], {}, usable, 0).difference.mean
    return math.inf if mean is None else margin["share"] * mean


def _pair(
    comparison: Mapping[str, Any],
    higher: Any,
    lower: Any,
    point: Mapping[str, Any],
    usable: list[Result],
    margin: float,
) -> Pair:
    metric = comparison.get("metric", "last5_accuracy")
    best = None
    for result in usable:
        found = [None if _is_number(side) else _values(result, side, point, metric) for side in (higher, lower)]
        of_runs = [own for own in found if own is not None]
        common = [draw for draw in of_runs[0] if all(draw in own for own in of_runs)]
        # Among runs of several lengths, one with an interval takes precedence, then the longest.
        if common:
            ours, theirs = (
                {draw: float(side) if own is None else own[draw] for draw in common}
                for own, side in zip(found, (higher, lower), strict=True)
            )
            if metric in TO_TARGET:
                ours, theirs = _comparable(ours, theirs)
            ours = {draw: comparison.get("times", 1) * value for draw, value in ours.items()}
            difference = paired_difference(ours, theirs)
            across = None
            # Before the target, values stand for different things, so that other seeds can't be compared.
            if metric not in TO_TARGET and any(len(own) > len(common) for own in of_runs):
                ours, theirs = (own or fixed for own, fixed in zip(found, (ours, theirs), strict=True))
                differences = [a - b for a, b in itertools.product(ours.values(), theirs.values())]
                across = min(differences), max(differences)
            spreads = spread_of_draws(ours), spread_of_draws(theirs)
            runs = tuple(ours), tuple(theirs)
            if best is None or (best[3].low is None and difference.low is not None):
                best = spreads, runs, common, difference, across, result
    names = name_of(higher), name_of(lower), name_of(point)
    if best is None:
        failure = _failure(higher, point, usable) or _failure(lower, point, usable)
        none = Difference(None, None, None, 0)
        return Pair(*names, (0.0, 0.0), ((), ()), (), none, None, comparison, None, None, margin, failure)
    spreads, runs, common, difference, across, result = best
    means = spreads[0].mean or 0.0, spreads[1].mean or 0.0
    low, high, mean = difference.low, difference.high, difference.mean
    decided = None
    if mean is not None:
        if low is None or high is None:
            least = METRICS[metric].least(means)
            low, high = mean - least, mean + least
        decided = _decide(comparison, margin, low, high)
        if across and _decide(comparison, margin, *across) != decided:
            decided = None
    return Pair(*names, means, runs, common, difference, across, comparison, result, decided, margin)


def _decide(comparison: Mapping[str, Any], margin: float, low: float, high: float) -> bool | None:
    """Compares an interval with the margin, or with both limits of `within`."""
    least, most = margin, math.inf
    if "within" in comparison:
        least, most = -comparison["within"], comparison["within"]
    return True if least < low and high < most else False if high < least or most < low else None


def _values(result: Result, side: Any, point: Mapping[str, Any], metric: str) -> dict[SeededDraw, float]:
    return result.values(_side(side, point), metric)


def _failure(side: Any, point: Mapping[str, Any], usable: list[Result]) -> str:
    """Describes the first run of a side that failed; empty if none did."""
    rows = [row for result in usable if not _is_number(side) for row in result.rows_of(_side(side, point))]
    failures = [row["failure"] for row in rows if row.get("failure")]
    return f"`{name_of(side)}` has no value: {failures[0].partition(';')[0]}" if failures else ""


def _side(side: Any, point: Mapping[str, Any]) -> dict[str, Any]:
    return {**({"method": side} if isinstance(side, str) else side), **point}


_ByDraw = Mapping[SeededDraw, float]


def _comparable(ours: _ByDraw, theirs: _ByDraw) -> tuple[dict[SeededDraw, float], dict[SeededDraw, float]]:
    """Keeps the runs that show which side reached the target first.

    Values are negative for a run that didn't reach the target, and then give the whole cost of that run.
    """
    kept = {
        draw: (ours[draw], theirs[draw])
        for draw in ours
        if max(ours[draw], theirs[draw]) > 0 and (min(ours[draw], theirs[draw]) > 0 or ours[draw] + theirs[draw] < 0)
    }
    return {draw: abs(pair[0]) for draw, pair in kept.items()}, {draw: abs(pair[1]) for draw, pair in kept.items()}


def _is_number(side: Any) -> bool:
    return isinstance(side, int | float)


def name_of(side: Any) -> str:
    """Formats a method, a point or a number."""
    if isinstance(side, Mapping):
        return ", ".join(str(v) if k == "method" else f"{short(k)} {v}" for k, v in side.items())
    return str(side)


def count_seeds(number: int) -> str:
    """Formats a number of seeds."""
    return "one seed" if number == 1 else f"{number} seeds"


def replicates(draws: Sequence[SeededDraw]) -> str:
    """Counts the seeds and partitions of runs."""
    partitions = len({draw.partition for draw in draws})
    if partitions < 2:
        return f"{count_seeds(len(draws))} of one partition"
    return count_partitions(partitions) + (f" with {len(draws)} runs" if len(draws) > partitions else "")


def count_partitions(number: int) -> str:
    """Formats a number of draws of the partition."""
    return "one partition" if number == 1 else f"{number} partitions"


def short(key: str) -> str:
    """Removes the section from a swept key; what is chosen by name is called by its section."""
    section, _, last = key.rpartition(".")
    return section if last == "name" else last


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _plain(value: Any) -> str:
    """Formats a swept value, with the same text for YAML and for tables."""
    try:
        return repr(float(value))
    except (TypeError, ValueError):
        return str(value).replace(" ", "")


def _number(row: Row, key: str) -> float | None:
    return float(row[key]) if row.get(key) else None


def _column(key: str) -> Callable[[Row, list[Row]], float | None]:
    return lambda row, curve: _number(row, key)


def _until_target(key: str, whole: str) -> Callable[[Row, list[Row]], float | None]:
    """Returns a run's cost until the target; if it didn't reach the target, its whole cost, negated."""

    def value(row: Row, curve: list[Row]) -> float | None:
        taken, in_all = _number(row, key), _number(row, whole)
        return -in_all if taken is None and in_all is not None else taken

    return value


def _round_of_best(row: Row, curve: list[Row]) -> float | None:
    best = max(curve, key=lambda point: float(point["test_accuracy"]), default=None)
    return int(best["round"]) if best else None


def _traffic_to_75(row: Row, curve: list[Row]) -> float | None:
    """Returns the traffic until the first stored evaluation with 75%; if there is none, the whole traffic, negated."""
    in_all = _number(row, "traffic_bytes")
    if in_all is None or not curve:
        return None
    reached = (int(point["round"]) for point in curve if float(point["test_accuracy"]) >= 0.75)
    first = next(reached, None)
    return -in_all if first is None else in_all * first / int(row["rounds"])


def _of_curve(key: str, of: Callable[[list[float]], float]) -> Callable[[Row, list[Row]], float | None]:
    def value(row: Row, curve: list[Row]) -> float | None:
        values = [float(point[key]) for point in curve if point.get(key)]
        return of(values) if len(values) > 8 else None

    return value


def _late(values: list[float]) -> list[float]:
    return values[-max(len(values) // 4, 5) :]


def _fall(values: list[float]) -> float:
    means = [fmean(values[place : place + 5]) for place in range(len(values) - 4)]
    return max(means) - means[-1]


TO_TARGET = ("rounds_to_target", "traffic_to_target", "traffic_to_75")
METRICS = {
    "last5_accuracy": Metric("mean accuracy of the last five evaluations", "%", 100, _column("last5_accuracy")),
    "best_accuracy": Metric("best accuracy", "%", 100, _column("best_accuracy")),
    "final_accuracy": Metric("final accuracy", "%", 100, _column("final_accuracy")),
    "worst_class": Metric(
        "accuracy in the worst class, mean of the last five evaluations", "%", 100, _column("last5_worst_class")
    ),
    "early_accuracy": Metric(
        "mean accuracy over the first half of the rounds", "%", 100,
        _of_curve("test_accuracy", lambda values: fmean(values[: len(values) // 2])),
    ),
    "swing": Metric(
        "standard deviation over the last quarter of the rounds", "points", 100,
        _of_curve("test_accuracy", lambda values: stdev(_late(values))), ratio=SWING_RATIO,
    ),
    "fall": Metric(
        "highest mean of five neighbouring points of the curve, minus the last", "points", 100,
        _of_curve("test_accuracy", _fall),
    ),
    "local_models": Metric(
        "accuracy of the clients' models over the last quarter of the rounds", "%", 100,
        _of_curve("local_test_accuracy", lambda values: fmean(_late(values))),
    ),
    "own_data": Metric(
        "accuracy on the clients' own data over the last quarter of the rounds", "%", 100,
        _of_curve("local_accuracy", lambda values: fmean(_late(values))),
    ),
    "diversity": Metric(
        "distance between the clients' models over the last quarter of the rounds", "", 1,
        _of_curve("update_diversity", lambda values: fmean(_late(values))), 3,
    ),
    "chain_kl": Metric(
        "KL divergence from even classes of the data behind an averaged model", "nats", 1, _column("chain_kl"), 3
    ),
    "cohort_kl": Metric(
        "KL divergence from even classes of the data of a round's clients together", "nats", 1, _column("cohort_kl"), 3
    ),
    "rounds_to_target": Metric("rounds to the target", "rounds", 1, _until_target("rounds_to_target", "rounds"), 0),
    "rounds_to_best": Metric("round of the best accuracy", "rounds", 1, _round_of_best, 0),
    "traffic_to_target": Metric(
        "traffic to the target", "MB", 1e-6, _until_target("traffic_to_target_bytes", "traffic_bytes"), 0
    ),
    "traffic_to_75": Metric("traffic to 75%", "MB", 1e-6, _traffic_to_75, 0),
    "rank_correlation": Metric(
        "rank correlation of estimated and true classes of the clients", "", 1, _column("rank_correlation"), 2
    ),
    "nearest_image": Metric(
        "distance of the generated image that is nearest to the clients', by that of the nearest test image", "", 1,
        _column("nearest_image"), 2,
    ),
    "truth_correlation": Metric("correlation of the pixels with the truth", "", 1, _column("truth_correlation"), 2),
}  # fmt: skip
