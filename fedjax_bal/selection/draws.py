"""Host-side random draws: one generator per purpose, and samples of clients."""

import zlib

import numpy as np

_CROWD = 4  # available clients per client wanted above which drawing one by one beats sorting them all


def generator(seed: int, purpose: str, round: int) -> np.random.Generator:
    """Creates the generator for one purpose in one round.

    Methods compared with the same seed get the same draws: common random numbers. Two purposes draw independently.
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), round])


def sample(rng: np.random.Generator, available: np.ndarray, size: int) -> np.ndarray:
    """Draws clients at random without replacement, in the order drawn; all of them if fewer are available."""
    candidates, total = int(np.count_nonzero(available)), len(available)
    if _CROWD * size > candidates:
        order = np.argsort(np.where(available, rng.random(total), np.inf), kind="stable")
        return order[: min(size, candidates)]
    # Few of many: clients are drawn one by one, skipping those that are unavailable or were drawn before.
    drawn = np.zeros(0, np.int64)
    while True:
        drawn = np.append(drawn, rng.integers(0, total, 2 * size * total // candidates + 1))
        _, first = np.unique(drawn, return_index=True)
        chosen = drawn[np.sort(first)]
        chosen = chosen[available[chosen]]
        if len(chosen) >= size:
            return chosen[:size]


def weighted_sample(rng: np.random.Generator, available: np.ndarray, weights: np.ndarray, size: int) -> np.ndarray:
    """Draws clients one after another without replacement, each in proportion to its weight among those left.

    Of exponential clocks of rates w_k the k-th rings first with probability w_k / sum_j w_j, and clocks have no memory;
    so the order in which they ring is the order of the draws. An unavailable client changes no other client's clock,
    and a client of weight 0 is never drawn.
    """
    clocks = rng.standard_exponential(len(available))
    able = np.flatnonzero(available & (weights > 0))
    rings = clocks[able] / weights[able]
    if size < len(able):
        earliest = np.argpartition(rings, size)[:size]
        able, rings = able[earliest], rings[earliest]
    return able[np.argsort(rings, kind="stable")]
