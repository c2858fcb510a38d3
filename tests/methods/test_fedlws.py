"""FedLWS: against its transcription."""

import jax.numpy as jnp
import numpy as np
import pytest
from methods import float64, heads

from fedjax_bal.recipes import fedlws
from fedjax_bal.types import Aggregate, ServerContext, Variables

LAYERS = (("body",), ("kernel", "bias"))

pytestmark = pytest.mark.usefixtures("double")


def norm(tree, layer):
    return np.sqrt(sum((tree[name] ** 2).sum() for name in layer))


def shrunk(before, deltas, shares, beta, low, high):
    """The new model, and each layer's tau."""
    mean = float64.mean(shares, deltas)
    plain = {name: np.mean([delta[name] for delta in deltas.values()], axis=0) for name in before}
    after, taus = {}, []
    for layer in LAYERS:
        apart = np.mean([norm(float64.difference(delta, plain), layer) for delta in deltas.values()])
        taus.append(min(max(beta * apart, low), high))
        gamma = norm(before, layer) / (norm(before, layer) + taus[-1] * norm(mean, layer))
        after |= {name: gamma * (before[name] + mean[name]) for name in layer}
    return after, taus


def test_fedlws_equals_its_transcription():
    beta, low, high = 0.8, 0.09, 0.15
    sim = float64.simulation(fedlws(beta, low, high), model=heads.network())
    weights, taus = heads.flat(float64.initial(sim)), []
    for number, cohort in float64.cohorts(sim):
        train = lambda c, number=number, start=weights: float64.train(start, c, number, gradient=heads.gradient)[0]
        deltas = {c: float64.difference(train(c), weights) for c in cohort}
        weights, found = shrunk(weights, deltas, float64.by_size(cohort), beta, low, high)
        taus += found
    assert low in taus and high in taus and any(low < tau < high for tau in taus)
    float64.assert_equal(heads.flat(float64.run(sim).variables.params), weights)


def test_excluded_updates_and_layers_of_zeros_are_left_alone():
    (part,) = fedlws(1.0, 0.0, 10.0).parts
    received = {"body": jnp.array([3.0, 4.0]), "head": {"bias": jnp.zeros(2), "kernel": jnp.zeros((2, 2))}}
    changes = {"body": np.array([[1.0, 0.0], [np.nan, np.inf], [0.0, 1.0]]), "head": {
        "bias": np.ones((3, 2)), "kernel": np.ones((3, 2, 2))
    }}  # fmt: skip
    mean = {"body": jnp.array([0.5, 0.5]), "head": {"bias": jnp.ones(2), "kernel": jnp.ones((2, 2))}}
    aggregate = Aggregate(mean, {}, jnp.array([0.5, 0.0, 0.5]), None, deltas=changes)
    filled = dict.fromkeys(ServerContext._fields) | {"variables": Variables(received, {}), "aggregate": aggregate}
    found, _ = part.step(mean, ServerContext(**filled))
    gamma = 5 / (5 + np.sqrt(0.5) * np.sqrt(0.5))  # both clients are sqrt(0.5) from their mean, whose norm it is
    np.testing.assert_allclose(found["body"], gamma * np.array([3.5, 4.5]) - [3.0, 4.0], rtol=1e-12)
    np.testing.assert_array_equal(found["head"]["kernel"], 1.0)


def test_a_range_upside_down_is_refused():
    with pytest.raises(ValueError, match=r"fedlws: low: received 0.5, must be at most high=0.2"):
        fedlws(low=0.5)
