"""Requirements that several parts share, such as the server's balanced rows, checked before any data is loaded."""

import abc
from collections.abc import Iterable
from typing import Any, ClassVar

from fedjax_bal.methods.roles import (
    Need,
    NeedsContext,
    Part,
    Personal,
    Reduce,
    Refine,
    Separate,
    Step,
    Weigh,
    parts_with,
)
from fedjax_bal.optim import check_known
from fedjax_bal.types import Federation


def check_needs(context: NeedsContext) -> None:
    """Rejects a run that doesn't meet a part's requirements, or that ends before a part's first round."""
    for part in context.parts:
        for need in part.needs:
            need.check(context)
        begins_within(part.slot, part.first_round + 1).check(context)


def begins_within(what: str, begin: int) -> Need:
    """Requires that a round of the run is the first in which something happens."""

    def check(context: NeedsContext) -> None:
        if begin > context.rounds:
            raise ValueError(
                f"{what}: begins in round {begin}, but rounds={context.rounds}, so it would change nothing: "
                f"let it begin in round {context.rounds} or earlier, or set rounds to {begin} or more"
            )

    return Need("", check)


def names_of_needs(parts: Iterable[Part]) -> list[str]:
    """Returns the names of all parts' requirements, without repetition.

    Example:
        >>> from fedjax_bal.recipes import fedprox, scaffold
        >>> names_of_needs(scaffold().parts), names_of_needs(fedprox().parts)
        (['plain SGD', 'no local momentum'], [])
    """
    return list(dict.fromkeys(need.name for part in parts for need in part.needs if need.name))


def plain_sgd(method: str, reason: str) -> Need:
    """Requires SGD without Nesterov momentum, with a known learning rate, as the local optimizer."""

    def check(context: NeedsContext) -> None:
        local = context.local
        check_known(method, local)
        if local.name != "sgd" or dict(local.flags).get("nesterov"):
            kind = "nesterov momentum" if local.name == "sgd" else f"the local optimizer {local.name!r}"
            raise ValueError(
                f"{method}: received {kind}; {reason}: set training.optimizer.name to sgd, without nesterov"
            )

    return Need("plain SGD", check)


def fresh_momentum(slot: str) -> Need:
    """Requires that clients of a chain don't pass on a local momentum."""

    def check(context: NeedsContext) -> None:
        if context.carried and context.local.options.get("momentum"):
            raise ValueError(
                f"optimizer_state: received 'carried' and a local momentum together with {slot}, which assumes that "
                "momentum restarts with each local training: use 'fresh', or set training.optimizer.momentum to 0"
            )

    return Need("", check)


def without_other(method: str, own: Part, *roles: type[Part], because: str) -> Need:
    """Requires that no other part plays any of the roles."""

    def check(context: NeedsContext) -> None:
        for other in parts_with(context.parts, *roles):
            if other.slot != own.slot:
                raise ValueError(f"{method}: received {other.slot}, {because}; leave one of the two out")

    return Need("", check)


def shared_model(method: str, because: str) -> Need:
    """Requires that no leaves of the model stay with the clients; other models that they train may."""

    def check(context: NeedsContext) -> None:
        for other in parts_with(context.parts, Personal):
            if not isinstance(other, Separate):
                raise ValueError(
                    f"{method}: received {other.slot}, whose leaves stay with the clients, so {because}; leave "
                    "one of the two out"
                )

    return Need("", check)


class Unshifted(Refine, abc.ABC):
    """The base of parts that evaluate the model before the server shifted it for the clients."""

    method: ClassVar[str]
    """The method's name, for messages."""

    evaluation_only = True

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that no part changes the model after the shift, or puts another one in for evaluation before it."""
        return not_shown_before(self.method, self), Need("", self._check_step)

    def _check_step(self, context: NeedsContext) -> None:
        for other in parts_with(context.parts, Refine):
            if not other.evaluation_only:
                raise ValueError(
                    f"{self.method}: received {other.slot}, which changes the model after the server's step, so "
                    "the model before the shift can't be recovered from it; leave one of the two out"
                )


def not_shown_before(method: str, own: Part) -> Need:
    """Requires that no earlier part replaces, for evaluation, what `own` would replace; `Unshifted` parts may."""

    def check(context: NeedsContext) -> None:
        place = [part.slot for part in context.parts].index(own.slot)
        for other in parts_with(context.parts[:place], Refine):
            if other.evaluation_only and not isinstance(other, Unshifted):
                raise ValueError(
                    f"{method}: received {other.slot} before it, whose model for evaluation it would replace: name "
                    f"{method} first, or leave one of the two out"
                )

    return Need("", check)


def weighted_mean(method: str) -> Need:
    """Requires that updates are combined with their weights."""

    def check(context: NeedsContext) -> None:
        for other in parts_with(context.parts, Reduce):
            if other.unweighted:
                raise ValueError(
                    f"{method}: received {other.slot}, which ignores how much updates weigh, so the weights of "
                    f"{method} would have no effect; leave one of the two out"
                )

    return Need("", check)


def only_rescaling(method: str, own: Part, because: str, remedy: str = "") -> Need:
    """Requires that no other part weights updates and also changes their mean, as such a part must find its weights."""

    def check(context: NeedsContext) -> None:
        for other in parts_with(context.parts, Weigh):
            if isinstance(other, Step) and other.slot != own.slot:
                raise ValueError(f"{method}: received {other.slot}, {because}; leave one of the two out{remedy}")

    return Need("", check)


BALANCED = "balanced"
"""The name of the auxiliary set with the server's rows."""


def balanced_rows(federation: Federation) -> Any:
    """Returns the indices of the server's own rows, of all classes, `Int32[A]`."""
    return federation.auxiliary[BALANCED]


def _check_rows(context: NeedsContext) -> None:
    if BALANCED not in context.auxiliary:
        raise ValueError(
            f"federation: received the auxiliary sets {sorted(context.auxiliary)}, must have rows in {BALANCED!r} "
            "for the server to work with: set auxiliary.per_class, or give data.federate the rows that data.carve takes"
        )


SERVER_ROWS = Need("auxiliary rows (auxiliary.per_class)", _check_rows)
"""Requires rows in the set `BALANCED`."""
