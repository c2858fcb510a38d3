"""FL-CIR's selection: a bandit picks one client, and others are added so that their joint classes are balanced."""

import math
from typing import Any, Literal, NamedTuple

import numpy as np

from fedjax_bal.annotations import Count, NonNegative, PositiveShare, checked
from fedjax_bal.selection.greedy import check_clients, check_table, smallest, spans
from fedjax_bal.selection.selectors import Selector, delivered_probe, single
from fedjax_bal.types import Plan

Reward = Literal["bounded", "literal"]
Direction = Literal["from_uniform", "to_uniform"]
First = Literal["counted", "left_out"]

COMPOSITION = "composition"
"""Slot of the probe from which the bandit learns: class compositions `Float[G, L, C]`."""

ABSENT = 1e-15
"""Added to each class, as in the published code, so that no share is 0."""

_FLOOR = 1e-6  # smallest divergence in the literal reward, which would be infinite for a balanced composition
_LAST = 1e300  # larger than any divergence, but less than infinity, which marks clients already taken


class BanditState(NamedTuple):
    """Estimates about each client.

    Attributes:
        asked: number of rounds in which it was selected, whether or not it delivered, `Int64[N]`.
        pulls: T_k, number of compositions received, `Int64[N]`.
        mean_rewards: plain mean of its rewards, `Float64[N]`; 0 before the first one.
        compositions: discounted mean of its compositions, `Float64[N, C]`; zeros before the first one.
        weights: S_k, the sum of that mean's discounts, `Float64[N]`.
    """

    asked: np.ndarray
    pulls: np.ndarray
    mean_rewards: np.ndarray
    compositions: np.ndarray
    weights: np.ndarray


def learn(state: BanditState, clients: np.ndarray, compositions: np.ndarray, rho: float, reward: Reward) -> BanditState:
    """Updates the estimates of distinct clients `Int[K]` with their compositions `Float[K, C]`; keeps `asked`.

    References:
        FL-CIR, eq. 10.
    """
    asked, pulls, means, mixed, weights = (leaf.copy() for leaf in state)
    pulls[clients] += 1
    weights[clients] = rho * weights[clients] + 1
    means[clients] += (rewards(compositions, reward) - means[clients]) / pulls[clients]
    mixed[clients] += (compositions - mixed[clients]) / weights[clients, None]
    return BanditState(asked, pulls, means, mixed, weights)


def rewards(compositions: np.ndarray, form: Reward = "bounded") -> np.ndarray:
    r"""Computes the reward of each composition, which is larger for balanced ones.

    `"bounded"`: $1 / H(U, R)$ with the cross-entropy $H(U, R) = \log C + KL(U \| R)$, at most 1 / log C, with 1e-15
    added to each class of R. `"literal"`: $1 / KL(R \| U)$ with a divergence of at least 1e-6. Compositions `Float[K,
    C]` are normalised inside.

    References:
        FL-CIR, eq. 9. The literal form dwarfs any exploration bonus; the published code has the bounded one.
    """
    shares = compositions.T + ABSENT
    shares = shares / shares.sum(0)
    if form == "bounded":
        return -1.0 / np.log(shares).mean(0)
    return 1.0 / np.maximum(to_uniform(shares), _FLOOR)


def from_uniform(shares: np.ndarray) -> np.ndarray:
    """Computes the divergence KL(U || R), in nats, of each column of R, `Float[C, K]`, columns of sum 1 without a 0."""
    return -math.log(len(shares)) - np.log(shares).mean(0)


def to_uniform(shares: np.ndarray) -> np.ndarray:
    """Computes the divergence KL(R || U), in nats, of each column of R, `Float[C, K]`, columns of sum 1 without a 0."""
    return math.log(len(shares)) + np.einsum("ck,ck->k", shares, np.log(shares))


@checked
def ucb_scores(mean_rewards: Any, pulls: Any, round: int, alpha: NonNegative) -> np.ndarray:
    r"""Computes upper confidence bounds of the clients' rewards.

    $\hat r_k = \bar r_k + \alpha \sqrt{3 \ln r / (2 T_k)}$, and infinity where T_k = 0, regardless of alpha.

    Args:
        mean_rewards: `Float[N]`.
        pulls: T_k, `Int[N]`, at least 0.
        round: r, the global round from 0; ln r counts as 0 in rounds 0 and 1.
        alpha: weight of the bonus, at least 0.

    Returns:
        `Float64[N]`.

    Raises:
        ValueError: a value is out of range, or the tables differ in length.

    Example:
        >>> ucb_scores(np.array([0.4, 0.3, 0.0]), np.array([4, 1, 0]), 10, 0.2).round(3).tolist()
        [0.586, 0.672, inf]

    References:
        FL-CIR (Yang et al., 2021), Algorithm 1. Its round counter starts at N after the first sweep; here, as in the
        published code, it is the global round.
    """
    means = np.asarray(mean_rewards, np.float64)
    counts = np.asarray(pulls)
    if means.shape != counts.shape or (counts < 0).any():
        raise ValueError(
            f"pulls: received {pulls!r} of shape {counts.shape}, must be counts from 0 of shape {means.shape}, as "
            "mean_rewards"
        )
    bonus = alpha * np.sqrt(1.5 * math.log(max(round, 1)) / np.maximum(counts, 1))
    return np.where(counts > 0, means + bonus, np.inf)


@checked
def class_balancing_set(
    compositions: Any, scores: Any, size: Count, *, direction: Direction = "from_uniform", first: First = "counted"
) -> np.ndarray:
    r"""Greedily adds clients to the one with the highest score, so that their joint composition is balanced.

    The first client has the highest score (lowest index on ties). Each further one is the k with the smallest
    $KL(U \| \bar R_{S \cup k})$, where $\bar R_S$ is the plain mean of the members' compositions, plus 1e-15 in each
    class and normalised. Equal divergences (within 1e-12 nats) go to the lowest index. An unknown composition is a row
    of zeros and changes nothing; while all members' compositions are unknown, clients with a known one come first.

    Args:
        compositions: `[N, C]`, not negative, each of sum 1 or all zeros.
        scores: `[N]`; infinity is allowed.
        size: number of clients, at least 1; all of them if there are fewer.
        direction: `"from_uniform"`, KL(U || R), or `"to_uniform"`, KL(R || U).
        first: whether the first client's composition is `"counted"` among the members' or `"left_out"` of their mean.

    Returns:
        `Int[min(size, N)]` in the order added.

    Raises:
        ValueError: an argument has the wrong type, or shapes don't match.

    Example:
        >>> class_balancing_set(np.array([[0.9, 0.1], [0.8, 0.2], [0.2, 0.8]]), np.array([0.5, 0.4, 0.1]), 2).tolist()
        [0, 2]

    References:
        FL-CIR, Algorithm 2. As printed, the first client's composition is omitted from the sum, and eq. 8 has
        KL(R || U); the published code includes it, and has KL(U || R). In eq. 8 U is "a vector of ones", with which the
        reward of eq. 9 is negative; here it is the uniform distribution.
    """
    table = check_table("compositions", compositions, "the composition of each client by class")
    base = np.asarray(scores, np.float64)
    if base.shape != table.shape[:1]:
        raise ValueError(f"scores: received shape {base.shape}, must be {table.shape[:1]}, one for each client")
    if np.isnan(base).any():
        raise ValueError(f"scores: received nan for client {np.argmax(np.isnan(base))}, must be numbers or infinity")
    columns = np.ascontiguousarray(table.T)
    chosen = np.empty(min(size, len(table)), np.int64)
    total = np.zeros((table.shape[1], 1))
    taken = np.zeros(len(table), bool)
    for position in range(len(chosen)):
        if position:
            values = _divergences(columns, total, position + (first == "counted"), direction)
            if not total.any():
                values = np.where(columns.any(0), values, _LAST)
            chosen[position] = smallest(np.where(taken, np.inf, values))[0]
        else:
            chosen[position] = np.argmax(base)
        taken[chosen[position]] = True
        if position or first == "counted":
            total = total + columns[:, chosen[position : position + 1]]
    return chosen


@checked
def cucb(
    clients_per_round: Count,
    alpha: NonNegative = 0.2,
    rho: PositiveShare = 0.99,
    reward: Reward = "bounded",
    direction: Direction = "from_uniform",
    first: First = "counted",
    *,
    num_classes: Count,
) -> Selector:
    """Selects clients by a combinatorial bandit that learns their class compositions from probes.

    A first sweep selects every client once: rounds 0 to ceil(N / |S|) - 1 select the available clients that were
    selected least often, in the order of their numbers. These are blocks of |S|, of which the last one wraps round to
    client 0. Later rounds select the available client with the highest of `ucb_scores`, and its `class_balancing_set`
    among the available clients. A client that missed the sweep, or whose update was lost in it, has an infinite score:
    one such client is selected per round, the lowest number first.

    After a round, each client that delivered a finite composition R has its estimates updated: T <- T + 1, the plain
    mean of its rewards, S <- rho S + 1 and mean <- mean + (R - mean) / S, which weights the t-th of T compositions by
    rho^(T - t). For other selected clients, only the number of selections changes.

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
    size = clients_per_round

    def init(seed: int, num_clients: int) -> BanditState:
        counts = np.zeros(num_clients, np.int64)
        zeros = np.zeros(num_clients)
        return BanditState(counts, counts.copy(), zeros, np.zeros((num_clients, num_classes)), zeros.copy())

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
        arrived = delivered_probe(plan, probes, COMPOSITION, num_classes)
        # The last count, of the client number N, is that of empty places.
        asked = state.asked + np.bincount(plan.clients.ravel(), minlength=len(state.asked) + 1)[:-1]
        return learn(state._replace(asked=asked), *arrived, rho, reward)

    return Selector(init, select, update, size, 1, 1, True, None, (COMPOSITION,), lambda state: state.compositions)


@checked
def greedy(
    clients_per_round: Count,
    rho: PositiveShare = 0.99,
    reward: Reward = "bounded",
    direction: Direction = "from_uniform",
    first: First = "counted",
    *,
    num_classes: Count,
) -> Selector:
    """Selects clients like `cucb` without exploration: starts from the client with the best mean reward.

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
        FL-CIR, the baseline of this name in the experiments.
    """
    return cucb(clients_per_round, 0.0, rho, reward, direction, first, num_classes=num_classes)


def _divergences(columns: np.ndarray, total: np.ndarray, members: int, direction: Direction) -> np.ndarray:
    """Computes the divergence of the members' mean composition after adding each client `columns[:, k]`."""
    measure = from_uniform if direction == "from_uniform" else to_uniform
    divergences = np.empty(columns.shape[1])
    for span in spans(*columns.shape):
        mean = columns[:, span] + total
        mean /= members
        mean += ABSENT
        mean /= mean.sum(0)
        divergences[span] = measure(mean)
    return divergences
