"""Unusable client updates: how they are recognised, described and handled."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.metrics import FAULT_WORDS, HUGE, LONG, NOT_FINITE, Fault
from fedjax_bal.types import Info, Plan
from fedjax_bal.validate import finite_number, one_of

POLICIES = ("raise", "exclude", "clip")

_MOST_NAMED = 5
_LARGEST = float(np.finfo(np.float32).max)


class FaultPolicy(NamedTuple):
    """Policy for faulty clients.

    Attributes:
        name: "raise", the run ends; "exclude", the round is repeated as if they had not delivered; "clip", the same,
            and far too long updates are scaled down.
        factor: with "clip", an update is too long if its norm exceeds this many times the median of its round.
        huge: without "clip", parameters are faulty if their norm exceeds this many times the median.
    """

    name: str = "raise"
    factor: float = 10.0
    huge: float = 100.0

    @property
    def repeats(self) -> bool:
        """Whether rounds may have to be repeated, so that their initial states have to be kept."""
        return self.name != "raise"

    @property
    def clips(self) -> bool:
        """Whether updates have a bound."""
        return self.name == "clip"


RAISE = FaultPolicy()
"""The default policy."""


def fault_policy(name: str, factor: float = RAISE.factor, huge: float | None = RAISE.huge) -> FaultPolicy:
    """A validated policy; `huge` None means no such bound.

    Raises:
        ValueError: another name, or a factor below 1.

    Example:
        >>> fault_policy("clip", 5).clips
        True
    """
    one_of("broken_clients", name, POLICIES)
    huge = math.inf if huge is None else finite_number("huge_factor", huge, low=1.0)
    return FaultPolicy(name, finite_number("clip_factor", factor, low=1.0), huge)


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


def find_faults(policy: FaultPolicy, plan: Plan, broken: Any, norms: Any) -> np.ndarray:
    """The faults of a round's delivered updates, codes `Int[G, L]`, 0 for none.

    `broken` are the codes that the devices found, `Int[G, L]`, and `norms` those of the parameters that each client
    returned, `Float[G, L]`; the check for finite numbers yields them at no cost, unlike the norms of updates.

    Norms are only compared if there is no other fault, by a policy that doesn't clip, and between two chains at least.
    In a chain the first client with huge parameters is at fault, as the others build on it. Parameters whose norm is at
    most `huge` itself are never huge, for a model may start at zero.

    Example:
        >>> plan = Plan(np.array([[4], [7], [9]]), np.ones((3, 1), bool))
        >>> found = find_faults(RAISE, plan, np.zeros((3, 1), int), np.array([[1.0], [5e6], [2.0]]))
        >>> found.ravel().tolist() == [0, HUGE, 0]
        True
    """
    codes = np.where(plan.delivered, broken, 0)
    if codes.any() or policy.clips:
        return codes
    # Each chain counts with its least norm: the clients after a huge one build on it, and would raise the median.
    least = np.where(plan.delivered, norms, np.inf).min(1)
    huge = plan.delivered & (norms > max(norm_bound(least, plan.delivered.any(1), policy.huge), policy.huge))
    return np.where(huge & (huge.cumsum(1) == 1), HUGE, 0)


def exclude_faults(
    policy: FaultPolicy, first: int, plans: Sequence[Plan], info: Info
) -> tuple[list[Plan], list[Fault]] | None:
    """The plans with which to repeat a dispatch, without the faults of its first faulty round, and these faults.

    Later rounds started from that round's result, and have to be checked again. None if nothing has to be repeated, or
    if none of several clients would be left, which no policy can repair. `first` is the first round, from 0; `plans`
    are those of the live rounds; `info` has leaves `[T, ...]`.
    """
    for place, plan in enumerate(plans) if policy.repeats else ():
        codes = find_faults(policy, plan, info.broken[place], info.norms[place])
        changed, why = plan, codes
        if codes.any():
            changed = plan._replace(delivered=plan.delivered & (codes == 0))
            if not changed.delivered.any() and plan.delivered.sum() > 1:
                return None
        elif policy.clips and np.isinf(plan.bound):
            delivered, norms = plan.delivered.any(1), info.norms[place][:, 0]  # of chains
            bound = norm_bound(norms, delivered, policy.factor)
            why = np.where((delivered & (norms > bound))[:, None] & plan.delivered, LONG, 0)
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


def fault_message(policy: FaultPolicy, plan: Plan, codes: Any, rate: float, before: int) -> str:
    """The message for a round that can't count: the faulty clients, their fault, and a remedy.

    `codes`, `Int[G, L]`, come from `find_faults` and hold at least one fault; `rate` is the round's learning rate;
    `before` is the number of clients of the round that have been left out already.
    """
    kind = int(codes[codes > 0].min())
    broken = plan.clients[codes == kind]
    names = ", ".join(str(client) for client in broken[:_MOST_NAMED]) + (", ..." if len(broken) > _MOST_NAMED else "")
    count = f"{len(broken)} of {int(plan.delivered.sum())} that delivered"
    count += f", with {before} more left out before: nobody would be left" if policy.repeats and before else ""
    whose = f"the updates of clients {names} are" if len(broken) > 1 else f"the update of client {names} is"
    cause = f"the usual cause is a learning rate that is too high (here {rate:g}): lower it"
    out = "leave such clients out with execution.broken_clients: exclude"
    allow = f"raise execution.huge_factor (here {policy.huge:g} times the median norm of parameters), null for no bound"
    advice = [cause] * (kind in (NOT_FINITE, HUGE)) + [out] * (not policy.repeats) + [allow] * (kind == HUGE)
    return "; ".join([f"{whose} {FAULT_WORDS[kind]} ({count})", ", or ".join(advice)]).removesuffix("; ")
