"""Dense products, max pooling and their derivatives against NumPy and JAX's own."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from rounding import FORMULA, SUM

from fedjax_bal.models import layers
from fedjax_bal.models.layers import FEW_ROWS, dense_product, max_pool, overlapping_max_pool

NUMBERS = (((1,), (0,)), ((), ()))


def results(product, inputs, kernel):
    """The product, both gradients of a curved loss, and a second derivative."""

    def loss(inputs, kernel):
        return (product(inputs, kernel, NUMBERS) ** 3).sum()

    twice = jax.grad(lambda kernel: (jax.grad(loss, 1)(inputs, kernel) ** 2).sum())(kernel)
    return product(inputs, kernel, NUMBERS), jax.grad(loss, (0, 1))(inputs, kernel), twice


@pytest.mark.slow
@pytest.mark.parametrize("rows", [4, FEW_ROWS + 1])
def test_values_and_derivatives_are_those_of_lax_alone_and_stacked(rows):
    rng = np.random.default_rng(0)
    inputs, kernel = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((3, rows, 5), (3, 5, 2)))
    for each in (lambda f: f(inputs[0], kernel[0]), lambda f: jax.vmap(f)(inputs, kernel)):
        run = jax.jit(lambda product, each=each: each(lambda x, w: results(product, x, w)), static_argnums=0)
        own, theirs = run(dense_product), run(lax.dot_general)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=SUM, atol=SUM), own, theirs)


def test_inputs_of_numpy_have_derivatives():
    inputs, kernel = np.ones((3, 4), np.float32), jnp.ones((4, 2))
    np.testing.assert_array_equal(
        jax.grad(lambda kernel: dense_product(inputs, kernel).sum())(kernel), np.full((4, 2), 3)
    )


def test_inputs_with_more_axes_go_through_lax():
    inputs, kernel = jnp.ones((2, 3, 4)), jnp.ones((4, 5))
    product = jax.eval_shape(lambda: dense_product(inputs, kernel, (((2,), (0,)), ((), ()))))
    assert product.shape == (2, 3, 5)


def reference(images, cotangent):
    """Maximum and gradient, block by block; argmax takes the first of equals."""
    count, height, width, channels = images.shape
    highest = np.zeros((count, height // 2, width // 2, channels), np.float32)
    gradient = np.zeros(images.shape, np.float32)
    for n, i, j, k in np.ndindex(*highest.shape):
        block = images[n, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2, k]
        row, column = np.unravel_index(block.argmax(), (2, 2))
        highest[n, i, j, k] = block[row, column]
        gradient[n, 2 * i + row, 2 * j + column, k] = cotangent[n, i, j, k]
    return highest, gradient


def value_and_gradient(images, cotangent):
    highest, pullback = jax.vjp(max_pool, images)
    return highest, *pullback(cotangent)


@pytest.mark.parametrize("shape", [(2, 4, 6, 3), (2, 7, 5, 1)])
@pytest.mark.parametrize("values", [2, 1000])
def test_values_and_gradients_with_and_without_ties(shape, values):
    rng = np.random.default_rng(0)
    images = rng.integers(0, values, shape).astype(np.float32)
    cotangent = rng.normal(size=(shape[0], shape[1] // 2, shape[2] // 2, shape[3])).astype(np.float32)
    highest, gradient = jax.jit(value_and_gradient)(images, cotangent)
    expected = reference(images, cotangent)
    np.testing.assert_array_equal(highest, expected[0])
    np.testing.assert_array_equal(gradient, expected[1])


@pytest.mark.slow
def test_stacked_equals_one_by_one_and_second_derivatives_exist():
    images = jax.random.normal(jax.random.key(1), (3, 2, 4, 5, 2))
    gradient = jax.jit(jax.grad(lambda x: (max_pool(x) ** 3).sum()))
    np.testing.assert_array_equal(jax.jit(jax.vmap(gradient))(images), jnp.stack([gradient(x) for x in images]))
    second = jax.jit(jax.grad(lambda x: gradient(x).sum()))(images[0])
    chosen = jax.jit(jax.grad(lambda x: max_pool(x).sum()))(images[0])
    np.testing.assert_allclose(second, 6 * images[0] * chosen, rtol=FORMULA)


def test_nan_reaches_the_gradient():
    images = np.full((2, 4, 6, 3), np.nan, np.float32)
    highest, gradient = jax.jit(value_and_gradient)(images, np.ones((2, 2, 3, 3), np.float32))
    assert np.isnan(highest).all() and (np.asarray(gradient).reshape(2, 2, 2, 3, 2, 3).sum((2, 4)) == 1).all()


def overlapping_reference(images, cotangent):
    """3x3 maximum around every second pixel, and its gradient; argmax takes the first of equals, inside the image."""
    highest, gradient = np.zeros_like(cotangent), np.zeros_like(images)
    for n, i, j, k in np.ndindex(*highest.shape):
        top, left = max(2 * i - 1, 0), max(2 * j - 1, 0)
        around = images[n, top : 2 * i + 2, left : 2 * j + 2, k]
        row, column = np.unravel_index(around.argmax(), around.shape)
        highest[n, i, j, k] = around[row, column]
        gradient[n, top + row, left + column, k] += cotangent[n, i, j, k]
    return highest, gradient


@jax.jit
def overlapping(images, cotangent):
    highest, pullback = jax.vjp(overlapping_max_pool, images)
    return highest, *pullback(cotangent)


@pytest.mark.parametrize("shape", [(2, 5, 6, 2), (1, 1, 2, 1)])
def test_overlapping_values_and_gradients_with_and_without_ties(shape):
    rng = np.random.default_rng(0)
    cotangent = rng.integers(-9, 9, (shape[0], -(-shape[1] // 2), -(-shape[2] // 2), shape[3])).astype(np.float32)
    for values in (2, 1000):
        images = -rng.integers(1, values + 1, shape).astype(np.float32)
        for actual, expected in zip(
            overlapping(images, cotangent), overlapping_reference(images, cotangent), strict=True
        ):
            np.testing.assert_array_equal(actual, expected)
    _, gradient = overlapping(np.full(shape, np.nan, np.float32), cotangent)
    np.testing.assert_array_equal(gradient[:, ::2, ::2], cotangent)


def test_the_relu_is_jax_s_with_all_of_its_derivatives():
    maps, weights = jnp.array([-jnp.inf, -2.0, -0.0, 0.0, 3.0, jnp.inf, jnp.nan]), jnp.arange(1.0, 8)

    @functools.partial(jax.jit, static_argnums=0)
    def found(relu):
        slope = jax.grad(lambda maps: (relu(maps) * weights).sum())
        curvature = jax.grad(lambda maps: (relu(maps[1:5]) ** 3).sum())
        return (relu(maps), slope(maps), jax.jvp(relu, (maps,), (weights,)), jax.jvp(curvature, (maps,), (weights,)))

    jax.tree.map(np.testing.assert_array_equal, found(layers.relu), found(nn.relu))
