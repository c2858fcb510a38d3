"""APFL: against a transcription in NumPy."""

import numpy as np
import pytest
import reference
import toys
from methods import float64
from methods.heads import (
    as_numpy,
    descended,
    federation,
    flat,
    flat_images,
    gradient,
    network,
)

from fedjax_bal.engine.device import PERSONAL
from fedjax_bal.recipes import apfl, combine, ditto, fedrod, moon

pytestmark = pytest.mark.usefixtures("double")


def mixture(alpha, own, shared):
    return {k: alpha * own[k] + (1 - alpha) * shared[k] for k in own}


def trained(model, own, alpha, client, number, adapts, shrinkage):
    """One local training: the shared model, the client's own and its share after it."""
    data, rate = toys.federation(), float64.OPTIONS.rate * float64.OPTIONS.decay**number
    for step, rows in enumerate(reference.draws(data, float64.SEED, number, client, float64.OPTIONS)):
        images, labels = flat_images()[rows], data.labels[rows]
        slopes = gradient(mixture(alpha, own, model), images, labels)
        of_alpha = sum(((own[k] - model[k]) * slopes[k]).sum() for k in slopes) + shrinkage * alpha
        of_model = gradient(model, images, labels)
        own = descended(own, {k: alpha * slope for k, slope in slopes.items()}, rate)
        model = descended(model, of_model, rate)
        if adapts == "step" or (adapts == "round" and step == 0):
            alpha = np.clip(alpha - rate * of_alpha, 0.0, 1.0)
    return model, own, alpha


CASES = {
    "round": {"alpha": 0.5},
    "step": {"alpha": 0.3, "shrinkage": 0.0},
    "never": {"alpha": 0.7},
    # The share reaches 0 and stays there.
    "at its end": {"alpha": 0.02, "shrinkage": 5.0, "adapts": "step"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_apfl_equals_its_transcription(name):
    knobs = {"shrinkage": 0.02, "adapts": name} | CASES[name]
    sim = float64.simulation(apfl(**knobs), model=network(), federation=federation())
    state, records, _ = as_numpy(float64.finished(sim))
    model = flat(sim.init(float64.SEED).state.variables.params)
    own, alphas = dict.fromkeys(range(float64.N), model), dict.fromkeys(range(float64.N), knobs["alpha"])
    for number, cohort in float64.cohorts(sim):
        after = {c: trained(model, own[c], alphas[c], c, number, knobs["adapts"], knobs["shrinkage"]) for c in cohort}
        own |= {c: v for c, (_, v, _) in after.items()}
        alphas |= {c: alpha for c, (_, _, alpha) in after.items()}
        model = float64.mean(float64.by_size(cohort), {c: w for c, (w, _, _) in after.items()})
    float64.assert_equal(flat(state.variables.params), model)
    memory = state.memory[PERSONAL]
    kept = {
        "body": memory[".params['own_model']['body']"],
        **{k: memory[f".params['own_model']['head']['{k}']"] for k in ("kernel", "bias")},
    }
    float64.assert_equal(kept, {k: np.stack([own[c][k] for c in own]) for k in kept})
    shares = memory[".params['own_share']"] + knobs["alpha"]
    np.testing.assert_allclose(shares, list(alphas.values()), rtol=1e-9, atol=1e-15)
    assert (np.ptp(shares) > 1e-3) == (name != "never")

    rows, offsets = federation().tests
    hits = []
    for client in range(float64.N - 1):
        mine = rows[offsets[client] : offsets[client + 1]]
        mixed = mixture(alphas[client], own[client], model)
        logits = np.tanh(flat_images()[mine] @ mixed["body"]) @ mixed["kernel"] + mixed["bias"]
        hits.append((logits.argmax(1) == federation().labels[mine]).mean())
    assert records[-1]["client_accuracy"] == pytest.approx(np.mean(hits))


REFUSED = {
    "apfl: received SeparateModel, by which each client has another": (apfl, ditto),
    "apfl: received ResidualHead, by which each client has another": (fedrod, apfl),
    "apfl: received a method after it that changes the network": (apfl, lambda: moon(width=3)),
    "ditto: received a method after it that changes the network": (ditto, lambda: moon(width=3)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_means_nothing_together_is_refused(message):
    with pytest.raises(ValueError, match=message):
        float64.simulation(combine(*(recipe() for recipe in REFUSED[message])), model=network())
