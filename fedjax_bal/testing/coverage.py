"""Conditions under which a check of the battery has something to check.

Each function returns why its condition never held, or None if it held. A check without its conditions is skipped, not
passed.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from fedjax_bal.testing.workbench import ROUNDS, SEEDS, Bench
from fedjax_bal.types import Plan

Need = Callable[[Bench], str | None]
Check = TypeVar("Check", bound=Callable[[Bench], str | None])


def needs(*wanted: Need) -> Callable[[Check], Check]:
    """Declares conditions that must hold before a check can pass."""

    def declare(check: Check) -> Check:
        check.needs = wanted  # pyright: ignore[reportFunctionMemberAccess]
        return check

    return declare


def missing(check: Callable, bench: Bench) -> str | None:
    """Reasons of all conditions of a check that never held; None if all did."""
    return "; ".join(reason for need in getattr(check, "needs", ()) if (reason := need(bench))) or None


def parts(bench: Bench) -> str | None:
    """The recipe has parts."""
    return None if bench.recipe.parts else "the recipe has no parts, only settings"


def training(bench: Bench) -> str | None:
    """Clients train in two rounds of each seed, with all parts."""
    for seed in SEEDS:
        rounds = [number for number, plan in enumerate(bench.plans(seed)) if bench.steps(plan).any()]
        if len(rounds) < 2:
            return (
                f"with seed {seed} clients train in {len(rounds)} of {ROUNDS} rounds, at least 2 are needed: pass an "
                "availability, a delivery, a selector or a federation by which more train"
            )
        for part in bench.recipe.parts:
            if part.first_round > rounds[-1]:
                return (
                    f"{part.slot} begins in round {part.first_round} (counted from 0), and clients train until round "
                    f"{rounds[-1]} only: let it begin earlier"
                )
    return None


def two_chains(bench: Bench) -> str | None:
    """Two clients or chains train in one round of the first seed."""
    if any((bench.steps(plan).sum(1) > 0).sum() > 1 for plan in bench.plans(SEEDS[0])):
        return None
    return "no two clients (or chains) train in one round: pass a selector that chooses more, such as uniform(4)"


def absent_clients(bench: Bench) -> str | None:
    """In the same round one client delivers and another selected one doesn't."""
    clients = bench.simulation.federation.num_clients
    for plan in _plans(bench):
        if bench.steps(plan).any() and ((plan.clients < clients) & ~plan.delivered).any():
            return None
    return "all chosen clients deliver, wherever one does: pass delivery=bernoulli(0.7)"


def absent_classes(bench: Bench) -> str | None:
    """One client trains without a class."""
    who = np.concatenate([plan.clients[bench.steps(plan) > 0] for plan in _plans(bench)])
    if (bench.simulation.federation.class_counts[who] == 0).any():
        return None
    return "all who train have all classes: pass a federation in which a client lacks a class"


def padding(bench: Bench) -> str | None:
    """A batch has padded rows."""
    if bench.setting.local.drop_last:
        return "drop_last leaves out every batch that isn't full: pass drop_last=False"
    if padded_clients(bench).any():
        return None
    return (
        f"every batch is full, for each client's number of rows is a multiple of the batch size, "
        f"{bench.setting.batch_size}: pass another batch_size"
    )


def padded_clients(bench: Bench) -> np.ndarray:
    """Clients whose last batch isn't full and is reached, `Bool[N]`."""
    setting, sizes = bench.setting, np.diff(bench.simulation.federation.offsets)
    reached = np.minimum(setting.steps_per_epoch(sizes), setting.local_steps(sizes))
    return (sizes % setting.batch_size > 0) & (reached >= -(-sizes // setting.batch_size))


def _plans(bench: Bench) -> list[Plan]:
    return [plan for seed in SEEDS for plan in bench.plans(seed)]
