"""Injected faults: chosen clients that return broken or stale updates, for studies of robustness."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.part import Need, RunFacts, part, static
from fedjax_bal.methods.roles import Deliver, Memory
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
        factor: by which `huge` changes are too large.
        kind: `not_a_number`, `infinite` or `huge`.
        clients: their ids.
        rounds: the rounds, from 1; None for every one.
    """

    factor: float = 1e6
    kind: str = static("not_a_number")
    clients: tuple[int, ...] = static(())
    rounds: tuple[int, ...] | None = static(None)

    @property
    def slot(self) -> str:
        """One for each kind, so that several kinds go together."""
        return f"Faults {self.kind}"

    @property
    def needs(self) -> tuple[Need, ...]:
        """Clients that exist, and a run that isn't over before the first of its rounds."""
        return (Need("", functools.partial(_check_places, self.clients, self.rounds)),)

    def deliver(self, outcome: Outcome) -> Variables:
        """The trained model, or the spoilt one; batch statistics stay."""
        struck = _struck(self.clients, self.rounds, outcome.ctx)
        factor = jnp.asarray(self.factor, float)

        def one(start: Array, end: Array) -> Array:
            return jnp.where(struck, start + _SPOILT[self.kind](end - start, factor), end)

        return outcome.end._replace(params=jax.tree.map(one, outcome.start.params, outcome.end.params))


class LastUpdate(NamedTuple):
    """The last update that a client trained and returned.

    Attributes:
        delta: its change of the parameters; zeros if there was none.
        there: whether there was one, `Bool[]`.
    """

    delta: PyTree
    there: Array


@part
class StaleUpdates(Deliver, Memory):
    """Lets some clients return, in some rounds, the update of the last round in which they delivered.

    A client that never delivered before returns what it trained. Batch statistics, and changes that other parts make to
    the returned model, are of this round.

    Attributes:
        clients: their ids.
        rounds: the rounds, from 1; None for every one.
        tagged: whether updates name their round, so that the server can tell.
    """

    clients: tuple[int, ...] = static(())
    rounds: tuple[int, ...] | None = static(None)
    tagged: bool = static(True)

    @property
    def needs(self) -> tuple[Need, ...]:
        """Clients that exist, and a run that isn't over before the first of its rounds."""
        return (Need("", functools.partial(_check_places, self.clients, self.rounds)),)

    def init_memory(self, variables: Variables) -> LastUpdate:
        """No update."""
        return LastUpdate(jax.tree.map(jnp.zeros_like, variables.params), jnp.array(False))

    def outdated(self, outcome: Outcome) -> Array:
        """Whether the older update is sent and tagged as such."""
        return self._again(outcome) & self.tagged

    def deliver(self, outcome: Outcome) -> Variables:
        """The trained model, or the received one with the older change."""
        again = self._again(outcome)
        last = outcome.ctx.memory[self.slot]
        one = lambda start, end, delta: jnp.where(again, start + delta, end)
        return outcome.end._replace(params=jax.tree.map(one, outcome.start.params, outcome.end.params, last.delta))

    def remember(self, memory: LastUpdate, outcome: Outcome) -> LastUpdate:
        """The change that was returned: the older one, if it was sent."""
        again = self._again(outcome)
        one = lambda start, end, delta: jnp.where(again, delta, end - start)
        delta = jax.tree.map(one, outcome.start.params, outcome.end.params, memory.delta)
        return LastUpdate(delta, jnp.array(True))

    def _again(self, outcome: Outcome) -> Array:
        return _struck(self.clients, self.rounds, outcome.ctx) & outcome.ctx.memory[self.slot].there


def _struck(clients: tuple[int, ...], rounds: tuple[int, ...] | None, ctx: Context) -> Array:
    """Whether a client breaks in this round, `Bool[]`."""
    hit = (ctx.client == jnp.array(clients, jnp.int32)).any()
    return hit if rounds is None else hit & (ctx.round + 1 == jnp.array(rounds, jnp.int32)).any()


def _check_places(clients: tuple[int, ...], chosen: tuple[int, ...] | None, facts: RunFacts) -> None:
    if chosen and min(chosen) > facts.rounds:
        raise ValueError(
            f"faults: rounds: received {', '.join(map(str, chosen))}, but the run ends after round {facts.rounds}, "
            "so that nothing would go wrong: name a round of the run, or none for all of them"
        )
    absent = [client for client in clients if facts.clients is not None and client >= facts.clients]
    if absent:
        raise ValueError(
            f"faults: clients: received {absent[0]}, but there are {facts.clients} clients, numbered from 0"
        )


@recipe("robust", "blanchard2017machine")
def faults(
    kind: Literal["not_a_number", "infinite", "huge", "stale"] = "not_a_number",
    clients: Sequence[int] = (0,),
    rounds: Sequence[int] | None = None,
    factor: NonNegative = 1e6,
    tagged: bool = True,
) -> Recipe:
    """Clients that return a broken update, to see how a method copes with it.

    Not a method of federated learning but something to add to one: `combine(median(), faults("huge", [3, 7]))`. Faults
    of several kinds go together too. `execution.broken_clients` says how they are handled; huge ones reach the method
    only with `execution.huge_factor: null`.

    Args:
        kind: "not_a_number" or "infinite", all parameters are; "huge", the change of the parameters times `factor`;
            "stale", the change of the last round that the client delivered, once again.
        clients: the clients that break, by number, from 0.
        rounds: in which rounds, from 1, one of them at least within the run; None for every one.
        factor: for "huge"; 0 or more.
        tagged: for "stale", whether updates name their round, so that the server can tell and treats them like updates
            that aren't finite; nothing in the numbers themselves says so.

    Example:
        >>> faults("huge", [3, 7], rounds=[5]).parts
        (Faults(factor=1000000.0, kind='huge', clients=(3, 7), rounds=(5,)),)

    References:
        Blanchard et al., 2017, whose Byzantine workers may send anything; these are usual ways to break by accident.
    """
    who = _numbers("clients", clients, 0)
    when = None if rounds is None else _numbers("rounds", rounds, 1)
    part = StaleUpdates(who, when, tagged) if kind == "stale" else Faults(factor, kind, who, when)
    return Recipe("faults", (part,))


def _numbers(name: str, values: Sequence[Any], low: int) -> tuple[int, ...]:
    """Sorted integers, each once; at least one."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
        raise ValueError(f"faults: {name}: received {values!r}, must be a list of at least one number")
    return tuple(sorted({whole_number(f"faults: {name}", value, low=low) for value in values}))
