"""Unusable client updates: how they are recognised, described and handled."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedjax_bal.engine.device import Info
from fedjax_bal.metrics import FAULT_WORDS, HUGE, LONG, NOT_FINITE, Fault
from fedjax_bal.options import Execution
from fedjax_bal.types import Plan

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
    """Codes of the faults in a round's updates, `Int[G, L]`; 0 for none.

    `broken`, `Int[G, L]`, are the faults that the devices found. If they found none and updates aren't scaled down, the
    `norms` of the delivered parameters, `Float[G, L]`, are compared between chains. Parameters whose norm is at most
    `huge_factor` itself are never huge, as a model may begin at zero.
    """
    codes, factor = np.where(plan.delivered, broken, 0), execution.huge_factor
    if codes.any() or execution.clips or factor is None:
        return codes
    # Clients after a huge one in its chain start from its parameters: they neither set the median nor are at fault.
    least = np.where(plan.delivered, norms, np.inf).min(1)
    huge = plan.delivered & (norms > max(norm_bound(least, plan.delivered.any(1), factor), factor))
    return np.where(huge & (huge.cumsum(1) == 1), HUGE, 0)


def exclude_faults(
    execution: Execution, first: int, plans: Sequence[Plan], info: Info
) -> tuple[list[Plan], list[Fault]] | None:
    """The plans with which to repeat a dispatch, without the faults of its first faulty round, and these faults.

    Later rounds began with that round's model, and are checked again after they have been repeated. `first` is the
    first round, from 0; `plans` are those of the live rounds, and `info` their reports, leaves `[T, ...]`. None if
    there is no fault, or if none of several clients would be left.
    """
    for place, plan in enumerate(plans) if execution.repeats_rounds else ():
        codes = find_faults(execution, plan, info.broken[place], info.norms[place])
        changed, why = plan, codes
        if codes.any():
            changed = plan._replace(delivered=plan.delivered & (codes == 0))
            if not changed.delivered.any() and plan.delivered.sum() > 1:
                return None
        elif execution.clips and np.isinf(plan.bound):
            arrived, lengths = plan.delivered.any(1), info.norms[place][:, 0]  # of chains
            bound = norm_bound(lengths, arrived, execution.clip_factor)
            why = np.where((arrived & (lengths > bound))[:, None] & plan.delivered, LONG, 0)
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


def fault_message(execution: Execution, plan: Plan, codes: Any, here: str, before: int) -> str:
    """The error message of a round whose clients have faults: the clients, the fault and the remedies.

    `codes` are from `find_faults`, not all 0; `here` describes the round's learning rate, and `before` is the number of
    its clients that have been left out already.
    """
    kind = int(codes[codes > 0].min())
    broken = plan.clients[codes == kind]
    names = ", ".join(str(client) for client in broken[:_MOST_NAMED]) + (", ..." if len(broken) > _MOST_NAMED else "")
    count = f"{len(broken)} of {int(plan.delivered.sum())} that delivered"
    count += (
        f", with {before} more left out before: no client would be left" if execution.repeats_rounds and before else ""
    )
    whose = f"the updates of clients {names} are" if len(broken) > 1 else f"the update of client {names} is"
    cause = f"the usual cause is a learning rate that is too high{here}: lower it"
    out = "leave such clients out with execution.broken_clients: exclude"
    factor = f"(here {execution.huge_factor:g} times the median norm of parameters)" if kind == HUGE else ""
    allow = f"raise execution.huge_factor {factor}, null for no bound"
    advice = [cause] * (kind in (NOT_FINITE, HUGE)) + [out] * (not execution.repeats_rounds) + [allow] * (kind == HUGE)
    return "; ".join([f"{whose} {FAULT_WORDS[kind]} ({count})", ", or ".join(advice)]).removesuffix("; ")
