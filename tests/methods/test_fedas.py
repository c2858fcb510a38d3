"""FedAS: against a transcription in NumPy."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from methods import float64
from methods.heads import as_numpy, descended, federation, flat, flat_images, gradient, network

from fedjax_bal.engine.device import PERSONAL, purpose_key, training_key
from fedjax_bal.recipes import apfl, combine, fedas, fedau, median, per_fedavg

pytestmark = pytest.mark.usefixtures("double")


def visit_key(number, client, purpose):
    """The key of what a part prepares."""
    visit = training_key(jax.random.key(float64.SEED), *map(jnp.int32, (number, client, 0)))
    return purpose_key(visit, f"prepare/{purpose}")


def batches(key, client):
    """The client's rows in the drawn order, a batch at a time."""
    data = toys.federation()
    rows = data.rows[data.offsets[client] : data.offsets[client + 1]]
    order = np.argsort(np.asarray(jax.random.uniform(key, (float64.LENGTH,)))[: len(rows)])
    for start in range(0, len(rows), float64.OPTIONS.batch_size):
        chosen = rows[order[start : start + float64.OPTIONS.batch_size]]
        yield flat_images()[chosen], data.labels[chosen]


def aligned(body, last, client, number, rate, epochs):
    """The received body after steps towards the features of the client's last one."""
    data = toys.federation()
    rows = data.rows[data.offsets[client] : data.offsets[client + 1]]
    targets = np.tanh(flat_images()[rows] @ last)
    means = {c: targets[data.labels[rows] == c].mean(0) for c in np.unique(data.labels[rows])}
    for epoch in range(epochs):
        for images, labels in batches(jax.random.fold_in(visit_key(number, client, "AlignedBody"), epoch), client):
            features = np.tanh(images @ body)
            pull = np.stack(
                [2 * (f - means[c]) / (labels == c).sum() / f.size for f, c in zip(features, labels, strict=True)]
            )
            body = body - rate * images.T @ (pull * (1 - features**2))
    return body


def trace(w, client, number):
    """Of the Fisher information."""
    found = 0.0
    for images, labels in batches(visit_key(number, client, "FisherWeights"), client):
        found += sum((slope**2).sum() for slope in gradient(w, images, labels).values())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("fisher", [True, False])
def test_fedas_equals_its_transcription(fisher):
    data = toys.federation()
    rate, epochs = 0.5, 2 if fisher else 1
    sim = float64.simulation(fedas(rate, epochs, fisher), model=network(), federation=federation())
    state, records, _ = as_numpy(float64.finished(sim))
    model = flat(sim.init(float64.SEED).state.variables.params)
    own, moved = dict.fromkeys(range(float64.N), model), []
    for number, cohort in float64.cohorts(sim):
        for c in cohort:
            start = aligned(model["body"], own[c]["body"], c, number, rate, epochs)
            moved.append(np.abs(start - model["body"]).max())
            own[c] = own[c] | {"body": start}
            for rows in reference.draws(data, float64.SEED, number, c, float64.OPTIONS):
                slopes = gradient(own[c], flat_images()[rows], data.labels[rows])
                own[c] = descended(own[c], slopes, float64.OPTIONS.rate * float64.OPTIONS.decay**number)
        traces = {c: trace(own[c], c, number) for c in cohort}
        shares = {c: traces[c] / sum(traces.values()) for c in cohort} if fisher else float64.by_size(cohort)
        model = model | {"body": float64.mean(shares, {c: own[c] for c in cohort})["body"]}
    assert np.median(moved) > 0.05
    float64.assert_equal(flat(state.variables.params), model)
    kept = {k: state.memory[PERSONAL][f".params['head']['{k}']"] for k in ("kernel", "bias")}
    kept["body"] = state.memory["AlignedBody"].params["body"]
    float64.assert_equal(kept, {k: np.stack([own[c][k] for c in own]) for k in kept})

    tests, ends = federation().tests
    hits = []
    for client, (first, last) in enumerate(list(pairwise(ends))[:-1]):
        rows, w = tests[first:last], own[client]
        logits = np.tanh(flat_images()[rows] @ w["body"]) @ w["kernel"] + w["bias"]
        hits.append((logits.argmax(1) == data.labels[rows]).mean())
    assert records[-1]["client_accuracy"] == pytest.approx(np.mean(hits))


REFUSED = {
    "FisherWeights and Median both reduce the updates": (fedas, median),
    "fedau: received FisherWeights, which ignores how much updates weigh": (fedas, fedau),
    "fedas: received MixedModel, by which each client has another": (apfl, fedas),
    "fedas: received StepAhead, by which each client has another": (per_fedavg, fedas),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_means_nothing_together_is_refused(message):
    with pytest.raises(ValueError, match=message):
        float64.simulation(combine(*(recipe() for recipe in REFUSED[message])), model=network())
