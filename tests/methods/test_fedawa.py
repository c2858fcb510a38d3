"""FedAWA: against its transcription."""

import numpy as np
import pytest
import toys
from methods import float64
from methods.steps import descend, moved

from fedjax_bal.recipes import combine, fedawa, median

pytestmark = pytest.mark.usefixtures("double")


def softmax(numbers):
    return np.exp(numbers) / np.exp(numbers).sum()


def flat(tree):
    return np.concatenate([leaf.ravel() for leaf in tree.values()])


def gradient(numbers, updates, distances):
    """Of the loss with respect to the numbers."""
    p = softmax(numbers)
    apart = updates - p @ updates
    lengths = np.linalg.norm(apart, axis=1)
    slope = lengths + distances - (p / lengths) @ apart @ updates.T
    return p * (slope - p @ slope)


def stepped(numbers, updates, distances, steps, rate, optimizer):
    """The numbers before the last step, and after it."""
    before, first, second, buffer = numbers, 0.0, 0.0, 0.0
    for step in range(1, steps + 1):
        before, g = numbers, gradient(numbers, updates, distances)
        if optimizer == "adam":
            first, second = 0.5 * first + 0.5 * g, 0.999 * second + 0.001 * g**2
            way = first / (1 - 0.5**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        else:
            way = buffer = 0.9 * buffer + g + 5e-4 * numbers
        numbers = numbers - rate * way
    return before, numbers


CASES = {
    "adam": ({"steps": 2}, 0.4),
    "sgd": ({"steps": 3, "optimizer": "sgd", "distance": "euclidean"}, 2.0),
    "lagged": ({"steps": 1, "lagged": True}, 0.4),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name != "adam" else name for name in CASES]
)
def test_fedawa_equals_its_transcription(name):
    options, rate = CASES[name]
    sim = float64.simulation(fedawa(rate, **options))
    weights, numbers = float64.initial(sim), np.array(toys.SIZES) / sum(toys.SIZES)
    for number, cohort in float64.cohorts(sim):
        changes = {c: descend(weights, c, number, lambda g, w: g(w))[0] for c in cohort}
        updates, w = np.stack([flat(changes[c]) for c in cohort]), flat(weights)
        distances = 1 - (w + updates) @ w / (np.linalg.norm(w) * np.linalg.norm(w + updates, axis=1))
        if options.get("distance") == "euclidean":
            distances = (updates**2).mean(1)
        optimizer = options.get("optimizer", "adam")
        before, after = stepped(numbers[cohort], updates, distances, options["steps"], rate, optimizer)
        shares = softmax(before if options.get("lagged") else after)
        weights = moved(weights, 1.0, float64.mean(dict(zip(cohort, shares, strict=True)), changes))
        numbers[cohort] = after
    state = float64.run(sim)
    float64.assert_equal(state.variables.params, weights)
    np.testing.assert_allclose(state.server["AlignedWeights"], numbers, rtol=1e-9)
    assert np.abs(numbers - np.array(toys.SIZES) / sum(toys.SIZES)).max() > 0.1


def test_another_reduction_is_refused():
    with pytest.raises(ValueError, match="AlignedWeights and Median both reduce the updates"):
        combine(fedawa(), median())
