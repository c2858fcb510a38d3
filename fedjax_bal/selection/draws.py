"""Host-side random draws, by what they are for."""

import zlib

import numpy as np


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
