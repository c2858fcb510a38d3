"""FL-CIR's selection: a bandit picks one client, and others are added to make the classes together even."""

import math
from typing import Any, Literal

import numpy as np

from fedjax_bal.selection.estimates import ABSENT, COMPOSITION, BanditState, Reward, from_uniform, learn, to_uniform
from fedjax_bal.selection.greedy import check_clients, check_table, smallest, spans
from fedjax_bal.selection.selectors import Selector, delivered_probe, single
from fedjax_bal.types import Plan
from fedjax_bal.validate import finite_number, one_of, whole_number

Direction = Literal["from_uniform", "to_uniform"]
First = Literal["counted", "left_out"]

_LAST = 1e300  # larger than any divergence, but less than infinity, which marks clients already taken


def ucb_scores(mean_rewards: Any, pulls: Any, round: int, alpha: float) -> np.ndarray:
    r"""Computes upper confidence bounds of the clients' rewards.

    $\hat r_k = \bar r_k + \alpha \sqrt{3 \ln r / (2 T_k)}$, and infinity where T_k = 0, whatever alpha is.

    Args:
        mean_rewards: `Float[N]`.
        pulls: T_k, `Int[N]`, at least 0.
        round: r, the global round from 0; ln r counts as 0 in rounds 0 and 1.
        alpha: weight of the bonus, at least 0.

    Returns:
        `Float64[N]`.

    Raises:
        ValueError: a value out of range, or two tables of different length.

    Example:
        >>> ucb_scores(np.array([0.4, 0.3, 0.0]), np.array([4, 1, 0]), 10, 0.2).round(3).tolist()
        [0.586, 0.672, inf]

    References:
        FL-CIR (Yang et al., 2021), Algorithm 1. Its round starts at N after the first sweep; here, as in the published
        code, it is the global one.
    """
    means, counts = np.asarray(mean_rewards, np.float64), np.asarray(pulls)
    if means.shape != counts.shape or (counts < 0).any():
        raise ValueError(
            f"pulls: received {pulls!r} of shape {counts.shape}, must be counts from 0 of shape {means.shape}, as "
            "mean_rewards"
        )
    bonus = finite_number("alpha", alpha) * np.sqrt(1.5 * math.log(max(round, 1)) / np.maximum(counts, 1))
    return np.where(counts > 0, means + bonus, np.inf)


def class_balancing_set(
    compositions: Any,
    scores: Any,
    size: int,
    *,
    direction: Direction = "from_uniform",
    first: First = "counted",
) -> np.ndarray:
    r"""Selects clients greedily, from the highest score on, whose compositions together are close to even.

    The first client has the highest score (lowest index on ties). Each further one is the k with the smallest
    $KL(U \| \bar R_{S \cup k})$, where $\bar R_S$ is the plain mean of the members' compositions, plus 1e-15 in each
    class and normalised. Equal divergences (within 1e-12 nats) go to the lowest index. An unknown composition is a row
    of zeros and changes nothing; while all members' compositions are unknown, clients with a known one come first.

    Args:
        compositions: `[N, C]`, not negative, each of sum 1 or all zeros.
        scores: `[N]`; infinity is allowed.
        size: number of clients, at least 1; all of them if they are fewer.
        direction: `"from_uniform"`, KL(U || R), or `"to_uniform"`, KL(R || U).
        first: whether the first client's composition is `"counted"` among the members' or `"left_out"` of their mean.

    Returns:
        `Int[min(size, N)]` in the order added.

    Raises:
        ValueError: arguments of the wrong kind, or shapes that don't go together.

    Example:
        >>> class_balancing_set(np.array([[0.9, 0.1], [0.8, 0.2], [0.2, 0.8]]), np.array([0.5, 0.4, 0.1]), 2).tolist()
        [0, 2]

    References:
        FL-CIR, Algorithm 2. As printed, the first client's composition is left out of the sum, and eq. 8 has
        KL(R || U); the published code includes it, and has KL(U || R). In eq. 8 U is "a vector of ones", with which the
        reward of eq. 9 is negative; here it is the uniform distribution.
    """
    table = check_table("compositions", compositions, "the composition of each client by class")
    size, base = whole_number("size", size), np.asarray(scores, np.float64)
    one_of("direction", direction, ("from_uniform", "to_uniform"))
    one_of("first", first, ("counted", "left_out"))
    if base.shape != table.shape[:1]:
        raise ValueError(f"scores: received shape {base.shape}, must be {table.shape[:1]}, one for each client")
    if np.isnan(base).any():
        raise ValueError(f"scores: received nan for client {np.argmax(np.isnan(base))}, must be numbers or infinity")
    columns, chosen = np.ascontiguousarray(table.T), np.empty(min(size, len(table)), np.int64)
    total, taken = np.zeros((table.shape[1], 1)), np.zeros(len(table), bool)
    for place in range(len(chosen)):
        if place:
            values = _divergences(columns, total, place + (first == "counted"), direction)
            if not total.any():
                values = np.where(columns.any(0), values, _LAST)
            chosen[place] = smallest(np.where(taken, np.inf, values))[0]
        else:
            chosen[place] = np.argmax(base)
        taken[chosen[place]] = True
        if place or first == "counted":
            total = total + columns[:, chosen[place : place + 1]]
    return chosen


def cucb(
    clients_per_round: int,
    alpha: float = 0.2,
    rho: float = 0.99,
    reward: Reward = "bounded",
    direction: Direction = "from_uniform",
    first: First = "counted",
    *,
    num_classes: int,
) -> Selector:
    """Selects clients by a combinatorial bandit that learns their class compositions from probes.

    A first sweep asks every client once: rounds 0 to ceil(N / |S|) - 1 select the available clients that were asked the
    least, in the order of their numbers, so blocks of |S|, of which the last one wraps round to client 0. Later rounds
    select the client with the highest of `ucb_scores` and its `class_balancing_set` among the available. A client that
    missed the sweep, or whose update was lost in it, has an infinite score: one such client is taken per round, the
    lowest number first.

    After a round, every client that delivered a finite composition R updates T <- T + 1, the plain mean of its rewards,
    S <- rho S + 1 and mean <- mean + (R - mean) / S, which weighs the t-th of T compositions by rho^(T - t). For other
    clients only the count of how often they were asked changes.

    Args:
        clients_per_round: |S|, at least 1.
        alpha: weight of the exploration bonus, at least 0.
        rho: discount of older compositions, above 0 and at most 1; 1 is the plain mean.
        reward: see `rewards`.
        direction: see `class_balancing_set`.
        first: see `class_balancing_set`.
        num_classes: C.

    Returns:
        A closed-loop selector; `update` takes compositions `Float[G, 1, C]` in the slot `"composition"`.

    Raises:
        ValueError: an argument of the wrong kind or out of range.

    Example:
        >>> selector = cucb(2, num_classes=3)
        >>> clients, _ = selector.select(selector.init(0, 5), 0, 0, np.ones(5, bool))
        >>> clients.tolist()
        [[0], [1]]

    References:
        FL-CIR, Algorithms 1 and 2, eq. 9 and 10. The published code has alpha 0.8 and rho 1.
    """
    size, classes = whole_number("clients_per_round", clients_per_round), whole_number("num_classes", num_classes)
    alpha = finite_number("alpha", alpha)
    rho = finite_number("rho", rho, 0.0, 1.0)
    if rho == 0:
        raise ValueError("rho: received 0, must be above 0 and at most 1; with 1 all compositions count the same")
    one_of("reward", reward, ("bounded", "literal"))
    one_of("direction", direction, ("from_uniform", "to_uniform"))
    one_of("first", first, ("counted", "left_out"))

    def init(seed: int, num_clients: int) -> BanditState:
        counts, zeros = np.zeros(num_clients, np.int64), np.zeros(num_clients)
        return BanditState(counts, counts.copy(), zeros, np.zeros((num_clients, classes)), zeros.copy())

    def select(state: BanditState, seed: int, round: int, available: np.ndarray) -> tuple[np.ndarray, BanditState]:
        check_clients("selector's state", len(state.pulls), len(available))
        online = np.flatnonzero(available)
        if round * size < len(available):
            chosen = online[np.argsort(state.asked[online], kind="stable")[:size]]
        else:
            scores = ucb_scores(state.mean_rewards[online], state.pulls[online], round, alpha)
            added = class_balancing_set(state.compositions[online], scores, size, direction=direction, first=first)
            chosen = online[added]
        return single(chosen, size, len(available)), state

    def update(state: BanditState, plan: Plan, probes: Any) -> BanditState:
        arrived = delivered_probe(plan, probes, COMPOSITION, classes)
        asked = state.asked + np.bincount(plan.clients.ravel(), minlength=len(state.asked) + 1)[:-1]
        return learn(state._replace(asked=asked), *arrived, rho, reward)

    return Selector(init, select, update, size, 1, 1, True, None, (COMPOSITION,), lambda state: state.compositions)


def greedy(
    clients_per_round: int,
    rho: float = 0.99,
    reward: Reward = "bounded",
    direction: Direction = "from_uniform",
    first: First = "counted",
    *,
    num_classes: int,
) -> Selector:
    """Selects clients as `cucb` does without exploration: starts from the client with the best mean reward.

    Args:
        clients_per_round: |S|, at least 1.
        rho: see `cucb`.
        reward: see `rewards`.
        direction: see `class_balancing_set`.
        first: see `class_balancing_set`.
        num_classes: C.

    Returns:
        A closed-loop selector.

    Raises:
        ValueError: an argument of the wrong kind or out of range.

    Example:
        >>> greedy(2, num_classes=3).needs
        ('composition',)

    References:
        FL-CIR, section on the experiments, the comparison method of this name.
    """
    return cucb(clients_per_round, 0.0, rho, reward, direction, first, num_classes=num_classes)


def _divergences(columns: np.ndarray, total: np.ndarray, members: int, direction: Direction) -> np.ndarray:
    """Divergence of the members' mean composition with each client `columns[:, k]` added to their total."""
    measure = from_uniform if direction == "from_uniform" else to_uniform
    found = np.empty(columns.shape[1])
    for span in spans(*columns.shape):
        mean = columns[:, span] + total
        mean /= members
        mean += ABSENT
        mean /= mean.sum(0)
        found[span] = measure(mean)
    return found
