"""FedYoYo: against a transcription in NumPy of the authors' code."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from methods import float64, hand
from rounding import DOUBLE, FORMULA

from fedjax_bal.methods import fedyoyo as MODULE
from fedjax_bal.parts import MixedPrior, TwoViews
from fedjax_bal.recipes import cbfl, combine, fedyoyo
from fedjax_bal.types import Aggregate, ServerContext

pytestmark = pytest.mark.usefixtures("double")

C = toys.CLASSES


def mean_features(features, labels):
    """By class, zeros for an absent one."""
    return np.array([features[labels == c].mean(0) if (labels == c).any() else 0 * features[0] for c in range(C)])


def sizes_of_batch(features, labels, means):
    """Effective sizes, with loops over pairs of rows."""
    sizes = np.zeros(C)
    for c in np.unique(labels):
        own = features[labels == c] - means[c]
        if len(own) == 1:
            sizes[c] = 1
            continue
        total = 0.0
        for a in own:
            for b in own:
                length = np.linalg.norm(a) * np.linalg.norm(b)
                total += a @ b / (length if length else 1e-6)
        sizes[c] = 1 / max(total / len(own) ** 2, 1e-6)
    return sizes


def smoothed(state, reports):
    """The server's sizes after a round; `state` is None in the first one."""
    new = 1 + np.sum(reports, axis=0)
    if state is None:
        usual = new <= 1e4
        return np.where(usual, new, new[usual].mean())
    later = 0.9 * state + 0.1 * new
    return np.where(np.abs(later - state) / state > 100, state, later)


def test_effective_sizes_of_a_batch_equal_their_transcription():
    features = hand.draw(hand.ROWS, hand.FEATURES)
    means = hand.draw(C, hand.FEATURES, seed=1) / 3
    features[3] = means[hand.LABELS[3]]  # a row without length
    found = MODULE.effective_sizes(jnp.array(features), jnp.array(hand.LABELS), jnp.array(hand.REAL), jnp.array(means))
    wanted = sizes_of_batch(features[hand.REAL], hand.LABELS[hand.REAL], means)
    np.testing.assert_allclose(found, wanted, rtol=DOUBLE)
    assert wanted[3] == 1 and wanted[2] == 0 and wanted[0] > 1


@pytest.mark.slow
def test_a_client_goes_through_its_rows_in_random_batches():
    data, client, size = toys.federation(), 7, 8
    ctx = hand.context(client=jnp.array(client), size=jnp.array(20), batch_size=size, row_length=24)
    ctx = ctx._replace(federation=jax.tree.map(jnp.asarray, data))
    key, variables = jax.random.key(4), hand.variables(3)
    found = MixedPrior().prepare(key, variables, ctx)
    rows = data.rows[data.offsets[client] : data.offsets[client + 1]]
    order = np.argsort(jax.random.uniform(key, (24,))[:20])
    features = reference.forward(variables.params, data.images[rows].reshape(20, -1).astype(float))[0]
    labels = data.labels[rows]
    means = mean_features(features, labels)
    batches = [order[first : first + size] for first in range(0, 20, size)]
    wanted = sum(sizes_of_batch(features[own], labels[own], means) for own in batches)
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_the_server_smooths_sizes_and_ignores_jumps():
    part = MixedPrior()
    server = ServerContext(**(dict.fromkeys(ServerContext._fields) | {"federation": toys.federation()}))
    server = server._replace(state=part.init_server(server))
    np.testing.assert_allclose(part.broadcast(None, server)[1], 0.25)
    state = None
    for report in ([3.0, 1e6, 0.0, 7.0], [5.0, 2.0, 1e6, 0.0]):
        state = smoothed(state, [report])
        server = server._replace(aggregate=Aggregate(None, {part.slot: jnp.array(report)}, None, None))
        server = server._replace(state=part.update(None, server))
        np.testing.assert_allclose(server.state.sizes, state, rtol=DOUBLE)
        np.testing.assert_allclose(part.broadcast(None, server)[1], state / state.sum(), rtol=DOUBLE)
    assert state[2] == 1 and state[1] > 4


def two_views(weights, weak, strong, labels, offset, weight, temperature):
    """The gradient of the loss on one batch."""
    n, views = len(labels), np.concatenate([weak, strong])
    features, logits = reference.forward(weights, views)
    logits = logits + offset
    error = (reference.softmax(logits) - np.eye(C)[np.tile(labels, 2)]) / (2 * n)
    right = logits[:n].argmax(1) == labels
    taught, learned = reference.softmax(logits[:n] / temperature), reference.softmax(logits[n:] / temperature)
    error[n:] += weight * right[:, None] * (learned - taught) / temperature / max(right.sum(), 1)
    return {"w2": features.T @ error, "w1": views.T @ ((error @ weights["w2"].T) * (1 - features**2))}, right


@pytest.mark.slow
@pytest.mark.parametrize("repeated", [True, False])
def test_fedyoyo_equals_its_transcription(repeated, monkeypatch):
    hidden = np.arange(toys.WIDTH) < 2  # a hole that all images have
    fixed = lambda key, shape, side: jnp.asarray(hidden)[None, None, :, None]
    monkeypatch.setattr(MODULE, "holes", fixed)
    # One batch of all rows, so that their order doesn't count.
    options = replace(float64.OPTIONS, batch_size=24, epochs=3)
    recipe = fedyoyo(3.0, 1.5, 2, tau=1.3, gamma=0.2, repeated=repeated, pad=0, rotate=0.0, hole=3, policy=False)
    prior_of, views = recipe.parts
    sim = float64.simulation(recipe, options)
    data = toys.federation()
    flat = data.images.reshape(len(data.images), -1).astype(float)
    weights = float64.initial(sim)
    sizes = None
    rights = []
    for number, cohort in float64.cohorts(sim):
        shared = np.full(C, 1 / C) if sizes is None else sizes / sizes.sum()
        changes, reports = {}, []
        for client in cohort:
            own = data.rows[data.offsets[client] : data.offsets[client + 1]]
            features = reference.forward(weights, flat[own])[0]
            labels = data.labels[own]
            reports.append(sizes_of_batch(features, labels, mean_features(features, labels)))
            local = np.bincount(labels, minlength=C) / len(labels)
            w = dict(weights)
            prior = shared
            for step, rows in enumerate(reference.draws(data, float64.SEED, number, client, options)):
                if repeated or step == 0:
                    prior = (1 - prior_of.gamma) * prior + prior_of.gamma * local
                offset = np.log(prior**prior_of.tau + 1e-9)
                strong = np.where(hidden, 0.0, flat[rows])
                scale = views.weight * min((number + 1) / views.warm_up, 1)
                slopes, right = two_views(w, flat[rows], strong, data.labels[rows], offset, scale, views.temperature)
                rights.append(right.mean())
                w = {k: w[k] - options.rate * options.decay**number * slopes[k] for k in w}
            changes[client] = float64.difference(w, weights)
        sizes = smoothed(sizes, reports)
        weights = float64.plus(weights, float64.mean(float64.by_size(cohort), changes))
    state = float64.run(sim)
    np.testing.assert_allclose(state.server["MixedPrior"].sizes, sizes, rtol=FORMULA)
    float64.assert_equal(state.variables.params, weights)
    assert min(rights) < 0.9 and max(rights) > 0.3


@pytest.mark.slow
def test_views_of_one_row_and_of_padding():
    ctx = hand.context(round=jnp.array(99))
    images = hand.batch().images.astype(jnp.float32)
    batch = hand.batch()._replace(images=images, real=jnp.arange(hand.ROWS) < 1)
    for part in (TwoViews(), TwoViews(policy=False, hole=0)):
        both = part.batch(jax.random.key(0), batch, ctx)
        assert both.images.shape == (2 * hand.ROWS, *batch.images.shape[1:]) and int(both.real.sum()) == 2
        np.testing.assert_array_equal(both.labels, np.tile(hand.LABELS, 2))
        assert both.extra.shape == both.real.shape and not both.extra.any()
        outputs = hand.outputs(hand.draw(2 * hand.ROWS, C))
        value, gradient = hand.value_and_gradient(
            lambda z, part=part, both=both: part.loss(hand.outputs(z), both, None, ctx), outputs.logits
        )
        assert np.isfinite(value) and not gradient[: hand.ROWS].any() and not gradient[hand.ROWS + 1 :].any()


def test_added_rows_are_refused():
    with pytest.raises(ValueError, match="fedyoyo: received Fakes"):
        float64.simulation(combine(fedyoyo(), cbfl(0, generator="gaussian")))
