"""FedLF: against a transcription in NumPy of its loss and its class centres."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from methods import float64, hand

from fedjax_bal.methods.prototypes import FeatureSums, Prototypes
from fedjax_bal.parts import ClassCentres
from fedjax_bal.recipes import feddecorr, fedlf
from fedjax_bal.types import Aggregate, ServerContext

pytestmark = pytest.mark.usefixtures("double")

C, F = toys.CLASSES, toys.FEATURES


def test_the_distance_equals_its_transcription():
    known, present = hand.draw(C, F, seed=3), np.array([True, False, True, True])
    counts, features = np.array([2.0, 1, 0, 0]), hand.draw(hand.ROWS, F)
    sums = counts[:, None] * hand.draw(C, F, seed=4)

    def transcription(features):
        total = 0.0
        for c in range(C):
            own = [features[row] for row in np.flatnonzero(hand.REAL) if hand.LABELS[row] == c]
            if own and present[c]:
                centre = (sums[c] + np.sum(own, axis=0)) / (counts[c] + len(own))
                total += np.abs(centre - known[c]).sum()
        return 0.7 * total / (C * F)

    sent = {"ClassCentres": Prototypes(jnp.array(known), jnp.array(present))}
    ctx = hand.context(broadcast=sent, steps_state={"ClassCentres": FeatureSums(jnp.array(sums), jnp.array(counts))})
    loss = lambda f: ClassCentres(0.7).loss(hand.outputs(jnp.zeros((hand.ROWS, C)), f), hand.batch(), None, ctx)
    hand.check(loss, transcription, features)


@pytest.mark.parametrize("views", [1, 2])
def test_an_epoch_ends_after_all_rows_in_however_many_views(views):
    part = ClassCentres()
    part_of = lambda leaf: jnp.tile(leaf[:4], (views, *[1] * (leaf.ndim - 1)))
    batch = jax.tree.map(part_of, hand.batch())
    outputs = hand.outputs(jnp.zeros((4 * views, C)), hand.draw(4 * views, F))
    ctx = hand.context(size=jnp.array(8), batch_size=4)
    state = FeatureSums(jnp.zeros((C, F)), jnp.zeros(C))
    totals, step = [], jax.jit(lambda state: part.next_steps(state, outputs, batch, ctx))
    for _ in range(4):
        state = step(state)
        totals.append(int(state.counts.sum()))
    assert totals == [4 * views, 8 * views, 4 * views, 8 * views]


def cosine(a, b):
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


def trained(received, centres, client, number, alpha, weight):
    """A client's weights after training, and its centres by class in the last epoch."""
    options = float64.OPTIONS
    data = toys.federation()
    w = dict(received)
    flat = data.images.reshape(len(data.images), -1).astype(float)
    counts = data.class_counts[client]
    scale = alpha + (1 - alpha) * counts / counts.max()
    rate = options.rate * options.decay**number
    seen, total = {}, 0
    for rows in reference.draws(data, float64.SEED, number, client, options):
        if total == counts.sum():  # an epoch begins
            seen, total = {}, 0
        total += len(rows)
        features = reference.forward(w, flat[rows])[0]
        labels = data.labels[rows]
        for feature, label in zip(features, labels, strict=True):
            seen.setdefault(label, []).append(feature)
        slopes = float64.gradient(w, flat[rows], labels, scale)
        pull = np.zeros_like(features)
        for row, label in enumerate(labels):
            if label in centres:
                away = np.sign(np.mean(seen[label], axis=0) - centres[label])
                pull[row] = weight * away / (C * F) / len(seen[label])
        slopes["w1"] = slopes["w1"] + flat[rows].T @ (pull * (1 - features**2))
        w = {k: w[k] - rate * slopes[k] for k in w}
    return w, {label: np.mean(own, axis=0) for label, own in seen.items()}


@pytest.mark.slow
def test_fedlf_equals_its_transcription():
    alpha = 0.25
    weight = 4.0
    sim = float64.simulation(fedlf(alpha, weight, 0.0, warm_up=1), rounds=4)
    weights = float64.initial(sim)
    centres = {}
    for number, cohort in float64.cohorts(sim):
        changes, reports = {}, {}
        for client in cohort:
            w, own = trained(weights, centres, client, number, alpha, weight)
            changes[client] = float64.difference(w, weights)
            for label, centre in own.items():
                trust = max(cosine(centre, centres[label]), 0) if label in centres else 1.0
                reports.setdefault(label, []).append((trust, centre))
        weights = float64.plus(weights, float64.mean(float64.by_size(cohort), changes))
        if number >= 1:
            for label, own in reports.items():
                total = sum(trust for trust, _ in own)
                centres = {**centres, label: sum(trust * centre for trust, centre in own) / total}
    state = float64.run(sim)
    float64.assert_equal(state.variables.params, weights)
    found = state.server["ClassCentres"]
    assert sorted(centres) == list(np.flatnonzero(found.present))
    for label, centre in centres.items():
        np.testing.assert_allclose(found.means[label], centre, rtol=1e-8, atol=1e-10)


def test_a_class_that_no_client_has_keeps_its_centre():
    old = Prototypes(jnp.ones((C, F)), jnp.array([True, True, False, False]))
    report = FeatureSums(jnp.full((C, F), 6.0), jnp.array([0.0, 2.0, 3.0, 0.0]))
    part = ClassCentres()
    server = ServerContext(**(dict.fromkeys(ServerContext._fields) | {"state": old}))
    new = part.update(None, server._replace(aggregate=Aggregate(None, {part.slot: report}, None, None)))
    assert new.present.tolist() == [True, True, True, False]
    np.testing.assert_allclose(new.means[:3, 0], [1.0, 3.0, 2.0])


@pytest.mark.slow
def test_its_decorrelation_is_that_of_feddecorr():
    float64.assert_same_runs(fedlf(1.0, 0.0, 0.1, 0), feddecorr(0.1), 1e-9)
