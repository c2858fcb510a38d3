"""Generative regression: its losses against NumPy, and that it finds the image where the target determines it."""

from functools import cache, partial

import jax
import numpy as np
import pytest
from contrib.privacy.linear import CLASSES, DENSE, IMAGES, ROTATION, error, features, gradients, odd
from rounding import FORMULA, STEPS, SUM

from fedjax_bal.contrib.privacy import Regression, regress, single_gradients, total_variation
from fedjax_bal.models import build

TRUTH, LABELS = IMAGES[:2], np.array([0, 2])
LIMITS = -5.0, 5.0
attack = partial(regress, iterations=500, width=8, latent=32)


def search(seed=0, rows=(0, 1), rate=0.01, smoothness=0.0):
    return attack(jax.random.key(seed), *ROTATION, features(IMAGES[list(rows)]), rate=rate, smoothness=smoothness)


def search_by_gradient(rate=0.02, smoothness=0.0):
    """The best of four searches for each gradient, as some end at the negative image."""
    target = single_gradients(*DENSE, TRUTH.repeat(4, 0), LABELS.repeat(4))
    images, labels, losses = attack(
        jax.random.key(0), *DENSE, target, of="gradient", rate=rate, smoothness=smoothness, limits=LIMITS
    )
    best = np.array([0, 4]) + losses[-1].reshape(2, 4).argmin(1)
    return Regression(images[best], labels[best], losses[:, best])


@cache
def found():
    return search()


@cache
def found_by_gradient():
    return search_by_gradient()


@pytest.mark.slow
def test_finds_the_image_of_features_that_are_a_rotation():
    assert found().losses.shape == (500, 2)
    assert found().labels is None
    assert (error(found().images, TRUTH) < 0.01 * TRUTH.var()).all()
    assert (found().losses[-1] < 0.01 * found().losses[0]).all()


@pytest.mark.slow
def test_finds_image_and_label_of_a_gradient():
    assert (error(found_by_gradient().images, TRUTH) < 0.03 * TRUTH.var()).all()
    assert np.asarray(found_by_gradient().labels).argmax(1).tolist() == LABELS.tolist()
    np.testing.assert_allclose(found_by_gradient().labels.sum(1), 1, rtol=SUM)
    assert (found_by_gradient().losses[-1] < 0.01 * found_by_gradient().losses[0]).all()


@pytest.mark.slow
def test_the_loss_of_features_against_numpy():
    still = search(rate=0.0, smoothness=0.3)
    expected = ((features(still.images) - features(TRUTH)) ** 2).mean(1) + 0.3 * variation(still.images)
    np.testing.assert_allclose(still.losses, np.broadcast_to(expected, (500, 2)), rtol=STEPS)


@pytest.mark.slow
def test_the_loss_of_a_gradient_against_numpy():
    still = search_by_gradient(rate=0.0, smoothness=0.3)
    ours, theirs = gradients(still.images, np.asarray(still.labels)), gradients(TRUTH, np.eye(CLASSES)[LABELS])
    squares = lambda tree: sum((leaf.reshape(2, -1) ** 2).sum(1) for leaf in tree.values())
    apart = squares({name: ours[name] - theirs[name] for name in ours}) / squares(theirs)
    expected = apart + 0.3 * variation(still.images)
    np.testing.assert_allclose(still.losses, np.broadcast_to(expected, (500, 2)), rtol=STEPS)


def variation(images):
    """Twice the mean squares of differences of vertical and of horizontal neighbours, pair by pair."""
    totals = []
    for image in np.float64(images):
        height, width, _ = image.shape
        down = [(image[i + 1, j] - image[i, j]) ** 2 for i in range(height - 1) for j in range(width)]
        across = [(image[i, j + 1] - image[i, j]) ** 2 for i in range(height) for j in range(width - 1)]
        totals.append(2 * (np.mean(down) + np.mean(across)))
    return np.array(totals)


def test_total_variation_against_numpy():
    images = np.random.default_rng(0).normal(size=(3, 4, 6, 2)).astype(np.float32)
    np.testing.assert_allclose(total_variation(images), variation(images), rtol=SUM)


def test_single_gradients_against_numpy():
    got, expected = single_gradients(*DENSE, TRUTH, LABELS), gradients(TRUTH, np.eye(CLASSES)[LABELS])
    assert got.keys() == expected.keys()
    for name in got:
        np.testing.assert_allclose(got[name], expected[name], rtol=STEPS, atol=FORMULA)


@pytest.mark.slow
def test_the_key_decides_and_other_targets_do_not_matter():
    assert np.array_equal(search().images, found().images)
    assert not np.array_equal(search(seed=1, rate=0.0).images, search(rate=0.0).images)
    other = search(rows=(0, 7))
    np.testing.assert_allclose(other.losses[:100, 0], found().losses[:100, 0], rtol=1e-3)
    assert not np.allclose(other.losses[:100, 1], found().losses[:100, 1], rtol=0.1)
    first, second = np.asarray(search(rows=(0, 0), rate=0.0).images)
    assert not np.allclose(first, second)


def test_a_model_without_second_derivatives_is_refused():
    model = build("tiny_bn", 3, (8, 8, 1))
    variables = model.init(jax.random.key(0))
    target = single_gradients(model, variables, np.ones((1, 8, 8, 1), np.float32), np.array([0]))
    with pytest.raises(ValueError, match='convolution="plain"'):
        attack(jax.random.key(0), model, variables, target, of="gradient")


WRONG = {"iterations": 0, "width": 1, "latent": 0, "rate": -1, "smoothness": float("inf")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"of": "gradients"}, "of: received 'gradients'"),
        ({"target": np.ones((2, 5))}, r"must be one array \(M, 16\)"),
        ({"of": "gradient"}, "like the params of the model linear"),
        ({"of": "gradient", "target": {"turn": np.ones((16, 16))}}, "leading axis"),
        ({"model": odd()}, r"received \(6, 6, 1\).*multiples of 4"),
        *(({name: value}, f"{name}: received {value}") for name, value in WRONG.items()),
    ],
)
def test_refuses(changes, message):
    settings = {"model": ROTATION[0], "variables": ROTATION[1], "target": features(TRUTH)} | changes
    with pytest.raises(ValueError, match=message):
        regress(jax.random.key(0), **settings)
