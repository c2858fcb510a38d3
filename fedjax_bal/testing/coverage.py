"""Conditions under which a check of the battery has something to check.

Each function returns the reason why its condition never held and what to pass so that it does, or None if it held.
A check without its conditions is skipped, not passed.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np

from fedjax_bal.engine.device import Setting, client_context, init_state, seen
from fedjax_bal.parts import Memory, Personal, Start, parts_with
from fedjax_bal.testing.draws import key_of
from fedjax_bal.testing.variations import possible, varied_rows
from fedjax_bal.testing.workbench import ROUNDS, SEEDS, Bench, one_client
from fedjax_bal.types import Federation, Key, Plan

Need = Callable[[Bench], str | None]
Check = TypeVar("Check", bound=Callable[[Bench], str | None])


def needs(*wanted: Need) -> Callable[[Check], Check]:
    """Declares conditions that must hold before a check can pass."""

    def declare(check: Check) -> Check:
        check.needs = wanted  # pyright: ignore[reportFunctionMemberAccess]
        return check

    return declare


def needs_of(check: Callable) -> tuple[Need, ...]:
    """Conditions that must hold in the runs before a check can pass."""
    return getattr(check, "needs", ())


def missing(check: Callable, bench: Bench) -> str | None:
    """Reasons of all conditions of a check that never held; None if all did."""
    return "; ".join(reason for need in needs_of(check) if (reason := need(bench))) or None


def parts(bench: Bench) -> str | None:
    """The recipe has parts."""
    return None if bench.recipe.parts else "the recipe has no parts, only settings"


def training(bench: Bench) -> str | None:
    """Clients train in two rounds of each seed, with all parts, and read back their memory."""
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
    return _statistics(bench) or _memory(bench)


def two_chains(bench: Bench) -> str | None:
    """Two clients or chains train in one round of the first seed."""
    if any((bench.steps(plan).sum(1) > 0).sum() > 1 for plan in bench.plans(SEEDS[0])):
        return None
    return "no two clients (or chains) train in one round: pass a selector that chooses more, such as uniform(4)"


def unequal_lanes(bench: Bench) -> str | None:
    """Two clients with different numbers of steps are trained together on one device."""
    setting, rows = varied_rows(bench, possible())
    for row in (row for own in rows.values() for row in own):
        steps = setting.passes * bench.steps(row.plan).sum(1)
        for chains, count in zip(row.assignment.chains, row.assignment.count, strict=True):
            if setting.layout.width > 1 and len(set(steps[chains[:count]].tolist())) > 1:
                return None
    return (
        "no two clients (or chains) of different length are trained together on one device: pass a selector that "
        "chooses more, such as uniform(4), or a federation whose clients differ in size"
    )


def absent_clients(bench: Bench) -> str | None:
    """In the same round one client delivers and another selected one doesn't."""
    clients = bench.simulation.federation.num_clients
    for plan in _plans(bench):
        if bench.steps(plan).any() and ((plan.clients < clients) & ~plan.delivered).any():
            return None
    return "all chosen clients deliver, wherever one does: pass delivery=bernoulli(0.7)"


def odd_clients(bench: Bench) -> str | None:
    """One client trains without a class, and one on a batch of a single row, unless such rows are left out."""
    trained = [bench.steps(plan) > 0 for plan in _plans(bench)]
    who = np.concatenate([plan.clients[steps] for plan, steps in zip(_plans(bench), trained, strict=True)])
    federation, setting = bench.simulation.federation, bench.setting
    if not (federation.class_counts[who] == 0).any():
        return "all who train have all classes: pass a federation in which a client lacks a class"
    if setting.local.drop_last or (np.diff(federation.offsets)[who] % setting.batch_size == 1).any():
        return None
    return (
        f"no client trains on a batch of a single row: pass a batch_size, in place of {setting.batch_size}, that "
        "divides some client's number of rows with remainder 1"
    )


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


def two_devices(bench: Bench) -> str | None:
    """Two devices train in the same round."""
    _, rows = varied_rows(bench, ["devices"])
    if any((row.assignment.count > 0).all() for own in rows.values() for row in own):
        return None
    return "two devices never train in the same round: pass a selector that chooses more clients, such as uniform(4)"


def _statistics(bench: Bench) -> str | None:
    idle, model = _idle_starts(bench), bench.setting.model
    if not idle or jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)).stats):
        return None
    return f"the model has no batch statistics, which {', '.join(idle)} changes: pass a model with batch normalisation"


def _memory(bench: Bench) -> str | None:
    playing = parts_with(bench.setting.parts, Memory, Personal)
    for seed in SEEDS:
        who = np.concatenate([np.unique(plan.clients[bench.steps(plan) > 0]) for plan in bench.plans(seed)])
        if playing and len(set(who.tolist())) == len(who):
            return (
                f"with seed {seed} no client trains a second time and finds what {playing[0].slot} remembers: pass an "
                "availability, a delivery or a selector by which more train, or a federation of fewer clients"
            )
    return None


def _plans(bench: Bench) -> list[Plan]:
    return [plan for seed in SEEDS for plan in bench.plans(seed)]


def padded_clients(bench: Bench) -> np.ndarray:
    """Clients whose last batch isn't full and is reached, `Bool[N]`."""
    setting, sizes = bench.setting, np.diff(bench.simulation.federation.offsets)
    reached = np.minimum(setting.steps_per_epoch(sizes), setting.local_steps(sizes))
    return (sizes % setting.batch_size > 0) & (reached >= -(-sizes // setting.batch_size))


def _idle_starts(bench: Bench) -> list[str]:
    """The slots of Start parts that return the received model as it is."""
    idle = []

    def begin(setting: Setting, key: Key, federation: Federation) -> None:
        state = init_state(setting, key, federation)
        shared, client = one_client(setting, key, state, federation)
        ctx = client_context(setting, shared, state.variables, client)
        for part in setting.parts_with(Start):
            variables, own = seen(setting, part, ctx.start, ctx)
            pairs = zip(*map(jax.tree.leaves, (part.start(variables, own), variables)), strict=True)
            idle.extend([part.slot] if all(new is old for new, old in pairs) else [])

    if bench.setting.parts_with(Start):
        jax.eval_shape(begin, bench.simulation.setting, key_of(SEEDS[0]), bench.data[0])
    return idle
