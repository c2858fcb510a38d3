"""Unusable client updates: how they are recognised, described and handled."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedjax_bal.metrics import FAULT_WORDS, HUGE, LONG, NOT_FINITE, Fault
from fedjax_bal.options import Execution
from fedjax_bal.types import Info, Plan

_MOST_NAMED = 5
_LARGEST = float(np.finfo(np.float32).max)


def norm_bound(norms: Any, counted: np.ndarray, factor: float) -> np.float32:
    """The largest norm allowed in a round, `Float32[]`: `factor` times the median (of two, the lower) of those above 0.

    `counted`, `Bool[...]`, says which of `norms`, `Float[...]`, are delivered. The bound is infinite if fewer than two
    are left to compare, or if the product isn't finite.

    Example:
        >>> float(norm_bound(np.array([1.0, 90.0, 0.0, 2.0, 7.0]), np.array([1, 1, 1, 1, 0], bool), 10))
        20.0
    """
    moved = np.sort(np.asarray(norms, np.float64)[counted & (norms > 0)])
    if len(moved) < 2:
        return np.float32(np.inf)
    # The lower of two, so that of two clients the longer one can't set the bound for itself.
    bound = factor * moved[(len(moved) - 1) // 2]
    return np.float32(min(bound, _LARGEST) if math.isfinite(bound) else np.inf)


def find_faults(execution: Execution, plan: Plan, broken: Any, norms: Any) -> np.ndarray:
    """What is wrong with what the clients of a round delivered.

    Args:
        execution: says what is done about broken clients.
        plan: the round's plan.
        broken: what the devices found, `Int[G, L]`.
        norms: of the parameters that each visit hands back, `Float[G, L]`, which cost nothing beside looking whether
            these are finite; those of updates would.

    Returns:
        Codes, `Int[G, L]`, 0 for nothing. Norms are only compared where nothing else is wrong, where updates are not
        scaled down, and between two chains at least; of a chain the first client answers, on whom the others
        build. Parameters of a norm up to `huge_factor` itself are never huge, for a model may begin at zero.

    Example:
        >>> plan = Plan(np.array([[4], [7], [9]]), np.ones((3, 1), bool))
        >>> found = find_faults(Execution(), plan, np.zeros((3, 1), int), np.array([[1.0], [5e6], [2.0]]))
        >>> found.ravel().tolist() == [0, HUGE, 0]
        True
    """
    codes = np.where(plan.delivered, broken, 0)
    if codes.any() or execution.clips:
        return codes
    factor, there = execution.huge_factor, plan.delivered.any(1)
    if factor is None:
        return codes
    least = np.where(plan.delivered, norms, np.inf).min(1)  # who comes behind a huge one in a chain is no measure
    huge = plan.delivered & (norms > max(norm_bound(least, there, factor), factor))
    return np.where(huge & (huge.cumsum(1) == 1), HUGE, 0)


def exclude_faults(
    execution: Execution, first: int, plans: Sequence[Plan], info: Info
) -> tuple[list[Plan], list[Fault]] | None:
    """The plans with which to repeat a dispatch, without the faults of its first faulty round, and these faults.

    What comes after that round began with what it left, and has to be looked at again.

    Args:
        execution: says what is done about broken clients.
        first: the first round, from 0.
        plans: of the rounds that are live.
        info: what they report, leaves `[T, ...]`.

    Returns:
        The plans by which to repeat the dispatch, and whom they leave out or cut; None where nothing is wrong, or where
        nobody would be left of several clients, which nothing can mend.
    """
    for place, plan in enumerate(plans) if execution.repeats_rounds else ():
        codes = find_faults(execution, plan, info.broken[place], info.norms[place])
        changed, why = plan, codes
        if codes.any():
            changed = plan._replace(delivered=plan.delivered & (codes == 0))
            if not changed.delivered.any() and plan.delivered.sum() > 1:
                return None
        elif execution.clips and np.isinf(plan.bound):
            there, lengths = plan.delivered.any(1), info.norms[place][:, 0]  # of chains
            bound = norm_bound(lengths, there, execution.clip_factor)
            why = np.where((there & (lengths > bound))[:, None] & plan.delivered, LONG, 0)
            changed = plan._replace(bound=bound)
        if why.any():
            at = np.nonzero(why)
            named = zip(plan.clients[at], why[at], strict=True)
            faults = [Fault(first + place + 1, int(client), int(code)) for client, code in named]
            return [*plans[:place], changed, *plans[place + 1 :]], faults
    return None


def describe_faults(faults: Iterable[Fault]) -> str:
    """One line on the clients that were left out or scaled down, the first few of each by name.

    Example:
        >>> describe_faults([Fault(5, 3, NOT_FINITE), Fault(6, 3, LONG)])
        'left out: client 3 in round 5 (not finite); scaled down: client 3 in round 6 (too long)'
    """
    faults = sorted(faults)
    kinds = {
        "left out": [fault for fault in faults if fault.why != LONG],
        "scaled down": [fault for fault in faults if fault.why == LONG],
    }
    return "; ".join(f"{done}: {_named(own)}" for done, own in kinds.items() if own)


def _named(faults: Sequence[Fault]) -> str:
    rest = len(faults) - _MOST_NAMED
    names = [f"client {client} in round {round} ({FAULT_WORDS[why]})" for round, client, why in faults[:_MOST_NAMED]]
    return ", ".join(names) + (f", and {rest} more" if rest > 0 else "")


def fault_message(execution: Execution, plan: Plan, codes: Any, rate: float, before: int) -> str:
    """Why a round can't count: which clients broke, how, and what to do.

    Args:
        execution: says what is done about broken clients.
        plan: the round's plan.
        codes: of its clients, `Int[G, L]`, from `find_faults`, not 0 for one at least.
        rate: the learning rate of the round.
        before: how many clients of the round have been left out already.

    Returns:
        The text, without the round.
    """
    kind = int(codes[codes > 0].min())
    broken = plan.clients[codes == kind]
    names = ", ".join(str(client) for client in broken[:_MOST_NAMED]) + (", ..." if len(broken) > _MOST_NAMED else "")
    count = f"{len(broken)} of {int(plan.delivered.sum())} that delivered"
    count += (
        f", with {before} more left out before: nobody would be left" if execution.repeats_rounds and before else ""
    )
    whose = f"the updates of clients {names} are" if len(broken) > 1 else f"the update of client {names} is"
    cause = f"the usual cause is a learning rate that is too high (here {rate:g}): lower it"
    out = "leave such clients out with execution.broken_clients: exclude"
    factor = f"(here {execution.huge_factor:g} times the median norm of parameters)" if kind == HUGE else ""
    allow = f"raise execution.huge_factor {factor}, null for no bound"
    advice = [cause] * (kind in (NOT_FINITE, HUGE)) + [out] * (not execution.repeats_rounds) + [allow] * (kind == HUGE)
    return "; ".join([f"{whose} {FAULT_WORDS[kind]} ({count})", ", or ".join(advice)]).removesuffix("; ")
