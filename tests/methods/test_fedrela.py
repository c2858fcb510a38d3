"""FedReLa: against a transcription in NumPy of the authors' code, row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from methods import float64, hand, heads

from fedjax_bal.methods.fedrela import Labelled, _rows_above, relabelled
from fedjax_bal.parts import Relabelling
from fedjax_bal.recipes import balanced_softmax, combine, fedavg, fedcm, fedper, fedrela, fedrod, scaffold

pytestmark = pytest.mark.usefixtures("double")

C = toys.CLASSES


def transcription(probabilities, labels, draws, percent):
    """New labels of a client's rows, and the number of rows with several candidates."""
    counts = np.array([np.sum(labels == c) for c in range(C)], float)
    low, high = counts.min(), counts.max()
    rare = 1 - (counts - low) / (high - low) if high > low else np.ones(C)
    scores = np.zeros_like(probabilities)
    for c in np.unique(labels):
        own = probabilities[labels == c]
        scores[labels == c] = (own - own.mean(0)) / np.clip(own.std(0), 1e-6, None)
    total = len(labels)
    place = total - 1 - max(0, min(int(percent * total / 100), total - 1))
    thresholds = np.partition(scores, place, axis=0)[place]
    new, several = np.array(labels), 0
    for row, label in enumerate(labels):
        chances = np.tanh(scores[row] - thresholds) * np.maximum(rare - rare[label], 0)
        candidates = np.flatnonzero(chances > draws[row])
        if len(candidates):
            new[row] = candidates[np.argmax(chances[candidates])]
            several += len(candidates) > 1
    return new, several


LONGEST, RELABELLED = 55, jax.jit(relabelled)


@pytest.mark.parametrize(
    ("counts", "percent"),
    [([9, 2, 0, 4], 30), ([9, 2, 0, 4], 0), ([1, 0, 0, 0], 50), ([3, 3, 3, 3], 50), ([40, 9, 2, 1], 100)],
)
def test_new_labels_equal_their_transcription(counts, percent):
    rng = np.random.default_rng(1)
    total = sum(counts)
    labels = np.repeat(np.arange(C), counts)
    padded = np.append(labels, np.arange(LONGEST - total) % C)
    moved, several = 0, 0
    for _ in range(20):
        probabilities = reference.softmax(2 * rng.normal(size=(LONGEST, C)))
        draws = 0.3 * rng.random((LONGEST, C))
        found = RELABELLED(probabilities, padded, np.arange(LONGEST) < total, draws, float(percent))
        wanted, many = transcription(probabilities[:total], labels, draws[:total], percent)
        np.testing.assert_array_equal(found, np.append(wanted, padded[total:]))
        moved, several = moved + np.sum(wanted != labels), several + many
    assert (moved > 0) == (counts not in ([1, 0, 0, 0], [3, 3, 3, 3]) and percent > 0)
    assert several or percent < 100


@pytest.mark.parametrize(
    ("percent", "rows", "above"),
    [
        (29, 100, 29),
        (58, 100, 58),
        (57, 100, 57),
        (7, 100, 7),
        (29, 99, 28),
        (5, 19, 0),
        (100, 7, 6),
        (0, 7, 0),
        (50, 1, 0),
    ],
)
def test_a_percentage_of_the_rows_is_counted_exactly(percent, rows, above):
    assert jax.jit(_rows_above)(float(percent), jnp.int32(rows)) == above


def test_every_whole_percentage_is_rounded_down_as_integers_are():
    percents, rows = np.arange(101)[:, None], np.arange(1, 2001)
    found = jax.jit(_rows_above)(jnp.float32(percents), jnp.int32(rows))
    np.testing.assert_array_equal(found, np.minimum(percents * rows // 100, rows - 1))


def new_labels(client, weights, seed, percent):
    """Of all rows, after a client's have been relabelled by a model; only the draws are the library's."""
    data = toys.federation()
    rows = data.rows[data.offsets[client] : data.offsets[client + 1]]
    probabilities = reference.softmax(reference.forward(weights, data.images[rows].reshape(len(rows), -1))[1])
    draw = lambda row: jax.random.uniform(jax.random.fold_in(jax.random.key(seed), row), (C,))
    labels = np.array(data.labels)
    labels[rows], _ = transcription(probabilities, labels[rows], np.array([draw(row) for row in rows]), percent)
    return labels


@pytest.mark.slow
def test_fedrela_equals_its_transcription():
    data = toys.federation()
    options = float64.OPTIONS
    percent = 60.0
    factor = 0.3
    sim = float64.simulation(fedrela(1, percent, factor))
    state = float64.run(sim)
    seed = state.server["Relabelling"].seed
    weights = float64.initial(sim)
    models, moved = [], []
    flat = data.images.reshape(len(data.images), -1).astype(float)
    for number, cohort in float64.cohorts(sim):
        models.append(weights)
        changes = {}
        for client in cohort:
            labels = new_labels(client, models[1], seed, percent) if number else data.labels
            moved.append((labels != data.labels).sum())
            rate, w = options.rate * options.decay**number * (factor if number else 1), dict(weights)
            for rows in reference.draws(data, float64.SEED, number, client, options):
                slopes = float64.gradient(w, flat[rows], labels[rows])
                w = {k: w[k] - rate * slopes[k] for k in w}
            changes[client] = float64.difference(w, weights)
        weights = float64.plus(weights, float64.mean(float64.by_size(cohort), changes))
    assert np.sum(np.array(moved) > 0) > 1
    float64.assert_equal(state.variables.params, weights)
    float64.assert_equal(state.server["Relabelling"].variables.params, models[1])


@pytest.mark.slow
def test_without_a_rarer_class_it_is_fedavg():
    data = toys.federation()
    rows = np.concatenate([np.flatnonzero(data.labels == c)[: len(toys.SIZES)] for c in range(C)])
    rows = rows.reshape(C, -1).T.ravel().astype(np.int32)
    even = data._replace(
        rows=rows, offsets=np.arange(0, len(rows) + 1, C, dtype=np.int32), copy=np.zeros(len(rows), np.int32),
        class_counts=np.ones((len(toys.SIZES), C), np.int32),
    )  # fmt: skip
    float64.assert_same_runs(fedrela(0, 50.0, 1.0), fedavg(), federation=even)


def test_only_the_clients_own_rows_get_new_labels():
    known = Labelled(jnp.array([3, 1, 1, -1]), jnp.array([2, 3, 0, 1]))  # the second row 1 is a copy
    batch = hand.batch()._replace(rows=jnp.array([1, 3, 9, 1, 2, 2**31 - 1, 0]))
    found = Relabelling().batch(None, batch, hand.context(prepared={"Relabelling": known}))
    np.testing.assert_array_equal(found.labels, [3, 2, *hand.LABELS[2:3], 3, *hand.LABELS[4:]])


def test_priors_count_the_new_labels():
    known = Labelled(jnp.array([4, 5, 6, -1]), jnp.array([1, 2, 1, 3]))
    found = Relabelling().labelled(jnp.array([3, 0, 0, 0]), hand.context(prepared={"Relabelling": known}))
    np.testing.assert_array_equal(found, [0, 2, 1, 0])


@pytest.mark.slow
def test_a_prior_excludes_no_new_label():
    sim = float64.simulation(combine(balanced_softmax(), fedrela(1, 60.0, 1.0)))
    losses = [record["train_loss"] for record in float64.finished(sim)[1]]
    assert max(losses) < 5  # a label whose class the prior excludes would cost 1e9


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (fedper, "received OwnHead, whose leaves"),
        (scaffold, "received ControlVariates, which"),
        (fedcm, "ClientMomentum"),
    ],
)
def test_what_does_not_fit_is_refused(other, message):
    with pytest.raises(ValueError, match=f"fedrela: .*{message}"):
        float64.simulation(combine(other(), fedrela(1)))


def test_a_classifier_trained_along_is_no_obstacle():
    float64.simulation(combine(fedrod(), fedrela(1)), model=heads.network())
