"""Evaluation against NumPy, whatever the chunk size."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from rounding import SUM

from fedjax_bal import make_round, recipes, simulate
from fedjax_bal.engine.device.evaluation import evaluate, in_batches, some_images

ONE, ZERO = jnp.ones(1), jnp.zeros(1)


@pytest.mark.parametrize("size", [7, 50, 500])
def test_confusion_and_loss_equal_numpy(size):
    model, (images, labels) = toys.network(), toys.test_set()
    variables = model.init(jax.random.key(1))
    result = evaluate(model, variables, in_batches(images, labels, size), ZERO, ONE)
    weights = jax.tree.map(lambda leaf: np.asarray(leaf, float), variables.params)
    logits = np.tanh(images.reshape(len(images), -1) @ weights["w1"]) @ weights["w2"]
    wanted = np.zeros((4, 4), int)
    np.add.at(wanted, (labels, logits.argmax(1)), 1)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]
    assert (np.asarray(result.confusion) == wanted).all()
    assert float(result.loss) == pytest.approx(losses.mean(), rel=SUM)


@pytest.mark.slow
def test_bytes_are_scaled_and_normalised():
    seen = []
    model = toys.network()
    spy = model._replace(apply=lambda v, images, **k: (seen.append(images), model.apply(v, images, **k))[1])
    images = np.full((1, 1, toys.WIDTH, 1), 255, np.uint8)
    with jax.disable_jit():
        evaluate(spy, model.init(jax.random.key(0)), in_batches(images, np.zeros(1, int)), 0.25 * ONE, 0.5 * ONE)
    np.testing.assert_allclose(seen[0], 1.5)


def test_an_empty_test_set_is_refused():
    with pytest.raises(ValueError, match=r"test labels has shape \(0,\)"):
        in_batches(np.zeros((0, 1, 1, 1)), np.zeros(0))


def test_what_is_no_test_set_or_no_federation_is_refused():
    images, labels = toys.test_set()
    given = functools.partial(simulate, recipes.fedavg(), toys.network(), rounds=1, seed=0)
    with pytest.raises(ValueError, match="test: received ndarray"):
        given(toys.federation(), images)
    with pytest.raises(ValueError, match=r"test labels has shape \(105, 1\)"):
        given(toys.federation(), (images, labels[:, None]))
    with pytest.raises(ValueError, match="federation: received tuple"):
        given((images, labels), (images, labels))
    with pytest.raises(ValueError, match="federation: received tuple"):
        make_round(recipes.fedavg(), toys.network(), (images, labels))


@pytest.mark.parametrize(
    "labels", [np.repeat(np.arange(10), 100), np.tile(np.arange(10), 100)], ids=["sorted", "mixed"]
)
def test_some_images_are_of_all_classes_in_whatever_order_the_test_set_is(labels):
    test = in_batches(np.arange(1000).reshape(-1, 1, 1, 1), labels)
    some = some_images(test, 100, 1000, size=30)
    numbers, drawn = (leaf[some.real] for leaf in (some.images, some.labels))
    assert len(np.unique(numbers)) == len(numbers) == 100
    np.testing.assert_array_equal(drawn, labels[numbers.ravel()])
    often = np.bincount(drawn, minlength=10)
    assert ((often - 10) ** 2 / 10).sum() < 27.9  # chi-squared, 9 degrees: one in a thousand
    everything = some_images(test, 1000, 1000, size=300)
    assert sorted(np.asarray(everything.images[everything.real]).ravel()) == list(range(1000))
