import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_bal.models.pooling import max_pool, overlapping_max_pool


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


@pytest.mark.parametrize("shape", [(2, 4, 6, 3), (1, 5, 4, 2), (2, 7, 3, 1), (1, 2, 2, 1)])
@pytest.mark.parametrize("values", [2, 1000])
def test_values_and_gradients_with_and_without_ties(shape, values):
    rng = np.random.default_rng(0)
    images = rng.integers(0, values, shape).astype(np.float32)
    cotangent = rng.normal(size=(shape[0], shape[1] // 2, shape[2] // 2, shape[3])).astype(np.float32)
    highest, gradient = jax.jit(value_and_gradient)(images, cotangent)
    expected = reference(images, cotangent)
    np.testing.assert_array_equal(highest, expected[0])
    np.testing.assert_array_equal(gradient, expected[1])


def test_agrees_with_linen_where_there_are_no_ties():
    images = jax.random.normal(jax.random.key(0), (2, 7, 6, 3))
    pools = (max_pool, lambda x: nn.max_pool(x, (2, 2), (2, 2)))
    ours, theirs = (jax.jit(jax.value_and_grad(lambda x, p=p: (p(x) ** 3).sum()))(images) for p in pools)
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1], theirs[1])


def test_stacked_equals_one_by_one_and_second_derivatives_exist():
    images = jax.random.normal(jax.random.key(1), (3, 2, 4, 5, 2))
    gradient = jax.jit(jax.grad(lambda x: (max_pool(x) ** 3).sum()))
    np.testing.assert_array_equal(jax.jit(jax.vmap(gradient))(images), jnp.stack([gradient(x) for x in images]))
    second = jax.jit(jax.grad(lambda x: gradient(x).sum()))(images[0])
    chosen = jax.jit(jax.grad(lambda x: max_pool(x).sum()))(images[0])
    np.testing.assert_allclose(second, 6 * images[0] * chosen, rtol=1e-6)


def test_nan_reaches_the_gradient():
    images = jnp.full((1, 2, 2, 1), jnp.nan)
    gradient = jax.jit(jax.grad(lambda x: (max_pool(x) ** 2).sum()))(images)
    assert jnp.isnan(gradient).any()


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


@pytest.mark.parametrize("shape", [(2, 5, 6, 2), (1, 4, 7, 1), (1, 1, 2, 1)])
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
