"""FedRCL: against a transcription in NumPy of the authors' code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from methods import float64, hand
from rounding import DOUBLE

from fedjax_bal import models
from fedjax_bal.parts import RelaxedContrast
from fedjax_bal.recipes import fedrcl
from fedjax_bal.types import Outputs

pytestmark = pytest.mark.usefixtures("double")


def multi_label(chosen, temperature):
    """The authors' cross-entropy: the first column is the label, infinite entries are left out."""
    chosen = np.where(chosen == np.inf, -np.inf, chosen) / temperature
    top = chosen.max(1)
    return -(chosen[:, 0] - top - np.log(np.exp(chosen - top[:, None]).sum(1)))


def criterion(features, labels, temperature, threshold=None):
    """Loss of each row; with a threshold the penalty, whose positive is the row itself."""
    rows = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines, count = rows @ rows.T, len(rows)
    same, itself = labels == labels[:, None], np.eye(count) == 1
    if threshold is None:
        positive = np.where(same, cosines, np.inf)
        negative = -np.sort(-np.where(same, -np.inf, cosines), 1)[:, :2]
    else:
        positive = np.where(itself, cosines, np.inf)
        negative = np.sort(np.where(same & ~itself, cosines, np.inf), 1)[:, :1]
        negative = np.where((negative < threshold) | (negative == np.inf), -1.0, negative)
    return multi_label(np.concatenate([np.sort(positive, 1)[:, :1], negative], 1), temperature)


def added(features, labels, knobs):
    """What a level adds to the loss."""
    scl = criterion(features, labels, knobs["temperature"])
    penalty = criterion(features, labels, knobs["temperature"], knobs["threshold"])
    return knobs["weight"] * scl.mean() + knobs["penalty"] * penalty.mean()


KNOBS = {"weight": 0.8, "penalty": 0.6, "temperature": 0.3, "threshold": 0.2}


@pytest.mark.slow
@pytest.mark.parametrize("near", [0.0, 0.9])
def test_value_and_gradient_equal_the_transcription(near):
    part, batch = RelaxedContrast(**KNOBS), hand.batch()
    # Near each other, the rows of a class repel.
    centres = hand.draw(hand.CLASSES, hand.FEATURES, seed=5)[hand.LABELS]
    features = near * centres + (1 - near) * hand.draw(hand.ROWS, hand.FEATURES)
    loss = lambda x: part.loss(Outputs(x[:, :1], x), batch, {}, hand.context())

    def wanted(x):
        return added(x[hand.REAL], hand.LABELS[hand.REAL], KNOBS)

    hand.check(loss, wanted, features)
    penalty = criterion(features[hand.REAL], hand.LABELS[hand.REAL], 0.3, 0.2)
    assert (penalty > np.logaddexp(0, -2 / 0.3) + 1e-9).any() == (near > 0)


def test_levels_are_averaged_over_pixels_and_with_each_other():
    part, batch = RelaxedContrast(**KNOBS), hand.batch()
    levels = hand.draw(hand.ROWS, 3, 2, 5, seed=1), hand.draw(hand.ROWS, 1, 1, 4, seed=2)
    got = jax.jit(lambda maps: part.loss(Outputs(None, None, levels=maps), batch, {}, hand.context()))(levels)
    labels = hand.LABELS[hand.REAL]
    want = np.mean([added(level.mean((1, 2))[hand.REAL], labels, KNOBS) for level in levels])
    np.testing.assert_allclose(got, want, rtol=DOUBLE)


@pytest.mark.slow
@pytest.mark.parametrize("real", [[True, False, False], [False] * 3])
def test_a_row_alone_has_no_loss(real):
    batch = hand.batch()._replace(labels=jnp.array([1, 1, 0]), real=jnp.array(real))
    loss = lambda x: RelaxedContrast().loss(Outputs(x, x), batch, {}, hand.context())
    value, gradient = hand.value_and_gradient(loss, hand.draw(3, 4))
    assert value == pytest.approx(0.0, abs=1e-15) and not np.abs(gradient).max() > 1e-15


def slopes(function, weights, step=1e-5):
    """Of a function of the weights, by central differences."""
    found = {k: np.zeros_like(leaf) for k, leaf in weights.items()}
    for name, leaf in weights.items():
        for place in np.ndindex(leaf.shape):
            moved = {sign: weights | {name: leaf.copy()} for sign in (1, -1)}
            for sign, tree in moved.items():
                tree[name][place] += sign * step
            found[name][place] = (function(moved[1]) - function(moved[-1])) / (2 * step)
    return found


@pytest.mark.slow
def test_two_rounds_equal_their_transcription():
    sim = float64.simulation(fedrcl(**KNOBS), rounds=2)
    model, data = float64.initial(sim), toys.federation()
    flat = data.images.reshape(len(data.images), -1).astype(float)
    for number, cohort in float64.cohorts(sim):
        rate, after = float64.OPTIONS.rate * float64.OPTIONS.decay**number, {}
        for client in cohort:
            weights = model
            for rows in reference.draws(data, float64.SEED, number, client, float64.OPTIONS):
                contrast = slopes(
                    lambda w, rows=rows: added(reference.forward(w, flat[rows])[0], data.labels[rows], KNOBS), weights
                )
                plain = float64.gradient(weights, flat[rows], data.labels[rows])
                weights = {k: weights[k] - rate * (plain[k] + contrast[k]) for k in weights}
            after[client] = weights
        model = float64.mean(float64.by_size(cohort), after)
    float64.assert_equal(float64.run(sim).variables.params, model, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("resnet8", 4), ("resnet18_cifar", 5)])
def test_levels_of_residual_networks_are_before_the_activation(name, count):
    with jax.enable_x64(False):
        model = models.build(name, 3, (8, 8, 3), norm="group")
        variables = model.init(jax.random.key(0))
        outputs, _ = model.apply(variables, jax.random.normal(jax.random.key(1), (2, 8, 8, 3)), train=True)
    assert len(outputs.levels) == count
    last = outputs.taps[-1] if name == "resnet8" else max(outputs.taps, key=lambda maps: maps.shape[-1])
    assert all((level < 0).any() for level in outputs.levels)
    np.testing.assert_array_equal(np.maximum(outputs.levels[-1], 0).mean((1, 2)), outputs.features)
    assert last.shape == outputs.levels[-1].shape
