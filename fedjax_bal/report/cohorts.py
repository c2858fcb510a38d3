"""What a run says about cohorts: how even their classes are, who is chosen how often, what is believed of whom."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.metrics import Spread, spread

# No picture tells more points of a line, or dots in a cloud, apart.
MOST_STEPS = 500
MOST_DOTS = 1500


class Composition(NamedTuple):
    """Estimated and true class shares of clients, over seeds.

    Attributes:
        true: `Float[K]`, K pairs of one client and one class.
        estimated: `Float[K]`, of the same pairs.
        pairs: how many pairs there are, of which K evenly spaced ones are kept.
        clients: the mean number of clients, over seeds, of which the selector has an estimate.
        rank_correlation: Spearman's over the classes of a client, mean over clients.
    """

    true: np.ndarray
    estimated: np.ndarray
    pairs: int
    clients: float
    rank_correlation: Spread


def chain_divergences(lines: Sequence[Mapping[str, Any]], method: str) -> dict[tuple[int, int], tuple[float, ...]]:
    """How far from even the classes are behind each averaged model, in nats, of each seed and evaluated round.

    >>> chain_divergences([{"method": "a", "seed": 0, "round": 1, "chain_kls": [0.1, 0.2]}], "a")
    {(0, 1): (0.1, 0.2)}
    """
    return {
        (line["seed"], line["round"]): tuple(line["chain_kls"])
        for line in lines
        if line["method"] == method and line.get("chain_kls")
    }


def mean_divergence(lines: Sequence[Mapping[str, Any]], method: str) -> float | None:
    """The mean of `chain_kl` over the evaluated rounds of each seed and then over seeds, as the comparison has it.

    >>> mean_divergence([{"method": "a", "seed": 0, "round": r, "chain_kl": r / 4} for r in (1, 3)], "a")
    0.5
    """
    runs: dict[int, list[float]] = {}
    for line in lines:
        if line["method"] == method and line.get("chain_kl") is not None:
            runs.setdefault(line["seed"], []).append(line["chain_kl"])
    return spread([float(np.mean(values)) for values in runs.values()]).mean


def pooled(values: Mapping[Any, Sequence[float]]) -> np.ndarray:
    """The values of all seeds and rounds together, in rising order, `Float[K]`.

    >>> pooled({(0, 1): (0.1, 0.4), (1, 1): (0.2,)})
    array([0.1, 0.2, 0.4])
    """
    return np.sort(np.array([value for some in values.values() for value in some], dtype=float))


def times_chosen(runs: Sequence[Mapping[str, Any]], method: str) -> dict[tuple[int, int | None], tuple[int, ...]]:
    """How many clients were chosen 0 times, once, twice and so on, by seed and the rounds that the run has come to.

    >>> times_chosen([{"method": "a", "seed": 0, "rounds": 4, "chosen": [2, 0, 1]}], "a")
    {(0, 4): (2, 0, 1)}
    """
    return {
        (run["seed"], run.get("rounds")): tuple(run["chosen"])
        for run in runs
        if run["method"] == method and any(run.get("chosen") or ())
    }


def chosen_at_most(counts: Sequence[Sequence[int]], most: int) -> tuple[np.ndarray, np.ndarray]:
    """The share of clients that were chosen at most that many times, mean over seeds.

    Args:
        counts: of each seed the clients chosen 0 times, once and so on.
        most: up to how many times.

    Returns:
        Times `Int[K]`, from 0 to `most` and at most 500 of them, and shares `Float[K]`.

    >>> chosen_at_most([[2, 0, 2], [0, 4]], 3)
    (array([0, 1, 2, 3]), array([0.25, 0.75, 1.  , 1.  ]))
    """
    times = np.unique(np.linspace(0, most, min(most + 1, MOST_STEPS)).round().astype(int))
    sums = [np.cumsum(np.array(each, dtype=float)) for each in counts]
    shares = [each[np.minimum(times, len(each) - 1)] / each[-1] for each in sums]
    return times, np.mean(shares, axis=0)


def differ(values: Sequence[Mapping[Any, Any]]) -> bool:
    """Whether methods, given by run or by run and round, differ where they share a key; or several share none.

    An unfinished run has less than the others without being different, so only what two have in common counts.

    >>> differ([{0: "a", 1: "b"}, {0: "a"}]), differ([{0: "a"}, {0: "b"}]), differ([{0: "a"}])
    (False, True, False)
    """
    times = Counter(key for each in values for key in each)
    shared = [key for key, methods in times.items() if methods > 1]
    if not shared:
        return len(values) > 1
    return any(len({each[key] for each in values if key in each}) > 1 for key in shared)


def pooled_composition(runs: Sequence[Mapping[str, Any]], method: str) -> Composition | None:
    """Class shares of clients as a method's selector estimates them and as they are, over all seeds; None without any.

    >>> one = {"clients": 9, "rank_correlation": 0.5, "shown": [4], "estimated": [[0.7, 0.3]], "true": [[1, 0]]}
    >>> pooled_composition([{"method": "a", "composition": one}], "a").estimated
    array([0.7, 0.3])
    """
    found = [run["composition"] for run in runs if run["method"] == method and run.get("composition")]
    true, estimated = (
        np.array([share for each in found for row in each[key] for share in row], dtype=float)
        for key in ("true", "estimated")
    )
    if not true.size:
        return None
    kept = np.unique(np.linspace(0, true.size - 1, min(true.size, MOST_DOTS)).round().astype(int))
    ranks = spread([each.get("rank_correlation") for each in found])
    clients = float(np.mean([each["clients"] for each in found]))
    return Composition(true[kept], estimated[kept], true.size, clients, ranks)
