"""How far apart results of the same arithmetic may lie: the tolerances of tests, derived in one place.

Rounding to nearest is off by at most half a unit in the last place. Two orders of n operations therefore differ by at
most about n eps, relative to the sum of the magnitudes of what enters (Higham, Accuracy and Stability of Numerical
Algorithms, 2002, sections 3.1 and 4.2). A tolerance is named after the longest chain of roundings behind a number, and
is absolute for numbers of about 1. A test with another tolerance compares something else than rounding, such as a
statistic of a fixed draw, or says why.
"""

import numpy as np


def chain(operations: int, kind: type = np.float32) -> float:
    """The largest difference after so many roundings of a type."""
    return operations * float(np.finfo(kind).eps)


FORMULA = chain(8)
"""A formula of a few numbers: 9.5e-7."""

SUM = chain(80)
"""Sums over rows of a batch, inputs of a layer or classes: 9.5e-6."""

STEPS = chain(800)
"""Some rounds of training, each step of which adds such sums to the parameters: 9.5e-5."""

DOUBLE = chain(4_500, np.float64)
"""Such a training, or a long sum, in float64: 1e-12."""
