"""Describes clients with unusable updates."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fedjax_bal.metrics import FAULT_WORDS, HUGE, LONG, NOT_FINITE, Fault, name_faults
from fedjax_bal.options import Execution
from fedjax_bal.types import Plan

_MOST_NAMED = 5


def find_faults(number: int, plan: Plan, codes: Any) -> list[Fault]:
    """Lists the faults of round `number` (from 1) from the program's codes, `Int[G, L]`."""
    return [Fault(number, int(plan.clients[at]), int(codes[at])) for at in zip(*np.nonzero(codes), strict=True)]


def describe_faults(faults: Iterable[Fault], name: Callable[[int], str] = str) -> str:
    """Describes in one line the clients that were left out or scaled down, naming the first few of each.

    Example:
        >>> describe_faults([Fault(5, 3, NOT_FINITE), Fault(6, 3, LONG)])
        'left out: client 3 in round 5 (not finite); scaled down: client 3 in round 6 (too long)'
    """
    kinds: dict[str, list[list[Any]]] = {"left out": [], "scaled down": []}
    for round, client, why in sorted(faults):
        kinds["scaled down" if why == LONG else "left out"].append([round, name(client), FAULT_WORDS[why]])
    return "; ".join(f"{kind}: {name_faults(rows, len(rows), _MOST_NAMED)}" for kind, rows in kinds.items() if rows)


def fault_message(execution: Execution, plan: Plan, codes: Any, here: str, name: Callable[[int], str] = str) -> str:
    """Builds the error message of a round whose clients have faults: the clients, the fault and the remedies.

    `codes`, `Int[G, L]`, are not all 0; `here` describes the round's learning rate.
    """
    kind = int(codes[codes > 0].min())
    broken = plan.clients[codes == kind]
    names = ", ".join(map(name, broken[:_MOST_NAMED].tolist())) + (", ..." if len(broken) > _MOST_NAMED else "")
    count = f"{len(broken)} of {int(plan.delivered.sum())} that delivered"
    whose = f"the updates of clients {names} are" if len(broken) > 1 else f"the update of client {names} is"
    cause = f"the usual cause is a learning rate that is too high{here}: lower it"
    out = "leave such clients out with execution.broken_clients: exclude"
    factor = f"(here {execution.huge_factor:g} times the norm of the global model)" if kind == HUGE else ""
    allow = f"raise execution.huge_factor {factor}, null for no bound"
    trace = "find the operation with execution.strategy=debug"
    advice = [cause] * (kind in (NOT_FINITE, HUGE)) + [trace] * (kind == NOT_FINITE) + [out] + [allow] * (kind == HUGE)
    return f"{whose} {FAULT_WORDS[kind]} ({count}); {', or '.join(advice)}"
