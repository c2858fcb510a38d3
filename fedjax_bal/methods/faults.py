"""Fault injection: chosen clients return broken or stale updates, for studies of robustness."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.roles import Deliver, Memory, Need, NeedsContext, part, static
from fedjax_bal.types import Array, Context, Outcome, PyTree, Variables
from fedjax_bal.validate import whole_number

_SPOILT: Mapping[str, Callable[[Array, Array], Array]] = {
    "not_a_number": lambda delta, factor: jnp.full_like(delta, jnp.nan),
    "infinite": lambda delta, factor: jnp.full_like(delta, jnp.inf),
    "huge": lambda delta, factor: delta * factor,
}


@part
class Faults(Deliver):
    """Breaks the updates that some clients return in some rounds.

    Attributes:
        factor: the factor on the updates of kind `huge`.
        kind: `not_a_number`, `infinite` or `huge`.
        clients: ids of these clients.
        rounds: these rounds, from 1; None for all.
    """

    factor: float = 1e6
    kind: str = static("not_a_number")
    clients: tuple[int, ...] = static(())
    rounds: tuple[int, ...] | None = static(None)

    @property
    def slot(self) -> str:
        """A separate name for each kind, so that several kinds can be combined."""
        return f"Faults {self.kind}"

    @property
    def needs(self) -> tuple[Need, ...]:
        """Clients that exist, and a run that isn't over before the first of its rounds."""
        return (Need("", functools.partial(_check_places, self.clients, self.rounds)),)

    def deliver(self, outcome: Outcome) -> Variables:
        """Returns the trained model or, if the client is faulty, the broken one; batch statistics don't change."""
        struck = _is_faulty(self.clients, self.rounds, outcome.ctx)
        factor = jnp.asarray(self.factor, float)

        def one(start: Array, end: Array) -> Array:
            return jnp.where(struck, start + _SPOILT[self.kind](end - start, factor), end)

        return outcome.end._replace(params=jax.tree.map(one, outcome.start.params, outcome.end.params))


class LastUpdate(NamedTuple):
    """The last update that a client trained and returned.

    Attributes:
        delta: its change of the parameters; zeros if there is none.
        there: whether there is one, `Bool[]`.
    """

    delta: PyTree
    there: Array


@part
class StaleUpdates(Deliver, Memory):
    """Makes some clients return, in some rounds, the update of the last round in which they delivered.

    A client that never delivered before returns its new update. Batch statistics, and changes that other parts make to
    the returned model, are from the current round.

    Attributes:
        clients: ids of these clients.
        rounds: these rounds, from 1; None for all.
        tagged: whether updates name their round, so that the server recognises stale ones.
    """

    clients: tuple[int, ...] = static(())
    rounds: tuple[int, ...] | None = static(None)
    tagged: bool = static(True)

    @property
    def needs(self) -> tuple[Need, ...]:
        """Clients that exist, and a run that isn't over before the first of its rounds."""
        return (Need("", functools.partial(_check_places, self.clients, self.rounds)),)

    def init_memory(self, variables: Variables) -> LastUpdate:
        """Returns an empty memory."""
        return LastUpdate(jax.tree.map(jnp.zeros_like, variables.params), jnp.array(False))

    def outdated(self, outcome: Outcome) -> Array:
        """Returns whether the older update is sent and tagged as such."""
        return self._again(outcome) & self.tagged

    def deliver(self, outcome: Outcome) -> Variables:
        """Returns the trained model, or the received one with the older change."""
        again = self._again(outcome)
        last = outcome.ctx.memory[self.slot]
        one = lambda start, end, delta: jnp.where(again, start + delta, end)
        return outcome.end._replace(params=jax.tree.map(one, outcome.start.params, outcome.end.params, last.delta))

    def remember(self, memory: LastUpdate, outcome: Outcome) -> LastUpdate:
        """Remembers the returned change: the older one, if that was sent."""
        again = self._again(outcome)
        one = lambda start, end, delta: jnp.where(again, delta, end - start)
        delta = jax.tree.map(one, outcome.start.params, outcome.end.params, memory.delta)
        return LastUpdate(delta, jnp.array(True))

    def _again(self, outcome: Outcome) -> Array:
        return _is_faulty(self.clients, self.rounds, outcome.ctx) & outcome.ctx.memory[self.slot].there


def _is_faulty(clients: tuple[int, ...], rounds: tuple[int, ...] | None, ctx: Context) -> Array:
    """Returns whether the client is faulty in this round, `Bool[]`."""
    hit = (ctx.client == jnp.array(clients, jnp.int32)).any()
    return hit if rounds is None else hit & (ctx.round + 1 == jnp.array(rounds, jnp.int32)).any()


def _check_places(clients: tuple[int, ...], chosen: tuple[int, ...] | None, context: NeedsContext) -> None:
    if chosen and min(chosen) > context.rounds:
        raise ValueError(
            f"faults: rounds: received {', '.join(map(str, chosen))}, but the run ends after round {context.rounds}, "
            "so no update would break: name a round of the run, or none for all of them"
        )
    absent = [client for client in clients if context.clients is not None and client >= context.clients]
    if absent:
        raise ValueError(
            f"faults: clients: received {absent[0]}, but there are {context.clients} clients, numbered from 0"
        )


@recipe("robust", "blanchard2017machine")
def faults(
    kind: Literal["not_a_number", "infinite", "huge", "stale"] = "not_a_number",
    clients: Sequence[int] = (0,),
    rounds: Sequence[int] | None = None,
    factor: NonNegative = 1e6,
    tagged: bool = True,
) -> Recipe:
    """Clients that return broken updates, to test how a method copes with them.

    This isn't a federated method; combine it with one: `combine(median(), faults("huge", [3, 7]))`. Faults of several
    kinds can be combined. `execution.broken_clients` sets how they are handled; huge updates reach the method only with
    `execution.huge_factor: null`.

    Args:
        kind: "not_a_number" or "infinite": the value of all parameters; "huge": the change of the parameters times
            `factor`; "stale": the change of the last round in which the client delivered, again.
        clients: the faulty clients, by number, from 0.
        rounds: the rounds, from 1, at least one of them within the run; None for all.
        factor: for "huge"; 0 or more.
        tagged: for "stale", whether updates name their round. The server then treats them like non-finite updates;
            otherwise nothing marks them as stale.

    Example:
        >>> faults("huge", [3, 7], rounds=[5]).parts
        (Faults(factor=1000000.0, kind='huge', clients=(3, 7), rounds=(5,)),)

    References:
        Blanchard et al., 2017, whose Byzantine workers may send anything; the faults here are common accidental ones.
    """
    who = _numbers("clients", clients, 0)
    when = None if rounds is None else _numbers("rounds", rounds, 1)
    part = StaleUpdates(who, when, tagged) if kind == "stale" else Faults(factor, kind, who, when)
    return Recipe("faults", (part,))


def _numbers(name: str, values: Sequence[Any], low: int) -> tuple[int, ...]:
    """Returns the integers sorted and without repetition; there must be at least one."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
        raise ValueError(f"faults: {name}: received {values!r}, must be a list of at least one number")
    return tuple(sorted({whole_number(f"faults: {name}", value, low=low) for value in values}))
