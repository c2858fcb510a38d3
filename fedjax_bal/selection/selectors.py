"""Selectors as pure triples of functions, uniform selection, and the round's plan."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.selection.draws import generator, sample
from fedjax_bal.types import Plan
from fedjax_bal.validate import whole_number


class Selector(NamedTuple):
    """A rule that selects each round's cohort.

    Attributes:
        init: `init(seed, num_clients) -> state`; a pytree of NumPy arrays, so that it can be saved.
        select: `select(state, seed, round, available) -> (clients, state)` for `available: Bool[N]`; clients
            `Int32[chains, chain_length]`, N marking empty places.
        update: `update(state, plan, probes) -> state` after the round; probes are a dict of arrays `[G, L, ...]` by
            slot.
        chains: G, chains per round.
        chain_length: L, clients per chain.
        passes: how often a chain goes through its clients.
        closed_loop: whether a selection depends on the results of earlier rounds, which must then be complete.
        clients: the most clients per round, if the last chain is short; None for as many as there are places.
        needs: the slots of the probes that `update` learns from.
        compositions: `compositions(state) -> Float[N, C]`, its estimate of each client's class shares, zeros where
            unknown; None for a selector that estimates none.
        even: whether each cohort is a uniform draw of the available clients, whatever came before.
        drawn_by_size: whether clients are drawn in proportion to their numbers of samples. The updates of a cohort then
            begin with the same weight, in place of these numbers, which would count twice.
    """

    init: Callable[[int, int], Any]
    select: Callable[[Any, int, int, np.ndarray], tuple[np.ndarray, Any]]
    update: Callable[[Any, Plan, Any], Any]
    chains: int
    chain_length: int
    passes: int
    closed_loop: bool
    clients: int | None = None
    needs: tuple[str, ...] = ()
    compositions: Callable[[Any], np.ndarray] | None = None
    even: bool = False
    drawn_by_size: bool = False

    @property
    def most(self) -> int:
        """The most clients per round."""
        return self.chains * self.chain_length if self.clients is None else self.clients


def uniform(clients_per_round: int) -> Selector:
    """Selects clients at random, without replacement; all of them if fewer are available.

    Args:
        clients_per_round: at least 1.

    Raises:
        ValueError: fewer than 1.

    Example:
        >>> import numpy as np
        >>> selector = uniform(2)
        >>> clients, _ = selector.select(selector.init(0, 4), 0, 0, np.array([True, False, False, False]))
        >>> clients.tolist()  # client 0, and an empty place
        [[0], [4]]
    """
    chains = whole_number("clients_per_round", clients_per_round)

    def select(state: tuple, seed: int, round: int, available: np.ndarray) -> tuple[np.ndarray, tuple]:
        return single(sample(generator(seed, "selection", round), available, chains), chains, len(available)), state

    return open_loop(select, chains)._replace(even=True)


def open_loop(
    select: Callable[[Any, int, int, np.ndarray], tuple[np.ndarray, Any]],
    chains: int,
    init: Callable[[int, int], Any] = lambda seed, num_clients: (),
    chain_length: int = 1,
    passes: int = 1,
    clients: int | None = None,
) -> Selector:
    """Builds a selector that learns nothing from the rounds; arguments as in `Selector`."""
    return Selector(init, select, lambda state, plan, probes: state, chains, chain_length, passes, False, clients)


def single(chosen: np.ndarray, chains: int, num_clients: int) -> np.ndarray:
    """Arranges at most `chains` clients as chains of one, `Int32[chains, 1]`; `num_clients` marks empty places."""
    clients = np.full((chains, 1), num_clients, np.int32)
    clients[: len(chosen), 0] = chosen
    return clients


def delivered_probe(plan: Plan, probes: Any, slot: str, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Selects the clients `Int[K]` that delivered, and their values `Float64[K, *shape]` in one slot of the probes.

    A value that is not finite counts as not delivered: the client diverged.
    """
    if not isinstance(probes, Mapping) or slot not in probes:
        received = ", ".join(map(repr, probes)) if isinstance(probes, Mapping) and probes else "none"
        raise ValueError(
            f"probes: received {received}, but this selector learns from {slot!r}: train with a recipe that reports it"
        )
    values, needed = np.asarray(probes[slot], np.float64), (*np.shape(plan.clients), *shape)
    if values.shape != needed:
        needs = f"{needed} (chains, clients of a chain, ...)"
        raise ValueError(f"probe {slot!r}: received shape {values.shape}, must be {needs}")
    finite = np.isfinite(values).all(axis=tuple(range(2, values.ndim)))
    arrived = np.asarray(plan.delivered) & finite
    return np.asarray(plan.clients)[arrived], values[arrived]


def make_plan(clients: np.ndarray, arriving: np.ndarray) -> Plan:
    """Orders chains by their smallest client and marks the clients that deliver.

    Sums over chains then have the same bits, in whatever order the selector listed them.

    Args:
        clients: `Int32[G, L]`, N marking empty places.
        arriving: `Bool[N]`.

    Returns:
        The plan.

    Raises:
        ValueError: a client occurs twice.

    Example:
        >>> import numpy as np
        >>> plan = make_plan(np.array([[3], [1]]), np.array([True, True, True, False]))
        >>> plan.clients.tolist(), plan.delivered.tolist()
        ([[1], [3]], [[True], [False]])
    """
    clients = np.asarray(clients, np.int32)
    clients = clients[np.argsort(clients.min(1), kind="stable")]
    total = len(arriving)
    inside = clients < total
    listed = clients[inside]
    if len(np.unique(listed)) != len(listed):
        raise ValueError("plan: a client stands in two places of one round; a selector must list each client once")
    return Plan(clients, inside & arriving[np.minimum(clients, total - 1)])
