"""Checks that a recipe computes the same compiled and uncompiled, and compiles once."""

import copy
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal.engine.device import Setting, init_state
from fedjax_bal.parts import Memory, Refine
from fedjax_bal.testing.coverage import needs, training
from fedjax_bal.testing.draws import key_of
from fedjax_bal.testing.messages import difference
from fedjax_bal.testing.outcome import NotApplicableError
from fedjax_bal.testing.uncompiled import uncompiled
from fedjax_bal.testing.workbench import ROUNDS, SEEDS, Bench, ObservedRound, one_round
from fedjax_bal.types import Plan
from fedjax_bal.validate import is_number


def one_program(bench: Bench) -> str | None:
    """One trace serves all rounds, seeds and values of a part's numbers."""
    bench.base  # noqa: B018
    bench.run(bench.plans(SEEDS[0]), setting=jax.tree.map(_halve, _copy_parts(bench.setting)))
    if bench.traces == 1:
        return None
    return (
        f"received {bench.traces} traces for {len(SEEDS)} seeds and another value of each number, must be 1: static "
        "fields must compare and hash by value"
    )


@needs(training)
def jit(bench: Bench) -> str | None:
    """Compiled and uncompiled, a round comes to the same."""
    case = uncompiled_case(bench)
    if case is None:
        raise NotApplicableError(
            f"with seed {SEEDS[0]} no round is fit for it, in which a client trains after others have: pass an "
            "availability, a delivery or a selector by which more train"
        )
    found = _uncompiled_difference(bench, case)
    remedy = "what a part computes has to follow from its arguments alone, not from globals or generators of NumPy"
    return found and f"received {found} between compiled and uncompiled, must be none: {remedy}"


def uncompiled_case(bench: Bench) -> list[Plan] | None:
    """The plans up to the round that is run without compilation; None if no round is suitable.

    Suitable rounds come after a delivery, and after the first round of every part. Of one, at most two chains are
    kept, with few steps: preferably clients that train a second time, then a client with more than one step.
    """
    plans = bench.plans(SEEDS[0])
    begun = max(part.first_round for part in bench.setting.parts)
    cases = [case for number in range(max(1, begun), ROUNDS) for case in _rank_pairs(bench, plans, number)]
    if not cases:
        return None
    _, number, chosen = max(cases)
    left = np.isin(np.arange(len(plans[number].clients)), chosen)[:, None]
    return [*plans[:number], plans[number]._replace(delivered=plans[number].delivered & left)]


def _rank_pairs(bench: Bench, plans: Sequence[Plan], number: int) -> list[tuple[Any, int, tuple[int, ...]]]:
    """Pairs of a round's chains that may train without compilation, each with its rank."""
    before = [plan.clients[bench.steps(plan) > 0] for plan in plans[:number]]
    known = set(np.concatenate(before).tolist())
    steps, clients = bench.steps(plans[number]), plans[number].clients
    active = np.flatnonzero(steps.sum(1)).tolist()
    found = []
    for chosen in itertools.combinations(active, min(2, len(active))) if known and active else ():
        own = steps[list(chosen)]
        again = not known.isdisjoint(clients[list(chosen)][own > 0].tolist())
        if again or not bench.setting.parts_with(Memory):
            found.append(((len(chosen), again, bool((own > 1).any()), -int(own.sum())), number, chosen))
    return found


def _uncompiled_difference(bench: Bench, plans: Sequence[Plan]) -> str | None:
    """The effect of compiling, in words, on the state before the first round and on the last round of the plans."""
    states, seen = bench.run_with_states(plans)
    last = ObservedRound(seen.train_loss[-1], seen.test_loss[-1], jax.tree.map(lambda leaf: leaf[-1], seen.probes))
    setting, key = bench.setting, key_of(SEEDS[0])
    presents = any(part.evaluation_only for part in setting.parts_with(Refine))  # without them all are tested alike
    before, row = jax.tree.map(jnp.asarray, (states[-2], bench.row(setting, plans[-1], len(plans) - 1)))
    with uncompiled():
        first = init_state(bench.simulation.setting, key, bench.data[0])
        state, shown = one_round(setting, key, before, row, *bench.data, tested=presents)
    first, state, shown = jax.device_get((first, state, shown))
    wanted = last if presents else last._replace(test_loss=shown.test_loss)
    got = (first, state, bench.by_client(shown, plans[-1]))
    server = {slot: states[0].server[slot] for slot in first.server}  # without totals of reports
    return difference(got, (states[0]._replace(server=server), states[-1], wanted), bench.tolerance)


def _halve(number: Any) -> Any:
    return number / 2 if is_number(number) and isinstance(number, float) else number


def _copy_parts(setting: Setting) -> Setting:
    """Copies the parts, so that they are equal to the given ones but not identical."""

    def copy_of(part: Any) -> Any:
        try:
            return copy.deepcopy(part)
        except TypeError:  # such as one with a module in a static field, which is shared anyway
            return part

    return dataclasses.replace(setting, parts=tuple(map(copy_of, setting.parts)))
