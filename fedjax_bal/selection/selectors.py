"""Selectors as triples of pure functions, the selectors that draw or order clients, and the round's plan."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.annotations import Count, checked
from fedjax_bal.selection.greedy import check_clients, check_sizes
from fedjax_bal.types import Plan

LOSS = "loss"
"""Slot of the probe from which `power_of_choice` learns: local losses `Float[G, L]`."""

_AHEAD = 4  # factor by which `round_robin` extends its search for available clients
_CROWD = 4  # number of available clients per wanted client above which drawing one by one is faster than sorting all


class Asynchrony(NamedTuple):
    """The times of a selector whose cohorts are the clients whose updates arrive next, each on the model it received.

    The `select` of such a selector has a fifth parameter, `seconds: Float64[N]`: how long each client's local training
    takes if it starts in this round.

    Attributes:
        max_staleness: the largest number of rounds, at least 1, since a client received its model; a staler update
            isn't delivered. The models of so many rounds stay on the devices.
        versions: `versions(state) -> Int64[N]`, the round, from 0, whose model each client received last.
        clock: `clock(state) -> float`, seconds from the beginning of the run to the end of its last round.
    """

    max_staleness: int
    versions: Callable[[Any], np.ndarray]
    clock: Callable[[Any], float]


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
        passes: a chain's number of passes over its clients.
        closed_loop: whether a selection depends on the results of earlier rounds, which must then be complete.
        clients: the maximum number of clients per round, if the last chain is short; None for `chains * chain_length`.
        needs: the slots of the probes from which `update` learns.
        compositions: `compositions(state) -> Float[N, C]`, its estimate of each client's class shares, zeros if
            unknown; None for a selector without estimates.
        even: whether each cohort is a uniform draw of the available clients, independent of earlier rounds.
        drawn_by_size: whether clients are drawn in proportion to their numbers of samples. The updates of a cohort then
            have equal initial weights; weights by number of samples would count sizes twice.
        asynchrony: the times of asynchronous rounds; None for rounds in which all clients train on the current model.
    """

    init: Callable[[int, int], Any]
    select: Callable[..., tuple[np.ndarray, Any]]
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
    asynchrony: Asynchrony | None = None

    @property
    def most(self) -> int:
        """The maximum number of clients per round."""
        return self.chains * self.chain_length if self.clients is None else self.clients


@checked
def uniform(clients_per_round: Count) -> Selector:
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
    chains = clients_per_round

    def select(state: tuple, seed: int, round: int, available: np.ndarray) -> tuple[np.ndarray, tuple]:
        return single(sample(generator(seed, "selection", round), available, chains), chains, len(available)), state

    return open_loop(select, chains)._replace(even=True)


@checked
def round_robin(clients_per_round: Count) -> Selector:
    """Selects clients in the order of their numbers, continuing from the previous round; skips unavailable ones.

    Args:
        clients_per_round: at least 1.

    Returns:
        The selector; its state is the number of the next client.

    Raises:
        ValueError: fewer than 1.

    Example:
        >>> selector = round_robin(2)
        >>> state, all_clients = selector.init(0, 3), np.ones(3, bool)
        >>> for round in range(3):
        ...     clients, state = selector.select(state, 0, round, all_clients)
        ...     print(clients[:, 0].tolist())
        [0, 1]
        [2, 0]
        [1, 2]
    """
    groups = clients_per_round

    def select(state: np.ndarray, seed: int, round: int, available: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        total = len(available)
        chosen = np.zeros(0, np.int64)
        reach = min(groups, total)
        while len(chosen) < groups and reach < _AHEAD * total:  # further and further ahead, until there are enough
            in_turn = (np.arange(min(reach, total)) + int(state)) % total
            chosen = in_turn[available[in_turn]][:groups]
            reach *= _AHEAD
        following = (chosen[-1] + 1) % total if len(chosen) else int(state)
        return single(chosen, groups, total), np.array(following, np.int64)

    return open_loop(select, groups, init=lambda seed, num_clients: np.array(0, np.int64))


@checked
def by_size(clients_per_round: Count, *, sizes: Any) -> Selector:
    """Draws clients in proportion to their numbers of samples, without replacement; averages them with equal weights.

    The updates of a cohort have equal weights, because the draw already accounts for sizes. `uniform` does the
    opposite: a uniform draw, and weights by number of samples.

    Args:
        clients_per_round: at least 1.
        sizes: `[N]`, samples of each client; a client without samples is never drawn.

    Returns:
        The selector.

    Raises:
        ValueError: an argument of the wrong kind or out of range.

    Example:
        >>> selector = by_size(1, sizes=[0, 5])
        >>> selector.select(selector.init(0, 2), 0, 0, np.ones(2, bool))[0].tolist()
        [[1]]

    References:
        Li et al., 2020 (FedProx), Algorithm 2.
    """
    groups = clients_per_round
    weights = check_sizes(sizes)

    def init(seed: int, num_clients: int) -> tuple:
        check_clients("sizes", len(weights), num_clients)
        return ()

    def select(state: tuple, seed: int, round: int, available: np.ndarray) -> tuple[np.ndarray, tuple]:
        chosen = weighted_sample(generator(seed, "selection", round), available, weights, groups)
        return single(chosen, groups, len(available)), state

    return open_loop(select, groups, init)._replace(drawn_by_size=True)


@checked
def power_of_choice(clients_per_round: Count, candidates: Count, *, sizes: Any) -> Selector:
    """Selects the clients with the highest known loss among random candidates; averages them with equal weights.

    Candidates are drawn, and updates weighted, as in `by_size`. A client's loss is the one that it sent with its last
    delivered update; clients that never delivered come first. Equal losses keep the order of the draw. A non-finite
    loss is ignored.

    Args:
        clients_per_round: m, at least 1.
        candidates: d, at least m; with d = m it is `by_size`, with d = N greedy.
        sizes: `[N]`, samples of each client; a client without samples is never a candidate.

    Returns:
        A closed-loop selector; `update` takes losses `Float[G, 1]` in the slot `"loss"`.

    Raises:
        ValueError: an argument of the wrong kind or out of range.

    Example:
        >>> selector = power_of_choice(1, 3, sizes=[1, 1, 1])
        >>> state = selector.init(0, 3)
        >>> for client, loss in enumerate([0.5, 2.0, 1.0]):
        ...     state = selector.update(state, Plan(np.array([[client]]), np.array([[True]])), {"loss": [[loss]]})
        >>> selector.select(state, 0, 3, np.ones(3, bool))[0].tolist()
        [[1]]

    References:
        Cho, Wang and Joshi: Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection
        Strategies, 2020, eq. 2, for the draw and the plain mean, and section 5: the variant rpow-d, which uses stale
        losses instead of asking candidates for theirs.
    """
    groups = clients_per_round
    weights = check_sizes(sizes)
    if candidates < groups:
        raise ValueError(
            f"candidates: received {candidates} for {groups} clients a round; must be at least as many as these"
        )

    def init(seed: int, num_clients: int) -> np.ndarray:
        check_clients("sizes", len(weights), num_clients)
        return np.full(num_clients, np.inf)

    def select(state: np.ndarray, seed: int, round: int, available: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        drawn = weighted_sample(generator(seed, "selection", round), available, weights, candidates)
        chosen = drawn[np.argsort(-state[drawn], kind="stable")[:groups]]
        return single(chosen, groups, len(available)), state

    def update(state: np.ndarray, plan: Plan, probes: Any) -> np.ndarray:
        clients, losses = delivered_probe(plan, probes, LOSS)
        after = state.copy()
        after[clients] = losses
        return after

    return Selector(init, select, update, groups, 1, 1, closed_loop=True, needs=(LOSS,), drawn_by_size=True)


def open_loop(
    select: Callable[..., tuple[np.ndarray, Any]],
    chains: int,
    init: Callable[[int, int], Any] = lambda seed, num_clients: (),
    chain_length: int = 1,
    passes: int = 1,
    clients: int | None = None,
) -> Selector:
    """Builds a selector that doesn't learn from rounds; arguments as in `Selector`."""
    return Selector(init, select, lambda state, plan, probes: state, chains, chain_length, passes, False, clients)


def single(chosen: np.ndarray, chains: int, num_clients: int) -> np.ndarray:
    """Arranges at most `chains` clients as chains of one, `Int32[chains, 1]`; `num_clients` marks empty places."""
    clients = np.full((chains, 1), num_clients, np.int32)
    clients[: len(chosen), 0] = chosen
    return clients


def delivered_probe(plan: Plan, probes: Any, slot: str, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the clients `Int[K]` that delivered, and their values `Float64[K, *shape]` in one slot of the probes.

    A non-finite value counts as not delivered: the client diverged.
    """
    if not isinstance(probes, Mapping) or slot not in probes:
        received = ", ".join(map(repr, probes)) if isinstance(probes, Mapping) and probes else "none"
        raise ValueError(
            f"probes: received {received}, but this selector learns from {slot!r}: train with a recipe that reports it"
        )
    values = np.asarray(probes[slot], np.float64)
    needed = (*np.shape(plan.clients), *shape)
    if values.shape != needed:
        needs = f"{needed} (chains, clients of a chain, ...)"
        raise ValueError(f"probe {slot!r}: received shape {values.shape}, must be {needs}")
    finite = np.isfinite(values).all(axis=tuple(range(2, values.ndim)))
    arrived = np.asarray(plan.delivered) & finite
    return np.asarray(plan.clients)[arrived], values[arrived]


def make_plan(clients: np.ndarray, arriving: np.ndarray) -> Plan:
    """Orders chains by their smallest client and marks the clients that deliver.

    Sums over chains are then bitwise equal, regardless of the order in which the selector listed them.

    Args:
        clients: `Int32[G, L]`, N marking empty places.
        arriving: `Bool[N]`.

    Returns:
        The plan.

    Raises:
        ValueError: a client occurs twice, or its number is negative.

    Example:
        >>> import numpy as np
        >>> plan = make_plan(np.array([[3], [1]]), np.array([True, True, True, False]))
        >>> plan.clients.tolist(), plan.delivered.tolist()
        ([[1], [3]], [[True], [False]])
    """
    clients = np.asarray(clients, np.int32)
    clients = clients[np.argsort(clients.min(1), kind="stable")]
    total = len(arriving)
    if (clients < 0).any():
        raise ValueError(
            f"plan: received client {clients.min()}; a selector must list clients from 0 to {total - 1}, and {total} "
            "for an empty place"
        )
    inside = clients < total
    listed = clients[inside]
    if len(np.unique(listed)) != len(listed):
        raise ValueError("plan: a client stands in two places of one round; a selector must list each client once")
    return Plan(clients, inside & arriving[np.minimum(clients, total - 1)])


def generator(seed: int, purpose: str, round: int) -> np.random.Generator:
    """Creates the generator for one purpose in one round.

    Methods that are compared with the same seed get the same draws (common random numbers). Purposes draw
    independently.
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), round])


def sample(rng: np.random.Generator, available: np.ndarray, size: int) -> np.ndarray:
    """Draws clients at random without replacement, in the order drawn; all of them if fewer are available."""
    candidates = int(np.count_nonzero(available))
    total = len(available)
    if _CROWD * size > candidates:
        order = np.argsort(np.where(available, rng.random(total), np.inf), kind="stable")
        return order[: min(size, candidates)]
    # If few of many are wanted, clients are drawn one by one, skipping those that are unavailable or already drawn.
    drawn = np.zeros(0, np.int64)
    while True:
        drawn = np.append(drawn, rng.integers(0, total, 2 * size * total // candidates + 1))
        _, first = np.unique(drawn, return_index=True)
        chosen = drawn[np.sort(first)]
        chosen = chosen[available[chosen]]
        if len(chosen) >= size:
            return chosen[:size]


def weighted_sample(rng: np.random.Generator, available: np.ndarray, weights: np.ndarray, size: int) -> np.ndarray:
    """Draws clients one after another without replacement, each in proportion to its weight among the remaining ones.

    Among exponential clocks with rates w_k, clock k rings first with probability w_k / sum_j w_j. As the clocks are
    memoryless, the order in which they ring is the order of the draws. An unavailable client doesn't change other
    clients' clocks, and a client of weight 0 is never drawn.
    """
    clocks = rng.standard_exponential(len(available))
    able = np.flatnonzero(available & (weights > 0))
    rings = clocks[able] / weights[able]
    if size < len(able):
        earliest = np.argpartition(rings, size)[:size]
        able = able[earliest]
        rings = rings[earliest]
    return able[np.argsort(rings, kind="stable")]
