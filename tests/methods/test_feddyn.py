"""FedDyn: against its transcription, its oracle, and what it refuses."""

import dataclasses

import numpy as np
import pytest
import quick
import toys
from methods import float64
from rounding import DOUBLE

from fedjax_bal.recipes import combine, feddyn, fednova, local, median, scaffold

OPTIONS = dataclasses.replace(float64.OPTIONS, momentum=0.5, weight_decay=0.01)


pytestmark = pytest.mark.usefixtures("double")


def clipped(grad, limit):
    """Scaled down to a norm of at most `limit`."""
    norm = np.sqrt(sum((leaf**2).sum() for leaf in grad.values()))
    return {k: leaf * min(1, limit / norm) for k, leaf in grad.items()}


def transcription(weights, cohorts, options, alpha, adaptive, limit):
    """Algorithm 1 with the state of the authors' code: h adds up each client's drift."""
    h = {c: {k: np.zeros_like(v) for k, v in weights.items()} for c in range(float64.N)}
    clipping = 0
    for number, cohort in cohorts:
        models = {}
        for c in cohort:
            own = alpha / (toys.SIZES[c] * float64.N / sum(toys.SIZES)) if adaptive else alpha

            def bend(grad, y, own=own, h=h[c], w=weights):
                nonlocal clipping
                bent = {k: grad[k] + own * (y[k] + h[k] - w[k]) for k in grad}
                short = bent if limit is None else clipped(bent, limit)
                clipping += not np.allclose(short["w1"], bent["w1"])
                return short

            models[c] = float64.train(weights, c, number, options, change=bend)[0]
        for c in cohort:
            h[c] = {k: h[c][k] + models[c][k] - weights[k] for k in weights}
        average = {k: np.mean([models[c][k] for c in cohort], axis=0) for k in weights}
        weights = {k: average[k] + np.mean([h[c][k] for c in h], axis=0) for k in weights}
    return weights, h, clipping


CASES = {"adaptive": (0.3, True, 0.5), "ReBaFL's": (1e-4, False, None)}


@pytest.mark.parametrize("name", quick.only(CASES, "adaptive"))
def test_feddyn_equals_its_transcription(name):
    alpha, adaptive, limit = CASES[name]
    sim = float64.simulation(feddyn(alpha, adaptive, limit), OPTIONS)
    want, memory, clipping = transcription(float64.initial(sim), float64.cohorts(sim), OPTIONS, alpha, adaptive, limit)
    assert bool(clipping) == (limit is not None)
    state = float64.run(sim)
    float64.assert_equal(state.variables.params, want)
    assert any(not h["w1"].any() for h in memory.values())  # somebody was never visited
    for leaf, kept in state.memory["DynamicRegularisation"].items():
        np.testing.assert_allclose(kept, np.stack([memory[c][leaf] for c in range(float64.N)]), rtol=1e-8, atol=DOUBLE)
        np.testing.assert_allclose(state.server["DynamicRegularisation"][leaf], kept.mean(0), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("other", [fednova(), scaffold(), median()], ids=lambda recipe: recipe.name)
def test_other_weights_and_means_are_refused(other):
    with pytest.raises(ValueError, match=f"feddyn: received {other.parts[0].slot}, which changes how"):
        float64.simulation(combine(feddyn(), other))
    with pytest.raises(ValueError, match=r"feddyn: received OwnModel, whose leaves stay with the clients"):
        float64.simulation(combine(feddyn(), local()))


def test_no_limit_is_none_or_zero():
    assert feddyn(clip=0) == feddyn(clip=None) != feddyn()
