"""What FL-CIR's bandit knows of each client, and how it learns from the compositions that arrive."""

import math
from typing import Literal, NamedTuple

import numpy as np

Reward = Literal["bounded", "literal"]

COMPOSITION = "composition"
"""Slot of the probe that this selection learns from: class compositions `Float[G, L, C]`."""

ABSENT = 1e-15
"""Added to each class, as in the published code, so that none is 0."""

_FLOOR = 1e-6  # of the divergence in the literal reward, which is infinite for an even composition


class BanditState(NamedTuple):
    """What is known of each client.

    Attributes:
        asked: how often it was chosen, whether or not anything came back, `Int64[N]`.
        pulls: T_k, how often its composition arrived, `Int64[N]`.
        mean_rewards: plain mean of its rewards, `Float64[N]`; 0 before the first one.
        compositions: discounted mean of its compositions, `Float64[N, C]`; zeros before the first one.
        weights: S_k, the sum of the discounts behind that mean, `Float64[N]`.
    """

    asked: np.ndarray
    pulls: np.ndarray
    mean_rewards: np.ndarray
    compositions: np.ndarray
    weights: np.ndarray


def learned(
    state: BanditState, clients: np.ndarray, compositions: np.ndarray, rho: float, reward: Reward
) -> BanditState:
    """The state after compositions have arrived.

    Args:
        state: the state before; left as it is.
        clients: `Int[K]`, all different.
        compositions: `Float[K, C]`, finite.
        rho: discount of older compositions.
        reward: see `rewards`.

    Returns:
        The new state; who was asked is not looked at.

    Example:
        >>> state = BanditState(np.zeros(1, int), np.zeros(1, int), np.zeros(1), np.zeros((1, 2)), np.zeros(1))
        >>> for value in ([0.0, 1.0], [1.0, 0.0]):
        ...     state = learned(state, np.array([0]), np.array([value]), 0.5, "bounded")
        >>> state.compositions.round(3).tolist()  # the older one counts half
        [[0.667, 0.333]]

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
    r"""How even compositions are: more is better.

    `"bounded"`: $1 / H(U, R)$ with the cross-entropy $H(U, R) = \log C + KL(U \| R)$, at most 1 / log C, R with 1e-15
    added to each class. `"literal"`: $1 / KL(R \| U)$, the divergence being at least 1e-6.

    Args:
        compositions: `Float[K, C]`, normalised inside.
        form: which of the two.

    Returns:
        `Float64[K]`.

    Example:
        >>> rewards(np.array([np.full(10, 0.1), np.eye(10)[0]])).round(5).tolist()
        [0.43429, 0.03217]

    References:
        FL-CIR, eq. 9. The literal form is unbounded, so that no exploration bonus counts beside it; the published code
        has the bounded one.
    """
    shares = compositions.T + ABSENT
    shares = shares / shares.sum(0)
    if form == "bounded":
        return -1.0 / np.log(shares).mean(0)
    return 1.0 / np.maximum(to_uniform(shares), _FLOOR)


def from_uniform(shares: np.ndarray) -> np.ndarray:
    """Divergence KL(U || R) of each column.

    Args:
        shares: R, `Float[C, K]`, columns of sum 1 without a 0.

    Returns:
        `Float64[K]` in nats.
    """
    return -math.log(len(shares)) - np.log(shares).mean(0)


def to_uniform(shares: np.ndarray) -> np.ndarray:
    """Divergence KL(R || U) of each column.

    Args:
        shares: R, `Float[C, K]`, columns of sum 1 without a 0.

    Returns:
        `Float64[K]` in nats.
    """
    return math.log(len(shares)) + np.einsum("ck,ck->k", shares, np.log(shares))
