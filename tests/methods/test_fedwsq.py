"""FedWSQ's quantised updates: against a transcription in NumPy of the authors' code."""

from itertools import pairwise

import jax
import numpy as np
import pytest
import toys
from methods import float64
from methods.heads import network
from rounding import DOUBLE

from fedjax_bal import models
from fedjax_bal.methods.fedwsq import LEVELS, quantised
from fedjax_bal.recipes import combine, faults, fedbabu, fedwsq

pytestmark = pytest.mark.usefixtures("double")


def buckets(values, levels):
    """torch.bucketize, with right=False: the number of edges below a value."""
    edges = [(low + high) / 2 for low, high in pairwise(levels)]
    return np.array([[sum(edge < value for edge in edges) for value in row] for row in values])


@pytest.mark.parametrize(
    ("bits", "everything"), [(4, False), *(pytest.param(bits, True, marks=pytest.mark.slow) for bits in (1, 2, 4))]
)
def test_fedwsq_equals_its_transcription(bits, everything):
    sim = float64.simulation(fedwsq(0.9, bits, everything))
    weights, used = float64.initial(sim), set()
    levels = np.array(LEVELS[bits])
    deviations = dict.fromkeys(weights if everything else ["w2"], 1e-3)  # w1 reads the inputs
    for number, cohort in float64.cohorts(sim):
        deltas = {c: float64.difference(float64.train(weights, c, number)[0], weights) for c in cohort}
        sent = {c: dict(delta) for c, delta in deltas.items()}
        for name, deviation in deviations.items():
            for c in cohort:
                chosen = buckets(deltas[c][name] / deviation, levels)
                sent[c][name] = deviation * levels[chosen]
                used |= set(chosen.flat)
        local = {name: np.mean([deltas[c][name].std(ddof=1) for c in cohort]) for name in deviations}
        deviations = {name: 0.1 * deviation + 0.9 * local[name] for name, deviation in deviations.items()}
        weights = float64.plus(weights, float64.mean(float64.by_size(cohort), sent))
    state = float64.run(sim)
    float64.assert_equal(state.variables.params, weights)
    kept = state.server["QuantisedUpdates"]
    np.testing.assert_allclose([kept[f"['{name}']"] for name in deviations], list(deviations.values()), rtol=DOUBLE)
    assert used == set(range(2**bits))


def test_levels_are_the_nearest_and_odd_numbers_do_no_harm():
    values = np.random.default_rng(0).normal(size=(40, 5)) * 2
    for bits, levels in LEVELS.items():
        nearest = np.array(levels)[np.abs(values[..., None] - np.array(levels)).argmin(-1)]
        assert (np.asarray(quantised(values, bits)) == nearest).all()
        assert np.asarray(quantised(np.array([-np.inf, np.inf]), bits)).tolist() == [levels[0], levels[-1]]


@pytest.mark.slow
def test_updates_that_are_not_finite_are_still_noticed():
    sim = float64.simulation(combine(faults(clients=list(range(float64.N))), fedwsq(everything=True)))
    with pytest.raises(Exception, match="not finite"):
        float64.run(sim)


@pytest.mark.slow
def test_a_frozen_classifier_stays():
    recipe = combine(fedbabu(), fedwsq(bits=1, everything=True))
    sim = float64.simulation(recipe, model=network(), rounds=1)
    start, end = sim.init(float64.SEED).state.variables.params, float64.run(sim).variables.params
    assert toys.largest_difference(start["head"], end["head"]) == 0 < toys.largest_difference(start, end)


def test_layers_of_residual_networks():
    model = models.build("resnet8", 10, (32, 32, 3), norm="group")
    part = fedwsq().parts[0]
    params = jax.eval_shape(model.init, jax.random.key(0)).params
    chosen = part._chosen(params, model)
    # Six convolutions in three units, and two shortcuts.
    assert len(chosen) == 8 and not any("stem" in name or "head" in name for name in chosen)


def test_a_network_of_two_layers_has_nothing_to_quantise():
    small = models.build("mlp", toys.CLASSES, (1, toys.WIDTH, 1), hidden=(3,))
    with pytest.raises(ValueError, match="fedwsq: received the model mlp"):
        fedwsq().parts[0].check(type("Setting", (), {"model": small}))
