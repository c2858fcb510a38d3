"""Cohorts of a run: how even their classes are, how often clients are chosen, how well selectors know them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.metrics import Spread, evenly_spaced, spread

# No picture tells more points of a line, or dots in a cloud, apart.
MOST_STEPS = 500
MOST_DOTS = 1500


class Composition(NamedTuple):
    """Estimated and true class shares of clients, over seeds: `Float[K]` each, of K pairs of a client and a class.

    Attributes:
        true: the true shares.
        estimated: the estimated shares.
        pairs: number of all pairs, of which K random ones are kept.
        clients: the mean number of clients, over seeds, of which the selector has an estimate.
        rank_correlation: Spearman's over the classes of a client, mean over clients.
    """

    true: np.ndarray
    estimated: np.ndarray
    pairs: int
    clients: float
    rank_correlation: Spread


def chain_divergences(lines: Sequence[Mapping[str, Any]], method: str) -> dict[tuple[int, int], tuple[float, ...]]:
    """Divergences from even classes of the data behind each averaged model, in nats, by seed and evaluated round."""
    return {
        (line["seed"], line["round"]): tuple(line["chain_kls"])
        for line in lines
        if line["method"] == method and line.get("chain_kls")
    }


def mean_divergence(lines: Sequence[Mapping[str, Any]], method: str) -> float | None:
    """The mean of `chain_kl` over the evaluated rounds of each seed and then over seeds, as the comparison has it."""
    runs: dict[int, list[float]] = {}
    for line in lines:
        if line["method"] == method and line.get("chain_kl") is not None:
            runs.setdefault(line["seed"], []).append(line["chain_kl"])
    return spread([float(np.mean(values)) for values in runs.values()]).mean


def pooled(values: Mapping[Any, Sequence[float]]) -> np.ndarray:
    """The values of all seeds and rounds together, in rising order, `Float[K]`."""
    return np.sort(np.array([value for some in values.values() for value in some], dtype=float))


Times = tuple[tuple[int, int], ...]
"""Pairs of a number of times, rising, and the clients that were chosen so often."""


def times_chosen(runs: Sequence[Mapping[str, Any]], method: str) -> dict[tuple[int, int | None], Times]:
    """How often clients were chosen, by seed and the rounds that the run has come to."""
    return {
        (run["seed"], run.get("rounds")): tuple((times, clients) for times, clients in run["chosen"])
        for run in runs
        if run["method"] == method and any(clients for _, clients in run.get("chosen") or ())
    }


def class_samples(partitions: Sequence[Mapping[str, Any]]) -> np.ndarray | None:
    """Training images of each class that all clients together hold, `Float[C]`, copies left out.

    None where they differ between methods, or are not known.
    """
    found = {_class_samples(part) for part in partitions}
    (only,) = found if len(found) == 1 else (None,)
    return np.array(only, dtype=float) if only and any(only) else None


def _class_samples(partition: Mapping[str, Any]) -> tuple[float, ...] | None:
    if partition.get("samples"):
        return tuple(partition["samples"])
    whole = partition.get("class_counts") and len(partition["shown"]) == partition["clients"]
    return tuple(np.sum(partition["class_counts"], axis=0).tolist()) if whole else None


def chosen_at_most(counts: Sequence[Times], most: int) -> tuple[np.ndarray, np.ndarray]:
    """The share of clients that were chosen at most so many times, mean over seeds.

    `counts` are those of each seed. Returns times `Int[K]`, from 0 to `most`, and shares `Float[K]`.
    """
    times, shares = evenly_spaced(most + 1, MOST_STEPS), []
    for pairs in counts:
        known, clients = np.array(pairs, dtype=float).T
        sums = np.concatenate([[0], np.cumsum(clients)])
        shares.append(sums[np.searchsorted(known, times, side="right")] / sums[-1])
    return times, np.mean(shares, axis=0)


def differ(values: Sequence[Mapping[Any, Any]]) -> bool:
    """Tells whether the values of several methods, by run or by run and round, differ at a common key, or have none.

    An unfinished run has less than the others without being different, so only what two have in common counts.
    """
    times = Counter(key for each in values for key in each)
    shared = [key for key, methods in times.items() if methods > 1]
    if not shared:
        return len(values) > 1
    return any(len({each[key] for each in values if key in each}) > 1 for key in shared)


def pooled_composition(runs: Sequence[Mapping[str, Any]], method: str) -> Composition | None:
    """Estimated and true class shares of clients, over all of a method's seeds; None without any estimate."""
    found = [run["composition"] for run in runs if run["method"] == method and run.get("composition")]
    true, estimated = (
        np.array([share for each in found for row in each[key] for share in row], dtype=float)
        for key in ("true", "estimated")
    )
    if not true.size:
        return None
    # Drawn, as pairs stand class by class for each client, which a regular stride could follow.
    kept = np.sort(np.random.default_rng(0).permutation(true.size)[:MOST_DOTS])
    ranks = spread([each.get("rank_correlation") for each in found])
    clients = float(np.mean([each["clients"] for each in found]))
    return Composition(true[kept], estimated[kept], true.size, clients, ranks)
