"""Per-FedAvg: against a transcription in NumPy."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from methods import float64
from methods.heads import as_numpy, descended, federation, flat, flat_images, gradient, network

from fedjax_bal.parts import StepAhead
from fedjax_bal.recipes import combine, ditto, fedsam, per_fedavg

pytestmark = pytest.mark.usefixtures("double")


def direction(w, images, labels, rate, delta):
    """The gradient that a local step follows; `delta` is None if the Hessian is ignored."""
    number = 2 if delta is None else 3
    sets = [np.arange(len(labels)) % number == one if len(labels) >= number else slice(None) for one in range(number)]
    on = lambda at, one: gradient(at, images[sets[one]], labels[sets[one]])
    v = on(descended(w, on(w, 0), rate), 1)
    if delta is None:
        return v
    up, down = (on(descended(w, v, -sign * delta), 2) for sign in (1, -1))
    return {k: v[k] - rate * (up[k] - down[k]) / (2 * delta) for k in v}


CASES = {"ignored": None, "difference": 0.05}


@pytest.mark.slow
@pytest.mark.parametrize("hessian", CASES)
def test_per_fedavg_equals_its_transcription(hessian):
    rate, delta, data = 0.3, CASES[hessian], toys.federation()
    recipe = per_fedavg(rate, hessian, delta or 1.0, steps=2)
    sim = float64.simulation(recipe, model=network(), federation=federation())
    state, records, _ = as_numpy(float64.finished(sim))
    model = flat(sim.init(float64.SEED).state.variables.params)
    for number, cohort in float64.cohorts(sim):
        after = {}
        for c in cohort:
            after[c] = model
            for rows in reference.draws(data, float64.SEED, number, c, float64.OPTIONS):
                way = direction(after[c], flat_images()[rows], data.labels[rows], rate, delta)
                after[c] = descended(after[c], way, float64.OPTIONS.rate * float64.OPTIONS.decay**number)
        model = float64.mean(float64.by_size(cohort), after)
    float64.assert_equal(flat(state.variables.params), model)

    tests, ends = federation().tests
    hits = []
    for client, (first, last) in enumerate(list(pairwise(ends))[:-1]):
        own, w = data.rows[data.offsets[client] : data.offsets[client + 1]], model
        for _ in range(2):
            w = descended(w, gradient(w, flat_images()[own], data.labels[own]), rate)
        rows = tests[first:last]
        logits = np.tanh(flat_images()[rows] @ w["body"]) @ w["kernel"] + w["bias"]
        hits.append((logits.argmax(1) == data.labels[rows]).mean())
    assert records[-1]["client_accuracy"] == pytest.approx(np.mean(hits))


def test_with_a_small_difference_the_gradient_is_that_of_the_loss_after_a_step():
    part, params = StepAhead(0.3, 1e-4, corrects=True), {"w": jnp.array([0.4, -1.0, 0.7])}
    loss = lambda p: jnp.log(1 + (p["w"] ** 4).sum()) + p["w"][0] * p["w"][1]
    ahead = lambda p: loss(part.shift(p, jax.grad(loss)(p), None))
    found = part.correct(jax.grad(loss)(part.shift(params, jax.grad(loss)(params), None)), jax.grad(loss), params, None)
    np.testing.assert_allclose(found["w"], jax.grad(ahead)(params)["w"], rtol=1e-6)


REFUSED = {
    "StepAhead and Ascent both choose where a gradient is taken": (per_fedavg, fedsam),
    "per_fedavg: received SeparateModel, by which each client has another": (ditto, per_fedavg),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_means_nothing_together_is_refused(message):
    with pytest.raises(ValueError, match=message):
        float64.simulation(combine(*(recipe() for recipe in REFUSED[message])), model=network())
