"""Who trains: selectors as pure triples of functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.checks import whole_number
from fedjax_bal.selection.draws import generator
from fedjax_bal.types import Plan

_CROWD = 4  # clients for each one wanted, from which on drawing one by one is cheaper than ordering them all


class Selector(NamedTuple):
    """A way of choosing each round's cohort.

    Attributes:
        init: `init(seed, num_clients) -> state`; a pytree of NumPy arrays, so that it can be saved.
        select: `select(state, seed, round, available) -> (clients, state)` for `available: Bool[N]`; clients
            `Int32[groups, links]`, N marking empty places.
        update: `update(state, plan, probes) -> state` after the round.
        groups: G, chains a round.
        links: L, clients a chain.
        passes: how often a chain goes through its clients.
        closed_loop: whether a choice depends on what earlier rounds brought, which then must be over first.
    """

    init: Callable[[int, int], Any]
    select: Callable[[Any, int, int, np.ndarray], tuple[np.ndarray, Any]]
    update: Callable[[Any, Plan, Any], Any]
    groups: int
    links: int
    passes: int
    closed_loop: bool


def uniform(clients_per_round: int) -> Selector:
    """Clients at random, without replacement, each its own chain; all of them where fewer are available.

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
    groups = whole_number("clients_per_round", clients_per_round)

    def select(state: tuple, seed: int, round: int, available: np.ndarray) -> tuple[np.ndarray, tuple]:
        chosen = _sample(generator(seed, "selection", round), available, groups)
        clients = np.full((groups, 1), len(available), np.int32)
        clients[: len(chosen), 0] = chosen
        return clients, state

    return Selector(
        init=lambda seed, num_clients: (),
        select=select,
        update=lambda state, plan, probes: state,
        groups=groups,
        links=1,
        passes=1,
        closed_loop=False,
    )


def _sample(rng: np.random.Generator, available: np.ndarray, size: int) -> np.ndarray:
    """Clients at random without replacement, all of them where fewer are available."""
    there, total = int(np.count_nonzero(available)), len(available)
    if _CROWD * size > there:
        order = np.argsort(np.where(available, rng.random(total), np.inf), kind="stable")
        return order[: min(size, there)]
    # Few of many: clients are drawn one by one, and those that are not there or were drawn before drawn again.
    drawn = np.zeros(0, np.int64)
    while True:
        drawn = np.append(drawn, rng.integers(0, total, 2 * size * total // there + 1))
        _, first = np.unique(drawn, return_index=True)
        chosen = drawn[np.sort(first)]
        chosen = chosen[available[chosen]]
        if len(chosen) >= size:
            return chosen[:size]


SELECTORS: dict[str, Callable[..., Selector]] = {"uniform": uniform}


def make_plan(clients: np.ndarray, arriving: np.ndarray) -> Plan:
    """Orders chains by their smallest client and marks who delivers.

    Sums over chains are then the same to the last bit, however the selector listed them.

    Args:
        clients: `Int32[G, L]`, N marking empty places.
        arriving: `Bool[N]`.

    Returns:
        The plan.

    Raises:
        ValueError: a client that stands in two places.

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
