"""What a summary says about clients: how often they were chosen, how even they are, what they are held to have."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal.data import extra_bytes
from fedjax_bal.engine.host import Simulation
from fedjax_bal.metrics import rank_correlations
from fedjax_bal.parts import Batches
from fedjax_bal.types import Federation
from fedjax_bal.validate import is_number

_SHOWN = 50  # clients whose estimates are kept for a picture


def summarise_selection(simulation: Simulation, chosen: np.ndarray, selector: Any) -> dict[str, Any]:
    """Who was chosen so far, and what the selector believes them to hold.

    Args:
        simulation: the method's simulation.
        chosen: how often each client was asked to train, `Int[N]`.
        selector: the selector's state.

    Returns:
        `chosen`: the number of clients that were chosen 0 times, once, twice and so on. With a selector that estimates
        class compositions also `composition`: `clients`, how many it knows of; `rank_correlation`, Spearman's of the
        estimated and the true shares over the classes of a client, mean over these; and both for some of them.
    """
    about: dict[str, Any] = {"chosen": np.bincount(chosen).tolist()}
    look = simulation.selector.compositions
    if look is not None:
        about["composition"] = _compared(look(selector), np.asarray(simulation.federation.class_counts))
    return about


def summarise_chains(simulation: Simulation, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How even the classes are behind each model that is averaged, and what the method does about it.

    Args:
        simulation: the method's simulation.
        lines: of one run's metrics, of which those without a usable `chain_kl` don't count.

    Returns:
        `chain_kl`: the mean over the evaluated rounds of their `chain_kl`, in nats, None where there is none;
        `clients_per_chain`: how many clients one averaged model goes through at most; `copies`: augmented samples of
        all clients.
    """
    known = [line["chain_kl"] for line in lines if is_number(line.get("chain_kl")) and math.isfinite(line["chain_kl"])]
    return {
        "chain_kl": math.fsum(known) / len(known) if known else None,
        "clients_per_chain": simulation.selector.chain_length,
        "copies": int(np.count_nonzero(simulation.federation.copy)),
    }


def summarise_augmentation(federation: Federation) -> dict[str, Any]:
    """What augmentation added, by class and in bytes; nothing for a federation without copies.

    Args:
        federation: as it is trained on.

    Returns:
        `augmentation`: `before` and `after`, samples of each class; `extra_rows`; `extra_bytes`, an image each.
    """
    if not np.any(federation.copy):
        return {}
    classes, originals = federation.num_classes, federation.rows[federation.copy == 0]
    before = np.bincount(np.asarray(federation.labels)[originals], minlength=classes)
    after = np.asarray(federation.class_counts).sum(0, dtype=np.int64)
    sizes = {"extra_rows": int(after.sum() - before.sum()), "extra_bytes": extra_bytes(federation)}
    return {"augmentation": {"before": before.tolist(), "after": after.tolist(), **sizes}}


def summarise_batches(simulation: Simulation) -> dict[str, Any]:
    """Which classes clients train on, where parts add rows to their mini-batches (CBFL's Fig. 8).

    Args:
        simulation: the method's simulation.

    Returns:
        Of some clients, or of all where there are few: `shown`, who they are; `before`, the share of each class in what
        they hold; `after`, that in their mini-batches once the method has warmed up. Nothing where no part adds any.
    """
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


def some_of_each_class(federation: Federation, classes: int, count: int) -> np.ndarray:
    """Real images, to look at beside others.

    Args:
        federation: as it is trained on.
        classes: c, how many classes.
        count: S, images of each class.

    Returns:
        Pixels `UInt8[c, S, H, W, K]` of the first rows of each class that clients own; black where there are too few.
    """
    rows = np.unique(np.asarray(federation.rows))
    labels, images = np.asarray(federation.labels)[rows], federation.images
    found = np.zeros((classes, count, *np.shape(images)[1:]), np.uint8)
    scale = 1.0 if images.dtype == np.uint8 else 255.0
    for label in range(classes):
        own = rows[labels == label][:count]
        found[label, : len(own)] = np.clip(np.rint(np.asarray(images[own]) * scale), 0, 255)
    return found


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
