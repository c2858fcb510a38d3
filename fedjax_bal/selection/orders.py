"""Selectors that order clients: in turn, by number of samples, or by their last known loss."""

from typing import Any

import numpy as np

from fedjax_bal.selection.draws import generator, weighted_sample
from fedjax_bal.selection.greedy import check_clients, check_sizes
from fedjax_bal.selection.selectors import Selector, delivered_probe, open_loop, single
from fedjax_bal.types import Plan
from fedjax_bal.validate import whole_number

LOSS = "loss"
"""Slot of the probe that `power_of_choice` learns from: local losses `Float[G, L]`."""

_AHEAD = 4


def round_robin(clients_per_round: int) -> Selector:
    """Selects clients in the order of their numbers, continuing from the round before; skips unavailable ones.

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
    groups = whole_number("clients_per_round", clients_per_round)

    def select(state: np.ndarray, seed: int, round: int, available: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        total, chosen = len(available), np.zeros(0, np.int64)
        reach = min(groups, total)
        while len(chosen) < groups and reach < _AHEAD * total:  # further and further ahead, until there are enough
            in_turn = (np.arange(min(reach, total)) + int(state)) % total
            chosen, reach = in_turn[available[in_turn]][:groups], _AHEAD * reach
        following = (chosen[-1] + 1) % total if len(chosen) else int(state)
        return single(chosen, groups, total), np.array(following, np.int64)

    return open_loop(select, groups, init=lambda seed, num_clients: np.array(0, np.int64))


def by_size(clients_per_round: int, *, sizes: Any) -> Selector:
    """Draws clients without replacement, each draw in proportion to the number of samples; averages them plainly.

    The updates of a cohort weigh the same, as drawing has counted their sizes already. With `uniform` it is the other
    way round: an even draw, and weights by number of samples.

    Args:
        clients_per_round: at least 1.
        sizes: `[N]`, samples of each client; one without any is never drawn.

    Returns:
        The selector.

    Raises:
        ValueError: an argument of the wrong kind or out of range.

    Example:
        >>> selector = by_size(1, sizes=[0, 5])
        >>> selector.select(selector.init(0, 2), 0, 0, np.ones(2, bool))[0].tolist()
        [[1]]

    References:
        Li et al., 2020 (FedProx), Algorithm 2, which draws and averages so.
    """
    groups, weights = whole_number("clients_per_round", clients_per_round), check_sizes(sizes)

    def init(seed: int, num_clients: int) -> tuple:
        check_clients("sizes", len(weights), num_clients)
        return ()

    def select(state: tuple, seed: int, round: int, available: np.ndarray) -> tuple[np.ndarray, tuple]:
        chosen = weighted_sample(generator(seed, "selection", round), available, weights, groups)
        return single(chosen, groups, len(available)), state

    return open_loop(select, groups, init)._replace(drawn_by_size=True)


def power_of_choice(clients_per_round: int, candidates: int, *, sizes: Any) -> Selector:
    """Selects the clients with the highest known loss among random candidates; averages them plainly.

    Candidates are drawn, and updates weighed, as in `by_size`. A client's loss is the one that it sent when it last
    delivered; clients that never did come first. Equal losses keep the order of the draw. A loss that isn't finite is
    ignored.

    Args:
        clients_per_round: m, at least 1.
        candidates: d, at least m; with d = m it is `by_size`, with d = N greedy.
        sizes: `[N]`, samples of each client; one without any is never a candidate.

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
    groups, weights = whole_number("clients_per_round", clients_per_round), check_sizes(sizes)
    whole_number("candidates", candidates)
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
