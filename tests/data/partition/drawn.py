"""What tests of partitions share: generators, some of whose draws are given, and class counts."""

import numpy as np


def rng(seed=0):
    return np.random.default_rng(seed)


class Given(np.random.Generator):
    """A generator whose Dirichlet draws are given and whose permutations leave the order as it is.

    Attributes:
        asked: the concentrations of the draws so far.
    """

    def __init__(self, *draws):
        super().__init__(np.random.PCG64(0))
        self.draws, self.asked = list(draws), []

    def dirichlet(self, alpha):
        """The next draw."""
        self.asked.append(alpha.tolist())
        return np.array(self.draws.pop(0))

    def permutation(self, rows):
        """The rows, or so many, as they are."""
        return np.arange(rows) if isinstance(rows, int) else rows


def counts_of(labels, parts):
    """Class counts `[N, C]`."""
    return np.stack([np.bincount(labels[rows], minlength=labels.max() + 1) for rows in parts])
