"""RUCR: against a transcription in NumPy of its loss, its prototypes and its retrained classifiers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from methods import float64, hand
from methods.heads import as_numpy, descended, flat, flat_images, gradient, network, retrained
from rounding import DOUBLE

from fedjax_bal.engine.device import purpose_key, training_key
from fedjax_bal.methods.prototypes import FeatureSums
from fedjax_bal.methods.rucr import Retrained, Unified, mixed_features
from fedjax_bal.parts import UnifiedPrototypes
from fedjax_bal.recipes import rucr
from fedjax_bal.types import Aggregate, ServerContext

pytestmark = pytest.mark.usefixtures("double")

C, F = toys.CLASSES, toys.FEATURES


def unit(row):
    length = np.linalg.norm(row)
    return row / max(length, 1e-12)


def prototype_loss(feature, label, counts, means, shares, temperature):
    """Of one row, and its gradient with respect to the feature; `means` and `shares` by class."""
    sides = np.array([unit(means[c]) if counts[c] and c in means else np.zeros(F) for c in range(C)])
    z = sides @ unit(feature) / temperature
    z[label] += np.log(shares[label])
    p = hand.softmax(z)
    slope = sides.T @ (p - np.eye(C)[label]) / temperature
    direction = unit(feature)
    return -np.log(p[label]), (slope - direction * (direction @ slope)) / np.linalg.norm(feature)


def test_the_loss_equals_its_transcription():
    means, counts = hand.draw(C, F, seed=3), np.array([6.0, 0, 3, 1])
    known = FeatureSums(jnp.array(counts[:, None] * means), jnp.array(counts))
    ctx = hand.context(broadcast={"UnifiedPrototypes": Unified(known, jnp.zeros((C, F)))})
    by_class, shares = {c: means[c] for c in (0, 2, 3)}, counts / counts.sum()

    def transcription(features):
        total = 0.0
        for row in np.flatnonzero(hand.REAL):
            if hand.LABELS[row] in by_class:
                total += prototype_loss(features[row], hand.LABELS[row], hand.COUNTS, by_class, shares, 0.9)[0]
        return 0.7 * total / hand.REAL.sum()

    loss = lambda f: UnifiedPrototypes(0.7).loss(hand.outputs(jnp.zeros((hand.ROWS, C)), f), hand.batch(), None, ctx)
    hand.check(loss, transcription, hand.draw(hand.ROWS, F))


@pytest.mark.parametrize("counts", [[0.0, 0, 0, 0], [5.0, 5, 5, 5]])
def test_rows_without_length_or_prototypes_stay_finite(counts):
    known = FeatureSums(jnp.ones((C, F)) * jnp.array(counts)[:, None], jnp.array(counts))
    ctx = hand.context(broadcast={"UnifiedPrototypes": Unified(known, jnp.zeros((C, F)))})
    loss = lambda f: UnifiedPrototypes().loss(hand.outputs(jnp.zeros((hand.ROWS, C)), f), hand.batch(), None, ctx)
    value, slopes = hand.value_and_gradient(loss, np.zeros((hand.ROWS, F)))
    assert np.isfinite(value) and np.isfinite(slopes).all() and (value > 0) == any(counts)


def virtual(key, prototypes, features, per_class, low, high, length):
    """Mixed features of each class, with loops; only the draws are the library's."""
    order_key, share_key = jax.random.split(key)
    words = [jax.random.uniform(own, (length,))[: len(features)] for own in jax.random.split(order_key, C)]
    shares = np.asarray(jax.random.uniform(share_key, (C, per_class, 1), minval=low, maxval=high))
    made = np.zeros((C, per_class, F))
    for c in range(C):
        order = np.argsort(words[c])
        for place in range(per_class):
            share = np.round(shares[c, place, 0], 2)
            other = unit(features[order[place % len(features)]])
            made[c, place] = share * prototypes[c] + (1 - share) * other
    return made


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3, 9])
def test_mixed_features_equal_their_transcription(size):
    prototypes, features, key = hand.draw(C, F), hand.draw(12, F, seed=1), jax.random.key(size)
    given = (jnp.array(prototypes), jnp.array(features), jnp.array(size), 7, 0.35, 0.95)
    wanted = virtual(key, prototypes, features[:size], 7, 0.35, 0.95, 12)
    np.testing.assert_allclose(mixed_features(key, *given), wanted, rtol=DOUBLE)
    padded = jnp.concatenate([given[1], jnp.ones((24, F))])
    np.testing.assert_array_equal(mixed_features(key, given[0], padded, *given[2:]), mixed_features(key, *given))


@pytest.mark.slow
def test_rucr_equals_its_transcription():
    recipe = rucr(0.8, 0.9, start=1, per_class=5, epochs=2, batch_size=6, learning_rate=0.3)
    (part,) = recipe.parts
    sim = float64.simulation(recipe, model=network())
    options = float64.OPTIONS
    data = toys.federation()
    counts = data.class_counts
    weights = flat(as_numpy(sim.init(float64.SEED).state).variables.params)
    head = None
    sums, number_of, sides = {}, {}, {}  # by class: of features, rows, and directions times rows
    for number, cohort in float64.cohorts(sim):
        means = {c: sums[c] / number_of[c] for c in sums}
        total = sum(number_of.values())
        shares = [number_of.get(c, 0) / max(total, 1) for c in range(C)]
        changes, reports, heads = {}, [], {}
        for client in cohort:
            own = data.rows[data.offsets[client] : data.offsets[client + 1]]
            features = np.tanh(flat_images()[own] @ weights["body"])
            reports.append({c: features[data.labels[own] == c] for c in np.unique(data.labels[own])})
            w = dict(weights)
            for rows in reference.draws(data, float64.SEED, number, client, options):
                images, labels = flat_images()[rows], data.labels[rows]
                slopes, inner = gradient(w, images, labels), np.tanh(images @ w["body"])
                pull = np.zeros_like(inner)
                known = (counts[client], means, shares, part.temperature)
                for row, label in enumerate(labels):
                    if label in means:
                        pull[row] = part.weight / len(labels) * prototype_loss(inner[row], label, *known)[1]
                slopes["body"] = slopes["body"] + images.T @ (pull * (1 - inner**2))
                w = descended(w, slopes, options.rate * options.decay**number)
            changes[client] = float64.difference(w, weights)
            if number >= part.start and sums:
                visit = training_key(jax.random.key(float64.SEED), *map(jnp.int32, (number, client, 0)))
                seed = jax.random.bits(purpose_key(visit, "prepare/UnifiedPrototypes"), dtype=jnp.uint32)
                mix_key, order_key = jax.random.split(jax.random.key(seed))
                prototypes = [sides[c] / number_of[c] if c in sides else np.zeros(F) for c in range(C)]
                made = virtual(mix_key, prototypes, features, part.per_class, part.low, part.high, float64.LENGTH)
                there = np.array([float(c in sides) for c in range(C)])
                begun = {k: w[k] for k in ("kernel", "bias")}
                knobs = (part.epochs, part.batch_size, part.learning_rate)
                heads[client] = retrained(begun, made, there, order_key, *knobs)
        for c in range(C):
            found = [report[c] for report in reports if c in report]
            if found:
                number_of[c] = sum(map(len, found))
                sums[c] = sum(rows.sum(0) for rows in found)
                sides[c] = sum(len(rows) * unit(rows.mean(0)) for rows in found)
        head = float64.mean(float64.by_size(cohort), heads) if heads else None
        weights = float64.plus(weights, float64.mean(float64.by_size(cohort), changes))
    state = float64.run(sim)
    float64.assert_equal(flat(as_numpy(state.variables.params)), weights)
    unified, mean = as_numpy(state.server["UnifiedPrototypes"])
    assert sorted(sums) == list(np.flatnonzero(unified.features.counts)) and head is not None
    for c in sums:
        np.testing.assert_allclose(unified.features.sums[c], sums[c], rtol=1e-8)
        np.testing.assert_allclose(unified.directions[c], sides[c], rtol=1e-8)
    float64.assert_equal(mean.head, head)
    assert np.abs(head["kernel"] - weights["kernel"]).max() > 1e-3


def test_what_is_evaluated_and_what_is_kept():
    part = UnifiedPrototypes()
    model = network()
    server = ServerContext(**(dict.fromkeys(ServerContext._fields) | {
        "model": model, "federation": toys.federation(), "variables": model.init(jax.random.key(0)),
    }))  # fmt: skip
    server = server._replace(state=part.init_server(server))
    kept = part.refine(None, server.variables, server)
    assert all(map(np.array_equal, jax.tree.leaves(kept), jax.tree.leaves(server.variables)))
    report = Unified(FeatureSums(jnp.ones((C, F)), jnp.array([2.0, 0, 1, 0])), jnp.ones((C, F)))
    head = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 6.0), server.variables.params["head"])
    sums = Retrained(head, jnp.array(3.0))
    for given in ((report, sums), (report._replace(features=FeatureSums(jnp.ones((C, F)), jnp.eye(C)[1])), sums)):
        aggregate = Aggregate(None, {part.slot: given}, None, None)
        server = server._replace(state=part.update(None, server._replace(aggregate=aggregate)))
    assert server.state[0].features.counts.tolist() == [2, 1, 1, 0]
    shown = part.refine(None, server.variables, server).params
    assert (shown["head"]["kernel"] == 2).all() and np.array_equal(shown["body"], server.variables.params["body"])


def test_a_run_that_is_over_before_a_classifier_is_retrained_is_refused():
    with pytest.raises(ValueError, match="rucr's retraining: begins in round 4, but rounds=3, .* or set rounds to 4"):
        float64.simulation(rucr(start=3), rounds=3)
