"""Conditions under which a check of the battery has something to check.

A check without its conditions is skipped, not passed.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from fedjax_bal.testing.workbench import SEEDS, Bench
from fedjax_bal.types import Plan

Check = TypeVar("Check", bound=Callable[[Bench], str | None])


class Need(NamedTuple):
    """A condition: whether it held in the runs of a bench, and what to say otherwise."""

    held: Callable[[Bench], bool]
    otherwise: str


def needs(*wanted: Need) -> Callable[[Check], Check]:
    """Declares conditions that must hold before a check can pass."""

    def declare(check: Check) -> Check:
        check.needs = wanted  # pyright: ignore[reportFunctionMemberAccess]
        return check

    return declare


def missing(check: Callable, bench: Bench) -> str | None:
    """What to say of all conditions of a check that never held; None if all did."""
    return "; ".join(need.otherwise for need in getattr(check, "needs", ()) if not need.held(bench)) or None


def _plans(bench: Bench) -> list[Plan]:
    return [plan for seed in SEEDS for plan in bench.plans(seed)]


def _trains_twice(bench: Bench) -> bool:
    """Tells whether clients train in two rounds of each seed, and in one when all parts have begun."""
    rounds = [[number for number, plan in enumerate(bench.plans(seed)) if bench.steps(plan).any()] for seed in SEEDS]
    begun = max((part.first_round for part in bench.recipe.parts), default=0)
    return all(len(own) > 1 and own[-1] >= begun for own in rounds)


def _misses_clients(bench: Bench) -> bool:
    """Tells whether in one round one client delivers and another selected one doesn't."""
    clients = bench.simulation.federation.num_clients
    return any(bench.steps(plan).any() and ((plan.clients < clients) & ~plan.delivered).any() for plan in _plans(bench))


def _misses_classes(bench: Bench) -> bool:
    """Tells whether a client trains that lacks a class."""
    who = np.concatenate([plan.clients[bench.steps(plan) > 0] for plan in _plans(bench)])
    return bool((bench.simulation.federation.class_counts[who] == 0).any())


def padded_clients(bench: Bench) -> np.ndarray:
    """Clients whose last batch isn't full and is reached, `Bool[N]`."""
    setting, sizes = bench.setting, np.diff(bench.simulation.federation.offsets)
    reached = np.minimum(setting.steps_per_epoch(sizes), setting.local_steps(sizes))
    return (sizes % setting.batch_size > 0) & (reached >= -(-sizes // setting.batch_size))


parts = Need(lambda bench: bool(bench.recipe.parts), "the recipe has no parts, only settings")
training = Need(
    _trains_twice,
    "with a seed, clients train in fewer than two rounds, or in none after each part's first_round: pass an "
    "availability, a delivery, a selector or a federation by which more train, or let the parts begin earlier",
)
two_chains = Need(
    lambda bench: any((bench.steps(plan).sum(1) > 0).sum() > 1 for plan in bench.plans(SEEDS[0])),
    "no two clients (or chains) train in one round: pass a selector that chooses more, such as uniform(4)",
)
absent_clients = Need(_misses_clients, "all chosen clients deliver, wherever one does: pass delivery=bernoulli(0.7)")
absent_classes = Need(
    _misses_classes, "all who train have all classes: pass a federation in which a client lacks a class"
)
padding = Need(
    lambda bench: not bench.setting.local.drop_last and bool(padded_clients(bench).any()),
    "every batch is full: pass another batch_size, or drop_last=False",
)
