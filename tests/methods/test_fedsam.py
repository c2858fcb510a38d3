"""FedSAM, FedLESAM and FedSpeed, which take gradients elsewhere: against their transcriptions."""

import jax.numpy as jnp
import numpy as np
import pytest
from methods import float64, hand
from methods.steps import ascent, descend, moved, norm, regularised, uphill
from rounding import FORMULA

from fedjax_bal.parts import GlobalAscent
from fedjax_bal.recipes import combine, fedlesam, fedsam, fedspeed

pytestmark = pytest.mark.usefixtures("double")


def remembered(last):
    """FedLESAM's memory of a client that received a model before."""
    memory = GlobalAscent().init_memory(hand.variables(0))
    return {"GlobalAscent": type(memory)(last, jnp.array(True))}


@pytest.mark.slow
def test_fedsam_equals_its_transcription():
    sim = float64.simulation(fedsam(0.3))
    weights = float64.initial(sim)
    for number, cohort in float64.cohorts(sim):
        changes = {c: descend(weights, c, number, ascent(0.3))[0] for c in cohort}
        weights = moved(weights, 1.0, float64.mean(float64.by_size(cohort), changes))
    float64.assert_equal(float64.run(sim).variables.params, weights)


@pytest.mark.slow
def test_fedlesam_equals_its_transcription():
    sim = float64.simulation(fedlesam(0.3))
    weights, last, again = float64.initial(sim), {}, 0
    for number, cohort in float64.cohorts(sim):
        changes = {}
        for c in cohort:
            back = float64.difference(last[c], weights) if c in last else None
            again += c in last

            def direction(g, w, back=back):
                return g(w) if back is None else g(moved(w, 0.3 / (norm(back) + 1e-7), back))

            changes[c] = descend(weights, c, number, direction)[0]
            last[c] = weights
        weights = moved(weights, 1.0, float64.mean(float64.by_size(cohort), changes))
    assert again
    float64.assert_equal(float64.run(sim).variables.params, weights)


@pytest.mark.slow
def test_fedspeed_equals_its_transcription():
    sim = float64.simulation(fedspeed(0.3, 0.2, None))
    float64.assert_equal(float64.run(sim).variables.params, regularised(sim, uphill(0.3), 0.2))


def test_two_places_for_a_gradient_are_refused():
    with pytest.raises(ValueError, match="Ascent and GlobalAscent both choose where a gradient is taken"):
        combine(fedspeed(), fedlesam())


def test_fedlesam_neither_moves_nor_counts_what_is_not_trained():
    start, last = hand.weights(2), hand.weights(3)
    ctx = hand.context(start=hand.variables(2), memory=remembered(last), trained={"w1": jnp.array(True), "w2": False})
    found, back = GlobalAscent(0.3).shift(start, None, ctx), last["w1"] - start["w1"]
    np.testing.assert_allclose(found["w1"], start["w1"] + 0.3 * back / np.linalg.norm(back), rtol=FORMULA)
    assert (found["w2"] == start["w2"]).all()
