"""Host-side random draws, by what they are for, and how clients are drawn."""

import zlib

import numpy as np

_CROWD = 4  # clients for each one wanted, from which on drawing one by one is cheaper than ordering them all


def generator(seed: int, purpose: str, round: int) -> np.random.Generator:
    """The generator for one purpose in one round.

    Methods that are compared with the same seed get the same draws, whatever they are: common random numbers.

    Args:
        seed: the run's seed, not negative.
        purpose: any text; two purposes draw independently.
        round: the round, from 0.

    Returns:
        A fresh generator.

    Example:
        >>> a, b = (generator(0, "availability", 3).random() for _ in range(2))
        >>> a == b
        True
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), round])


def sample(rng: np.random.Generator, available: np.ndarray, size: int) -> np.ndarray:
    """Clients at random without replacement.

    Args:
        rng: source of randomness.
        available: `Bool[N]`.
        size: how many.

    Returns:
        Their numbers in the order drawn, all of them where fewer are available.

    Example:
        >>> sorted(sample(np.random.default_rng(0), np.array([True, False, True]), 2).tolist())
        [0, 2]
    """
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


def weighted_sample(rng: np.random.Generator, available: np.ndarray, weights: np.ndarray, size: int) -> np.ndarray:
    """Clients one after another without replacement, each in proportion to its weight among those left.

    Of exponential clocks of rates w_k the k-th rings first with probability w_k / sum_j w_j, and clocks have no memory;
    so the order in which they ring is the order of the draws. A client that is away changes nobody else's clock.

    Args:
        rng: source of randomness.
        available: `Bool[N]`.
        weights: `Float[N]`, not negative; a client of weight 0 is never drawn.
        size: how many.

    Returns:
        Their numbers in the order drawn, all that have a weight where fewer are available.

    Example:
        >>> weighted_sample(np.random.default_rng(0), np.ones(3, bool), np.array([0.0, 2.0, 0.0]), 2).tolist()
        [1]
    """
    clocks = rng.standard_exponential(len(available))
    able = np.flatnonzero(available & (weights > 0))
    rings = clocks[able] / weights[able]
    if size < len(able):
        earliest = np.argpartition(rings, size)[:size]
        able, rings = able[earliest], rings[earliest]
    return able[np.argsort(rings, kind="stable")]
