"""Needs that several parts have, among them the server's balanced rows, and their check before any data is loaded."""

from collections.abc import Iterable
from typing import Any

from fedjax_bal.methods.part import Need, Part, RunFacts, parts_with
from fedjax_bal.optim import check_known
from fedjax_bal.types import Federation


def check_needs(facts: RunFacts) -> None:
    """Refuses a run that lacks what one of its parts needs, or that ends before a part's first round."""
    for part in facts.parts:
        for need in part.needs:
            need.check(facts)
        begin = part.first_round + 1
        if begin > facts.rounds:
            raise ValueError(
                f"{part.slot}: begins in round {begin}, but rounds={facts.rounds}, so that it would change nothing: "
                f"let it begin in round {facts.rounds} or earlier, or set rounds to {begin} or more"
            )


def names_of_needs(parts: Iterable[Part]) -> list[str]:
    """The names of the needs of all parts, without repetition.

    Example:
        >>> from fedjax_bal.recipes import fedprox, scaffold
        >>> names_of_needs(scaffold().parts), names_of_needs(fedprox().parts)
        (['plain SGD', 'no local momentum'], [])
    """
    return list(dict.fromkeys(need.name for part in parts for need in part.needs if need.name))


def plain_sgd(method: str, reason: str) -> Need:
    """Local steps of SGD without Nesterov momentum, whose learning rate is known."""

    def check(facts: RunFacts) -> None:
        local = facts.local
        check_known(method, local)
        if local.name != "sgd" or dict(local.flags).get("nesterov"):
            kind = "nesterov momentum" if local.name == "sgd" else f"the local optimizer {local.name!r}"
            raise ValueError(
                f"{method}: received {kind}; {reason}: set training.optimizer.name to sgd, without nesterov"
            )

    return Need("plain SGD", check)


def fresh_momentum(slot: str) -> Need:
    """A local momentum, if any, that isn't handed on from client to client."""

    def check(facts: RunFacts) -> None:
        if facts.carried and facts.local.options.get("momentum"):
            raise ValueError(
                f"optimizer_state: received 'carried' and a local momentum beside {slot}, which assumes that "
                "momentum restarts with each local training: take 'fresh', or set training.optimizer.momentum to 0"
            )

    return Need("", check)


def apart_from(method: str, own: Part, *roles: type[Part], because: str) -> Need:
    """No other part in some roles."""

    def check(facts: RunFacts) -> None:
        for other in parts_with(facts.parts, *roles):
            if other.slot != own.slot:
                raise ValueError(f"{method}: received {other.slot}, {because}; leave one of the two out")

    return Need("", check)


BALANCED = "balanced"
"""The name of the auxiliary set."""


def balanced_rows(federation: Federation) -> Any:
    """The server's own rows, of all classes, `Int32[A]`."""
    return federation.auxiliary[BALANCED]


def _check_rows(facts: RunFacts) -> None:
    if BALANCED not in facts.auxiliary:
        raise ValueError(
            f"federation: received the auxiliary sets {sorted(facts.auxiliary)}, must have rows in {BALANCED!r} "
            "for the server to work with: set auxiliary.per_class, or give data.federate the rows that data.carve takes"
        )


SERVER_ROWS = Need("auxiliary rows (auxiliary.per_class)", _check_rows)
"""The need for these rows."""
