"""The convolution of enlarged images against enlarging them and convolving, value and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_bal.models.convolution import of_name
from fedjax_bal.models.image_networks import enlarging

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(2, 3, 5, 6)).astype(np.float32)
KERNEL = RNG.normal(size=(3, 3, 6, 5)).astype(np.float32)
PLACES = RNG.normal(size=(2, 6, 10, 5)).astype(np.float32)
SETTINGS = (1, 1), ((1, 1), (1, 1))


def transcribed(images, kernel):
    """Each pixel four times, zeros around, then the kernel at every pixel, in float64."""
    large = np.pad(np.float64(images).repeat(2, axis=1).repeat(2, axis=2), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(large, (3, 3), axis=(1, 2))
    return np.einsum("bhwkij,ijko->bhwo", windows, np.float64(kernel))


def weighed(images, kernel, name):
    return (enlarging(of_name(name))(images, kernel, *SETTINGS) * PLACES).sum()


@pytest.mark.parametrize("name", ["fast", "plain"])
def test_equals_enlarging_first(name):
    result = jax.jit(lambda images, kernel: enlarging(of_name(name))(images, kernel, *SETTINGS))(IMAGES, KERNEL)
    np.testing.assert_allclose(result, transcribed(IMAGES, KERNEL), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["fast", "plain"])
def test_the_gradient_is_that_of_enlarging_first(name):
    def plainly(images, kernel):
        large = jnp.repeat(jnp.repeat(images, 2, 1), 2, 2)
        maps = lax.conv_general_dilated(large, kernel, *SETTINGS, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return (maps * PLACES).sum()

    wanted = jax.jit(jax.grad(plainly, (0, 1)))(IMAGES, KERNEL)
    got = jax.jit(jax.grad(lambda images, kernel: weighed(images, kernel, name), (0, 1)))(IMAGES, KERNEL)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4), got, wanted)


def test_kernels_of_their_own_under_vmap():
    kernels, images = np.stack([KERNEL, -2 * KERNEL]), np.stack([IMAGES, IMAGES[::-1]])
    each = lambda images, kernel: enlarging(of_name("fast"))(images, kernel, *SETTINGS)
    wanted = [transcribed(i, k) for i, k in zip(images, kernels, strict=True)]
    np.testing.assert_allclose(jax.jit(jax.vmap(each))(images, kernels), wanted, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("size", "strides", "padding"),
    [(5, (1, 1), ((1, 1), (1, 1))), (3, (2, 2), ((1, 1), (1, 1))), (3, (1, 1), ((0, 0), (0, 0)))],
)
def test_other_convolutions_are_refused(size, strides, padding):
    with pytest.raises(ValueError, match=r"must be \(3, 3\), \(1, 1\) and \(\(1, 1\), \(1, 1\)\)"):
        enlarging(of_name("plain"))(IMAGES, np.ones((size, size, 6, 5), np.float32), strides, padding)
