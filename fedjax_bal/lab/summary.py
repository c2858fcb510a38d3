"""The entries of `summary.json`: cost, runs, partitions and mini-batches."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal.config import Config, MethodConfig
from fedjax_bal.data import extra_bytes
from fedjax_bal.engine.host import DispatchResult, Simulation
from fedjax_bal.lab.display import duration
from fedjax_bal.lab.setup import Comparison
from fedjax_bal.metrics import RunHistory, divergences, rank_correlations, summarise_run
from fedjax_bal.parts import Batches
from fedjax_bal.types import Federation
from fedjax_bal.validate import is_number

_SHOWN = 50  # clients whose mini-batches are examined
_HEAT_MAP_CLIENTS = 200  # more rows can't be distinguished on a page
_MOST_CELLS = 1_000_000  # maximum number of values by client and class that all runs or methods store for figures


class Cost(NamedTuple):
    """The cost of training, over all sessions of a folder or of one batch."""

    compile_s: float = 0.0
    train_s: float = 0.0
    client_updates: int = 0
    samples: int = 0

    def after(self, seconds: float, results: Iterable[DispatchResult]) -> "Cost":
        """Adds the cost of one dispatch."""
        found = list(results)
        updates = sum(result.client_updates for result in found)
        samples = sum(result.samples for result in found)
        return Cost(self.compile_s, self.train_s + seconds, self.client_updates + updates, self.samples + samples)

    def rates(self) -> dict[str, float | None]:
        """Training rates, excluding compilation; None before any training."""
        counts = {"client_updates_per_s": self.client_updates, "samples_per_s": self.samples}
        return {name: round(count / self.train_s, 3) if self.train_s > 0 else None for name, count in counts.items()}

    def in_words(self, wall_s: float) -> str:
        """Describes the number and rate of client updates, and the share of `wall_s` spent waiting for compilation.

        Example:
            >>> Cost(compile_s=21.0, train_s=60.0, client_updates=6000).in_words(wall_s=84.0)
            '6,000 client updates in 1:24, 100.0/s while training; compiling took 25% of the time'
        """
        pace = self.client_updates / max(self.train_s, 1e-9)
        share = self.compile_s / max(wall_s, 1e-9)
        return (
            f"{self.client_updates:,} client updates in {duration(wall_s)}, {pace:,.1f}/s while training; "
            f"compiling took {min(share, 1):.0%} of the time"
        )


def total(costs: Iterable[Cost]) -> Cost:
    """Sums costs."""
    return Cost(*map(sum, zip(*costs, strict=True)))


def cost_of(saved: Any) -> Cost:
    """Reads the cost recorded by an earlier session; damaged values become 0."""
    values = saved if isinstance(saved, dict) else {}
    return Cost(*(number(values.get(key)) for key in Cost._fields))


def number(value: Any) -> Any:
    """Reads a count or time recorded by an earlier session; 0 if damaged."""
    return value if is_number(value) and math.isfinite(value) else 0


def known_runs(summary: Mapping[str, Any]) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Returns the runs recorded by an earlier session, by method and seed; drops damaged entries."""
    runs = summary.get("runs")
    entries = [run for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []
    return {(str(entry.get("method")), number(entry.get("seed"))): entry for entry in entries}


def summarise_state(
    lines: Sequence[Mapping[str, Any]],
    selector: Any,
    failure: str | None,
    config: MethodConfig,
    simulation: Simulation,
    personalised: Mapping[str, Any] | None,
    leaks: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Builds a run's entry of the summary.

    `selector` is the selector's state, None before the first dispatch; `personalised` and `leaks` are the results of
    the post-training analyses.
    """
    history = RunHistory(
        lines=lines,
        rounds=config.training.rounds,
        target=config.evaluation.target_accuracy,
        stopping=config.training.early_stopping.rule,
        fine_tuned=personalised or {},
        failure=failure,
        clients_per_chain=simulation.selector.chain_length,
        copies=int(np.count_nonzero(simulation.federation.copy)),
    )
    figures = summarise_run(history)
    estimates = simulation.selector.compositions
    if estimates is not None and selector is not None:
        figures["composition"] = _compared(estimates(selector), np.asarray(simulation.federation.class_counts))
    return {**figures, "leaks": leaks and _finite_leaks(leaks), "failure": failure}


def _finite_leaks(leaks: Mapping[str, Any]) -> dict[str, Any]:
    """Drops attack results with non-finite numbers, which a diverging model can produce."""
    finite = lambda figures: all(number is not None and np.isfinite(number) for number in figures.values())
    inversion = {name: figures for name, figures in (leaks.get("inversion") or {}).items() if finite(figures)}
    nearest = leaks.get("nearest")
    whole = nearest is not None and all(map(finite, nearest.values()))
    others = {key: value for key, value in leaks.items() if key != "nearest" or whole}
    return others | ({"inversion": inversion} if "inversion" in leaks else {})


def summarise_partitions(comparison: Comparison) -> list[dict[str, Any]]:
    """Summarises the clients' class counts and the rows used, once for all methods that share a partition."""
    shared: dict[Any, dict[str, Any]] = {}
    whole = zip(comparison.methods, comparison.simulations, comparison.rows_used, strict=True)
    for method, simulation, used in whole:
        federation = simulation.federation
        clients = federation.num_clients
        shown = _spread(clients, _HEAT_MAP_CLIENTS, federation.num_classes * len(comparison.simulations))
        entry = {
            "methods": [],
            "data": used,
            "clients": clients,
            "mean": _shortest(federation.mean),
            "std": _shortest(federation.std),
            "shown": shown.tolist(),
            "class_counts": np.asarray(federation.class_counts)[shown].tolist(),
            "samples": np.asarray(federation.class_counts).sum(0).tolist(),
            **_augmentation(federation),
        }
        # Compared by content, because different methods may prepare equal federations.
        constants = entry["mean"], entry["std"]
        key = np.asarray(federation.class_counts).tobytes(), repr((_augmentation(federation), constants, used))
        shared.setdefault(key, entry)["methods"].append(method.name)
    return list(shared.values())


def summarise_batches(config: Config, simulations: Sequence[Simulation]) -> list[dict[str, Any]]:
    """Summarises the classes in mini-batches for methods that add rows, once for all methods with the same result."""
    found: list[dict[str, Any]] = []
    for method, simulation in zip(config.methods, simulations, strict=True):
        about = _batches(simulation, len(simulations))
        alike = next((entry for entry in found if {**entry, **about} == entry), None) if about else None
        if alike:
            alike["methods"].append(method.name)
        elif about:
            found.append({"methods": [method.name], **about})
    return found


def _augmentation(federation: Federation) -> dict[str, Any]:
    """Counts each class before and after augmentation, and the added rows and bytes; empty without augmented copies."""
    if not np.any(federation.copy):
        return {}
    classes = federation.num_classes
    originals = federation.rows[federation.copy == 0]
    before = np.bincount(np.asarray(federation.labels)[originals], minlength=classes)
    after = np.asarray(federation.class_counts).sum(0, dtype=np.int64)
    sizes = {"extra_rows": int(after.sum() - before.sum()), "extra_bytes": extra_bytes(federation)}
    return {"augmentation": {"before": before.tolist(), "after": after.tolist(), **sizes}}


def _batches(simulation: Simulation, methods: int) -> dict[str, Any]:
    """Computes the divergence of clients' classes and mini-batches from uniform; empty if no part adds rows."""
    counts = np.asarray(simulation.federation.class_counts, float)
    shown = _spread(len(counts), _SHOWN, counts.shape[1] * methods)
    shown = shown[counts[shown].sum(1) > 0]
    before = counts[shown] / counts[shown].sum(1, keepdims=True)
    sizes = np.minimum(counts[shown].sum(1), simulation.setting.batch_size)
    parts = simulation.setting.parts_with(Batches)
    added = sum((np.asarray(jax.vmap(part.added)(jnp.asarray(counts[shown]))) for part in parts), 0.0)
    if not np.any(added):
        return {}
    after = before * sizes[:, None] + added
    divergence = lambda counts: round(float(divergences(counts).mean()), 5)
    return {"kl_before": divergence(before), "kl_after": divergence(after)}


def _compared(estimates: np.ndarray, class_counts: np.ndarray) -> dict[str, Any]:
    """Compares estimated and true class shares: mean over clients of Spearman's rank correlation."""
    sound = (np.isfinite(estimates) & (estimates >= 0)).all(1)
    comparable = sound & (estimates.sum(1) > 0) & (class_counts.sum(1) > 0)
    ranks = rank_correlations(estimates[comparable], class_counts[comparable])
    ranks = ranks[np.isfinite(ranks)]
    mean = round(float(ranks.mean()), 4) if len(ranks) else None
    return {"clients": int(comparable.sum()), "rank_correlation": mean}


def _spread(count: int, most: int, cells: int) -> np.ndarray:
    """Selects at most `most` evenly spaced indices from 0 to `count` - 1; fewer if each stands for many `cells`."""
    return np.unique(np.linspace(0, count - 1, min(count, most, max(_MOST_CELLS // cells, 1))).astype(int))


def _shortest(numbers: Any) -> list[float]:
    """Converts 32-bit numbers with as few digits as needed: 0.1307, not 0.13070000708103180."""
    return [float(str(number)) for number in np.asarray(numbers, np.float32)]
