"""The entries of `summary.json`: cost, runs, partitions and mini-batches."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal.data import extra_bytes
from fedjax_bal.engine.host import Simulation
from fedjax_bal.lab.records import ClientResults, Composition, MiniBatches, Partition
from fedjax_bal.lab.setup import Setup
from fedjax_bal.lab.splits import RowsUsed, whole_line
from fedjax_bal.metrics import class_means, client_accuracies, divergences, evenly_spaced, rank_correlations
from fedjax_bal.parts import Batches
from fedjax_bal.status import duration
from fedjax_bal.types import Federation

_SHOWN = 50  # clients whose mini-batches are examined
_HEAT_MAP_CLIENTS = 200  # more rows can't be distinguished on a page
_MOST_CELLS = 1_000_000  # maximum number of values by client and class that all runs or methods store for figures


class Cost(NamedTuple):
    """The cost of training, over all sessions of a folder or of one batch."""

    compile_s: float = 0.0
    train_s: float = 0.0
    client_updates: int = 0
    samples: int = 0

    @classmethod
    def saved(cls, values: Mapping[str, Any]) -> "Cost":
        """Returns a saved cost; further keys of a later version are ignored."""
        return cls(*(values[name] for name in cls._fields))

    def after(self, seconds: float, client_updates: int, samples: int) -> "Cost":
        """Adds the cost of a dispatch."""
        return Cost(
            self.compile_s, self.train_s + seconds, self.client_updates + client_updates, self.samples + samples
        )

    def rates(self) -> dict[str, float | None]:
        """Computes training rates, excluding compilation; None before any training."""
        counts = {"client_updates_per_s": self.client_updates, "samples_per_s": self.samples}
        return {name: round(count / self.train_s, 3) if self.train_s > 0 else None for name, count in counts.items()}

    def in_words(self, wall_s: float) -> str:
        """Describes the number and rate of client updates, and the share of `wall_s` spent waiting for compilation.

        Example:
            >>> Cost(compile_s=21.0, train_s=60.0, client_updates=6000).in_words(wall_s=84.0)
            '6,000 client updates in 1 min 24 s, 100.0/s while training; compiling took 25% of the time'
        """
        pace = self.client_updates / max(self.train_s, 1e-9)
        share = self.compile_s / max(wall_s, 1e-9)
        return (
            f"{self.client_updates:,} client updates in {duration(wall_s)}, {pace:,.1f}/s while training; "
            f"compiling took {min(share, 1):.0%} of the time"
        )


def total(costs: Iterable[Cost]) -> Cost:
    """Adds costs."""
    return Cost(*map(sum, zip(*costs, strict=True)))


def known_runs(summary: Mapping[str, Any]) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Returns the runs recorded by an earlier session, by method and seed."""
    return {(run["method"], run["seed"]): run for run in summary.get("runs", ())}


def summarise_partitions(setup: Setup) -> list[Partition]:
    """Summarises the partitions of a configuration's methods."""
    seeds = [each.rows_used for each in (setup, *setup.others.values())]
    used = list(zip(*seeds, strict=True))
    return partitions_of([method.name for method in setup.methods], setup.simulations, setup.data_digests, used)


def partitions_of(
    methods: Sequence[str],
    simulations: Sequence[Simulation],
    digests: Sequence[np.ndarray],
    rows_used: Sequence[Sequence[RowsUsed]],
) -> list[Partition]:
    """Summarises the clients' class counts and the rows used, once for all methods that share a partition.

    Args:
        methods: the names of the methods.
        simulations: of each method.
        digests: of each method's data, `UInt8[32]`.
        rows_used: of each method, for each partition; the first is that of its simulation.
    """
    shared: dict[Any, Partition] = {}
    for method, simulation, digest, used in zip(methods, simulations, digests, rows_used, strict=True):
        text = whole_line(used)
        input_names = used[0].input_names
        federation = simulation.federation
        counts = np.asarray(federation.class_counts)
        shown = _spread(len(counts), _HEAT_MAP_CLIENTS, federation.num_classes * len(simulations))
        entry: Partition = {
            "methods": [],
            "data": text,
            "sha256": digest.tobytes().hex(),
            "clients": len(counts),
            "mean": _shortest(federation.mean),
            "std": _shortest(federation.std),
            "input_shape": list(federation.images.shape[1:]),
            "input_dtype": np.dtype(federation.images.dtype).name,
            "shown": shown.tolist(),
            "class_counts": counts[shown].tolist(),
            "samples": counts.sum(0).tolist(),
        }
        if input_names is not None:
            entry["input_names"] = list(input_names)
        if federation.client_names is not None:
            entry["client_names"] = [federation.client_names[client] for client in shown]
        if np.any(federation.copy):
            originals = np.asarray(federation.labels)[federation.rows[federation.copy == 0]]
            entry["augmentation"] = {
                "before": np.bincount(originals, minlength=federation.num_classes).tolist(),
                "after": entry["samples"],
                "extra_rows": int(counts.sum()) - len(originals),
                "extra_bytes": extra_bytes(federation),
            }
        # Compared by content, because different methods may prepare equal federations.
        named = entry.get("client_names"), input_names
        key = (
            digest.tobytes(),
            counts.tobytes(),
            repr((entry["mean"], entry["std"], text, entry.get("augmentation"), named)),
        )
        shared.setdefault(key, entry)["methods"].append(method)
    return list(shared.values())


def summarise_clients(
    key: tuple[str, int], federation: Federation, hits: np.ndarray, fine_tuned: Sequence[float | None] | None = None
) -> ClientResults:
    """Summarises the last evaluation of a run, given by method and seed, on each client's own test rows.

    `hits` are those of an `EvaluationResult`, `Int[N, C]`; without classes, `Int[N, 1]`, the means over classes are
    unknown. `fine_tuned` has the accuracies of the clients' fine-tuned models.
    """
    clients = federation.num_clients
    assert federation.tests is not None
    sizes = federation.tests.sizes
    originals = np.repeat(np.arange(clients), federation.sizes)[np.asarray(federation.copy) == 0]
    means = np.full(clients, np.nan)
    if hits.shape[1] == federation.num_classes:
        cells = np.repeat(np.arange(clients), sizes) * federation.num_classes
        cells += np.asarray(federation.labels)[np.asarray(federation.tests.rows)]
        means = class_means(hits, np.bincount(cells, minlength=hits.size).reshape(hits.shape))
    return ClientResults(
        *key,
        names=federation.client_names or tuple(map(str, range(clients))),
        training_rows=np.bincount(originals, minlength=clients),
        test_rows=sizes,
        accuracy=client_accuracies(hits.sum(1), sizes),
        balanced_accuracy=means,
        fine_tuned_accuracy=np.full(clients, np.nan) if fine_tuned is None else np.array(fine_tuned, float),
        new=np.zeros(clients, bool),
    )


def new_clients(
    key: tuple[str, int], federation: Federation, first: int, found: Mapping[str, Sequence[float | None]]
) -> ClientResults:
    """Summarises the clients that joined when a run, given by method and seed, was over.

    Args:
        key: method and seed.
        federation: the new clients.
        first: the number of the first one, if they have no names.
        found: their accuracies by kind, as they are saved.
    """
    clients = federation.num_clients
    bare = summarise_clients(key, federation, np.zeros((clients, 1)))
    kinds = ("accuracy", "balanced_accuracy", "fine_tuned_accuracy")
    return bare._replace(
        names=federation.client_names or tuple(str(first + client) for client in range(clients)),
        new=np.ones(clients, bool),
        **{kind: np.array(found[kind], float) for kind in kinds},
    )


def summarise_batches(methods: Sequence[str], simulations: Sequence[Simulation]) -> list[MiniBatches]:
    """Summarises the classes in mini-batches for methods that add rows, once for all methods with the same result.

    The figures are the divergence of clients' classes from uniform, and that of their mini-batches.
    """
    names: dict[tuple[float, float], list[str]] = {}
    divergence = lambda counts: round(float(divergences(counts).mean()), 5)
    for method, simulation in zip(methods, simulations, strict=True):
        counts = np.asarray(simulation.federation.class_counts, float)
        counts = counts[_spread(len(counts), _SHOWN, counts.shape[1] * len(simulations))]
        counts = counts[counts.sum(1) > 0]
        parts = simulation.setting.parts_with(Batches)
        added = sum((np.asarray(jax.vmap(part.added)(jnp.asarray(counts))) for part in parts), 0.0)
        if np.any(added):
            before = counts / counts.sum(1, keepdims=True)
            sizes = np.minimum(counts.sum(1), simulation.setting.batch_size)
            key = divergence(before), divergence(before * sizes[:, None] + added)
            names.setdefault(key, []).append(method)
    return [{"methods": shown, "kl_before": key[0], "kl_after": key[1]} for key, shown in names.items()]


def compare_compositions(estimates: np.ndarray, class_counts: np.ndarray) -> Composition:
    """Compares estimated and true class shares: mean over clients of Spearman's rank correlation."""
    sound = (np.isfinite(estimates) & (estimates >= 0)).all(1)
    comparable = sound & (estimates.sum(1) > 0) & (class_counts.sum(1) > 0)
    ranks = rank_correlations(estimates[comparable], class_counts[comparable])
    ranks = ranks[np.isfinite(ranks)]
    mean = round(float(ranks.mean()), 4) if len(ranks) else None
    return {"clients": int(comparable.sum()), "rank_correlation": mean}


def _spread(count: int, most: int, cells: int) -> np.ndarray:
    """Selects at most `most` evenly spaced indices from 0 to `count` - 1; fewer if each stands for many `cells`."""
    return evenly_spaced(count, min(most, max(_MOST_CELLS // cells, 1)))


def _shortest(numbers: Any) -> list[float]:
    """Converts 32-bit numbers with as few digits as needed: 0.1307, not 0.13070000708103180."""
    return [float(str(number)) for number in np.asarray(numbers, np.float32)]
