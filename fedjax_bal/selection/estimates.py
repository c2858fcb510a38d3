"""Estimates that FL-CIR's bandit keeps of each client, and their update from the compositions that arrive."""

import math
from typing import Literal, NamedTuple

import numpy as np

Reward = Literal["bounded", "literal"]

COMPOSITION = "composition"
"""Slot of the probe that the bandit learns from: class compositions `Float[G, L, C]`."""

ABSENT = 1e-15
"""Added to each class, as in the published code, so that none is 0."""

_FLOOR = 1e-6  # smallest divergence in the literal reward, which is otherwise infinite for an even composition


class BanditState(NamedTuple):
    """Estimates about each client.

    Attributes:
        asked: how often it was selected, whether or not it delivered, `Int64[N]`.
        pulls: T_k, how often its composition arrived, `Int64[N]`.
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
    """Updates the estimates of clients `Int[K]`, all different, with their compositions `Float[K, C]`; `asked` stays.

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
    r"""Computes the reward of each composition: the more even, the larger.

    `"bounded"`: $1 / H(U, R)$ with the cross-entropy $H(U, R) = \log C + KL(U \| R)$, at most 1 / log C, with 1e-15
    added to each class of R. `"literal"`: $1 / KL(R \| U)$, the divergence being at least 1e-6. Compositions `Float[K,
    C]` are normalised inside.

    References:
        FL-CIR, eq. 9. The literal form is unbounded, so that it drowns any exploration bonus; the published code has
        the bounded one.
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
