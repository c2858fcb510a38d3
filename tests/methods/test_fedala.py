"""FedALA: against its transcription, which learns the weights of each client's mixture in loops."""

import jax
import numpy as np
import pytest
import quick
import reference
import toys
from methods import float64
from methods.heads import as_numpy, federation, flat, flat_images, gradient, network, own_accuracies

from fedjax_bal.engine.device import purpose_key, training_key
from fedjax_bal.recipes import combine, ditto, fedala, fedavg, fedawe, feddyn, fednova, fedper, scaffold

pytestmark = pytest.mark.usefixtures("double")

ROUNDS = 5
CASES = {
    "head": ({"learning_rate": 30.0, "threshold": 0.02, "window": 3}, ("kernel", "bias")),
    "all": ({"learning_rate": 10.0, "share": 0.5, "layers": "all", "most_passes": 2}, ("body", "kernel", "bias")),
}


def drawn_rows(client, number, share):
    """The rows on which the weights are learned; only their order is the library's."""
    data = toys.federation()
    rows = data.rows[data.offsets[client] : data.offsets[client + 1]]
    key = training_key(jax.random.key(float64.SEED), np.int32(number), np.int32(client), np.int32(0))
    draws = jax.random.uniform(purpose_key(key, "prepare/AdaptiveAggregation"), (float64.LENGTH,))
    return rows[np.argsort(np.asarray(draws)[: len(rows)])][: max(1, int(share * len(rows)))]


def learned(own, received, weights, rows, knobs, first):
    """The weights of the mixture, and how many passes they took."""
    losses, size = [], float64.OPTIONS.batch_size
    while True:
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            images, labels = flat_images()[batch], toys.federation().labels[batch]
            mixed = received | {k: own[k] + (received[k] - own[k]) * weights[k] for k in weights}
            logits = np.tanh(images @ mixed["body"]) @ mixed["kernel"] + mixed["bias"]
            loss = -np.log(reference.softmax(logits)[np.arange(len(batch)), labels]).mean()
            slopes = gradient(mixed, images, labels)
            steps = {k: knobs["learning_rate"] * slopes[k] * (received[k] - own[k]) for k in weights}
            weights = {k: np.clip(weights[k] - steps[k], 0, 1) for k in weights}
        losses.append(loss)
        last = losses[-knobs.get("window", 10) :]
        settled = len(losses) > knobs.get("window", 10) and np.std(last) < knobs.get("threshold", 0.1)
        if not first or settled or len(losses) == knobs.get("most_passes", 100):
            return weights, len(losses)


@pytest.mark.parametrize("name", quick.only(CASES, "head"))
def test_fedala_equals_its_transcription(name):
    knobs, mixed = CASES[name]
    sim = float64.simulation(fedala(**knobs), rounds=ROUNDS, model=network(), federation=federation())
    state, records, _ = as_numpy(float64.finished(sim))
    model = flat(float64.initial(sim))
    ones = {k: np.ones_like(model[k]) for k in mixed}
    own, weights, passes = {}, dict.fromkeys(range(float64.N), ones), {}
    for number, cohort in float64.cohorts(sim):
        trained = {}
        for c in cohort:
            start = model
            if c in own:
                rows = drawn_rows(c, number, knobs.get("share", 0.8))
                weights[c], taken = learned(own[c], model, weights[c], rows, knobs, c not in passes)
                passes.setdefault(c, taken)
                start = model | {k: own[c][k] + (model[k] - own[c][k]) * weights[c][k] for k in mixed}
            trained[c] = float64.train(start, c, number, gradient=gradient)[0]
        own |= trained
        model = float64.mean(float64.by_size(cohort), trained) if cohort else model
    assert len(set(passes.values())) > (name == "head") and passes  # of several first passes, some end earlier
    float64.assert_equal(flat(state.variables.params), model)
    memory = state.memory["AdaptiveAggregation"]
    assert [c for c in range(float64.N) if memory.trained[c]] == sorted(own) != list(range(float64.N))
    kept = flat_memory(memory.variables.params)
    float64.assert_equal(
        {k: kept[k][sorted(own)] for k in kept}, {k: np.stack([own[c][k] for c in sorted(own)]) for k in kept}
    )
    wanted = {k: np.stack([weights[c][k] for c in range(float64.N)]) for k in mixed}
    float64.assert_equal({k: flat_memory(memory.weights)[k] for k in mixed}, wanted)
    assert min(leaf.min() for leaf in wanted.values()) < 0.9
    models = {c: own.get(c, model) for c in range(float64.N)}
    accuracies = [own_accuracies(models[c]["body"], models)[c] for c in range(float64.N - 1)]
    assert records[-1]["client_accuracy"] == pytest.approx(np.mean(accuracies))


def flat_memory(params):
    """Of the network's parameters, or of its classifier's, in one dict."""
    return {"body": params.get("body"), **params["head"]}


@pytest.mark.slow
def test_weights_of_1_are_fedavg():
    float64.assert_same_runs(fedavg(), fedala(0.0, layers="all"), rounds=ROUNDS)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (ditto, "received SeparateModel, by which each client already has"),
        (fedper, "received OwnHead, by which each client already has"),
        (scaffold, "received ControlVariates, which takes a client's change"),
        (feddyn, "received DynamicRegularisation, which takes a client's change"),
        (fedawe, "received EchoedInnovation, which takes a client's change"),
        (fednova, "received NormalisedAveraging, which scales the mean change"),
    ],
)
def test_what_needs_the_received_model_is_refused(other, message):
    for order in (fedala(), other()), (other(), fedala()):
        with pytest.raises(ValueError, match=f"fedala: {message}"):
            float64.simulation(combine(*order), model=network())
