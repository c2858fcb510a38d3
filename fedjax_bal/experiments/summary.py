"""What `summary.json` says of a comparison: runs, partitions, mini-batches, and what it all cost."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal.config import Config, MethodConfig
from fedjax_bal.data import extra_bytes
from fedjax_bal.engine.host import Simulation
from fedjax_bal.metrics import RunHistory, rank_correlations
from fedjax_bal.parts import Batches
from fedjax_bal.types import Federation
from fedjax_bal.validate import is_number

_SHOWN = 50  # clients whose estimates or mini-batches are kept for a picture
_HEAT_MAP_CLIENTS = 200  # more rows than that can't be told apart on a page

Lines = Sequence[Mapping[str, Any]]


class Cost(NamedTuple):
    """What the work of a folder has cost so far, over all sessions."""

    compile_s: float = 0.0
    train_s: float = 0.0
    client_updates: int = 0
    samples: int = 0

    def record(self) -> dict[str, Any]:
        """What to write down: rates of training, compilation apart, None before anything was trained."""
        return {
            "client_updates_per_s": _rate(self.client_updates, self.train_s),
            "samples_per_s": _rate(self.samples, self.train_s),
            "cost": self._asdict(),
        }


def cost_of(saved: Any) -> Cost:
    """The cost that an earlier session wrote down; 0 for what is damaged."""
    values = saved if isinstance(saved, dict) else {}
    return Cost(*(number(values.get(key)) for key in Cost._fields))


def number(value: Any) -> Any:
    """A count or a time that an earlier session wrote; 0 where it is damaged."""
    return value if is_number(value) and math.isfinite(value) else 0


def is_over(config: MethodConfig, round: int, lines: Lines) -> bool:
    """Whether a run ends after so many rounds, the last one or by early stopping; the same after a resumption."""
    return round >= config.training.rounds or config.training.early_stopping.rule.over(lines)


def history_of(
    config: MethodConfig,
    simulation: Simulation,
    lines: Lines,
    personalised: Mapping[str, Any] | None,
    failure: str | None,
) -> RunHistory:
    """What the metrics of a run are computed from; `personalised` is what was noted of the fine-tuned models."""
    return RunHistory(
        lines=lines,
        rounds=config.training.rounds,
        target=config.evaluation.target_accuracy,
        stopping=config.training.early_stopping.rule,
        fine_tuned=personalised or {},
        failure=failure,
        clients_per_chain=simulation.selector.chain_length,
        copies=int(np.count_nonzero(simulation.federation.copy)),
    )


def summarise_selection(simulation: Simulation, chosen: np.ndarray, selector: Any) -> dict[str, Any]:
    """How many clients were asked to train 0 times, once and so on, and what the selector believes them to hold.

    The latter, with a selector that estimates class compositions, is `composition`: `clients`, how many it knows of;
    `rank_correlation`, Spearman's of the estimated and the true shares over the classes of a client, mean over these;
    and both for some of them.
    """
    about: dict[str, Any] = {"chosen": np.bincount(chosen).tolist()}
    look = simulation.selector.compositions
    if look is not None:
        about["composition"] = _compared(look(selector), np.asarray(simulation.federation.class_counts))
    return about


def summarise_partitions(config: Config, simulations: Sequence[Simulation]) -> list[dict[str, Any]]:
    """Who holds what, once for all methods that share it; the simulations are those of the methods."""
    shared: dict[Any, dict[str, Any]] = {}
    for method, simulation in zip(config.methods, simulations, strict=True):
        federation = simulation.federation
        clients = federation.num_clients
        shown = np.unique(np.linspace(0, clients - 1, min(clients, _HEAT_MAP_CLIENTS)).astype(int))
        entry = {
            "methods": [],
            "clients": clients,
            "mean": _shortest(federation.mean),
            "std": _shortest(federation.std),
            "shown": shown.tolist(),
            "class_counts": np.asarray(federation.class_counts)[shown].tolist(),
            **_augmentation(federation),
        }
        # By content: what a method does to its federation may leave it like another one's.
        constants = entry["mean"], entry["std"]
        key = np.asarray(federation.class_counts).tobytes(), repr((_augmentation(federation), constants))
        shared.setdefault(key, entry)["methods"].append(method.name)
    return list(shared.values())


def batches(config: Config, simulations: Sequence[Simulation]) -> list[dict[str, Any]]:
    """What methods that change mini-batches make of them, once for those that make the same."""
    found: list[dict[str, Any]] = []
    for method, simulation in zip(config.methods, simulations, strict=True):
        about = _batches(simulation)
        alike = next((entry for entry in found if {**entry, **about} == entry), None) if about else None
        if alike:
            alike["methods"].append(method.name)
        elif about:
            found.append({"methods": [method.name], **about})
    return found


def _augmentation(federation: Federation) -> dict[str, Any]:
    """Samples of each class before and after augmentation, and what it added; empty without copies."""
    if not np.any(federation.copy):
        return {}
    classes, originals = federation.num_classes, federation.rows[federation.copy == 0]
    before = np.bincount(np.asarray(federation.labels)[originals], minlength=classes)
    after = np.asarray(federation.class_counts).sum(0, dtype=np.int64)
    sizes = {"extra_rows": int(after.sum() - before.sum()), "extra_bytes": extra_bytes(federation)}
    return {"augmentation": {"before": before.tolist(), "after": after.tolist(), **sizes}}


def _batches(simulation: Simulation) -> dict[str, Any]:
    """Shares of the classes that some clients hold, and in their mini-batches; empty where no part adds rows."""
    counts = np.asarray(simulation.federation.class_counts, float)
    shown = np.unique(np.linspace(0, len(counts) - 1, min(len(counts), _SHOWN)).astype(int))
    shown = shown[counts[shown].sum(1) > 0]
    before = counts[shown] / counts[shown].sum(1, keepdims=True)
    own = np.minimum(counts[shown].sum(1), simulation.setting.batch_size)
    added = sum(
        (
            np.asarray(jax.vmap(part.added)(jnp.asarray(counts[shown])))
            for part in simulation.setting.parts_with(Batches)
        ),
        0.0,
    )
    if not np.any(added):
        return {}
    after = before * own[:, None] + added
    after /= after.sum(1, keepdims=True)
    return {"shown": shown.tolist(), "before": before.round(5).tolist(), "after": after.round(5).tolist()}


def _compared(estimates: np.ndarray, class_counts: np.ndarray) -> dict[str, Any]:
    known = np.flatnonzero(estimates.sum(1) > 0)
    true = class_counts[known] / class_counts[known].sum(1, keepdims=True)
    ranks = rank_correlations(estimates[known], true)
    ranks = ranks[np.isfinite(ranks)]
    shown = np.unique(np.linspace(0, len(known) - 1, min(len(known), _SHOWN)).astype(int)) if len(known) else []
    rounded = lambda table: [[round(float(share), 4) for share in row] for row in table]
    return {
        "clients": len(known),
        "rank_correlation": round(float(ranks.mean()), 4) if len(ranks) else None,
        "shown": known[shown].tolist() if len(known) else [],
        "estimated": rounded(estimates[known][shown]) if len(known) else [],
        "true": rounded(true[shown]) if len(known) else [],
    }


def _shortest(numbers: Any) -> list[float]:
    """Numbers of 32 bits, with no more digits than they need: 0.1307, not 0.13070000708103180."""
    return [float(str(number)) for number in np.asarray(numbers, np.float32)]


def _rate(count: int, seconds: float) -> float | None:
    return round(count / seconds, 3) if seconds > 0 else None
