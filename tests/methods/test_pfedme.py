"""pFedMe: against a transcription in NumPy of the authors' code."""

import numpy as np
import pytest
import reference
import toys
from methods import float64
from methods.heads import as_numpy, federation, flat, flat_images, gradient, network, own_accuracies

from fedjax_bal.engine.device import PERSONAL
from fedjax_bal.optim import optimizer
from fedjax_bal.options import LocalTraining
from fedjax_bal.recipes import balanced_softmax, combine, ditto, fedprox, fedsam, pfedme, scaffold

pytestmark = pytest.mark.usefixtures("double")


def trained(model, client, number, attraction, learning_rate, decay, steps):
    """One local training: the copy of the shared model, and the client's own, after it."""
    data, rate = toys.federation(), float64.OPTIONS.rate * float64.OPTIONS.decay**number
    own = model
    for rows in reference.draws(data, float64.SEED, number, client, float64.OPTIONS):
        for _ in range(steps):
            slopes = gradient(own, flat_images()[rows], data.labels[rows])
            own = {
                k: own[k] - learning_rate * (slopes[k] + attraction * (own[k] - model[k]) + decay * own[k]) for k in own
            }
        model = {k: model[k] - rate * attraction * (model[k] - own[k]) for k in model}
    return model, own


@pytest.mark.slow
@pytest.mark.parametrize("server_rate", [1.0, 1.6])
def test_pfedme_equals_its_transcription(server_rate):
    knobs = {"attraction": 4.0, "learning_rate": 0.07, "decay": 0.01, "steps": 3}
    sim = float64.simulation(pfedme(**knobs, server_rate=server_rate), model=network(), federation=federation())
    state, records, _ = as_numpy(float64.finished(sim))
    model = flat(sim.init(float64.SEED).state.variables.params)
    own = dict.fromkeys(range(float64.N), model)
    for number, cohort in float64.cohorts(sim):
        after = {c: trained(model, c, number, **knobs) for c in cohort}
        own |= {c: theta for c, (_, theta) in after.items()}
        mean = float64.mean(float64.by_size(cohort), {c: w for c, (w, _) in after.items()})
        model = {k: (1 - server_rate) * model[k] + server_rate * mean[k] for k in model}
    float64.assert_equal(flat(state.variables.params), model)
    memory = state.memory[PERSONAL]
    kept = {
        "body": memory[".params['own_model']['body']"],
        **{k: memory[f".params['own_model']['head']['{k}']"] for k in ("kernel", "bias")},
    }
    float64.assert_equal(kept, {k: np.stack([own[c][k] for c in own]) for k in kept})
    # The accuracy of each client's own body and head.
    accuracies = [own_accuracies(own[c]["body"], {**own, c: own[c]})[c] for c in range(float64.N - 1)]
    assert records[-1]["client_accuracy"] == pytest.approx(np.mean(accuracies))


@pytest.mark.slow
def test_a_single_inner_step_from_w_is_sgd():
    """With one batch a client, one inner step and no decay, w moves by eta lambda rho times FedAvg's gradient."""
    one = {"batch_size": 20, "epochs": 1}
    sgd = lambda rate: LocalTraining(**one, optimizer=optimizer("sgd", rate))
    recipes = pfedme(attraction=2.0, learning_rate=0.3, decay=0.0, steps=1), fedprox(0.0)
    runs = [
        float64.run(float64.simulation(recipe, model=network(), local=sgd(rate))).variables.params
        for recipe, rate in zip(recipes, (0.5, 0.3), strict=True)
    ]
    got, want = map(flat, map(as_numpy, runs))
    float64.assert_equal(got, want, 1e-12)


@pytest.mark.slow
def test_at_a_rate_of_0_nothing_moves():
    local = LocalTraining(batch_size=8, optimizer=optimizer("sgd", 0.0))
    sim = float64.simulation(pfedme(), model=network(), local=local)
    params = as_numpy(float64.run(sim).variables.params)
    assert toys.largest_difference(params, as_numpy(sim.init(float64.SEED).state.variables.params)) == 0


@pytest.mark.parametrize("other", [balanced_softmax, fedprox, fedsam, scaffold, ditto])
def test_what_it_would_replace_is_refused(other):
    for order in (pfedme(), other()), (other(), pfedme()):
        with pytest.raises(ValueError, match=r"received .*, (which changes a local loss|whose leaves stay)"):
            float64.simulation(combine(*order), model=network())


@pytest.mark.parametrize("extra", [{"momentum": 0.5}, {"weight_decay": 0.1}, {"clip_norm": 1.0}])
def test_what_bends_its_steps_is_refused(extra):
    local = LocalTraining(batch_size=8, optimizer=optimizer("sgd", 0.1, **extra))
    with pytest.raises(ValueError, match=f"pfedme: received a local optimizer with {next(iter(extra))}"):
        float64.simulation(pfedme(), model=network(), local=local)
