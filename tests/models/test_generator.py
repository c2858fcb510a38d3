"""Enlarging convolutions and the generator: counts, layers against NumPy in float64, statistics, classes, starts."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from jax import lax
from methods import faking
from rounding import FORMULA, STEPS, SUM

from fedjax_bal.models.convolution import of_name
from fedjax_bal.models.generator import build_generator, enlarging
from fedjax_bal.types import Variables

DRAWS = np.random.default_rng(0)
IMAGES = DRAWS.normal(size=(2, 3, 5, 6)).astype(np.float32)
KERNEL = DRAWS.normal(size=(3, 3, 6, 5)).astype(np.float32)
PLACES = DRAWS.normal(size=(2, 6, 10, 5)).astype(np.float32)
SETTINGS = (1, 1), ((1, 1), (1, 1))


def enlarged_first(images, kernel):
    """Each pixel four times, zeros around, then the kernel at every pixel, in float64."""
    large = np.pad(np.float64(images).repeat(2, axis=1).repeat(2, axis=2), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(large, (3, 3), axis=(1, 2))
    return np.einsum("bhwkij,ijko->bhwo", windows, np.float64(kernel))


def weighed(images, kernel, name):
    return (enlarging(of_name(name))(images, kernel, *SETTINGS) * PLACES).sum()


@pytest.mark.parametrize("name", quick.only(["fast", "plain"], "fast"))
def test_equals_enlarging_first(name):
    result = jax.jit(lambda images, kernel: enlarging(of_name(name))(images, kernel, *SETTINGS))(IMAGES, KERNEL)
    np.testing.assert_allclose(result, enlarged_first(IMAGES, KERNEL), rtol=STEPS, atol=STEPS)


@pytest.mark.parametrize("name", quick.only(["fast", "plain"], "fast"))
def test_the_gradient_is_that_of_enlarging_first(name):
    def plainly(images, kernel):
        large = jnp.repeat(jnp.repeat(images, 2, 1), 2, 2)
        maps = lax.conv_general_dilated(large, kernel, *SETTINGS, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return (maps * PLACES).sum()

    wanted = jax.jit(jax.grad(plainly, (0, 1)))(IMAGES, KERNEL)
    got = jax.jit(jax.grad(lambda images, kernel: weighed(images, kernel, name), (0, 1)))(IMAGES, KERNEL)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=STEPS, atol=STEPS), got, wanted)


@pytest.mark.slow
def test_kernels_of_their_own_under_vmap():
    kernels, images = np.stack([KERNEL, -2 * KERNEL]), np.stack([IMAGES, IMAGES[::-1]])
    each = lambda images, kernel: enlarging(of_name("fast"))(images, kernel, *SETTINGS)
    wanted = [enlarged_first(i, k) for i, k in zip(images, kernels, strict=True)]
    np.testing.assert_allclose(jax.jit(jax.vmap(each))(images, kernels), wanted, rtol=STEPS, atol=2e-4)


@pytest.mark.parametrize(
    ("size", "strides", "padding"),
    [(5, (1, 1), ((1, 1), (1, 1))), (3, (2, 2), ((1, 1), (1, 1))), (3, (1, 1), ((0, 0), (0, 0)))],
)
def test_other_convolutions_are_refused(size, strides, padding):
    with pytest.raises(ValueError, match=r"must be \(3, 3\), \(1, 1\) and \(\(1, 1\), \(1, 1\)\)"):
        enlarging(of_name("plain"))(IMAGES, np.ones((size, size, 6, 5), np.float32), strides, padding)


CLASSES, LATENT, SHAPE, WIDTH = 3, 3, (8, 12, 1), 4
RNG = np.random.default_rng(0)
LATENTS = RNG.normal(size=(5, LATENT)).astype(np.float32)
LABELS = np.array([0, 2, 1, 2, 2])
WEIGHTS = RNG.normal(size=(5, *SHAPE)).astype(np.float32)


@functools.cache
def tiny():
    """A generator, variables in which every number matters, and its compiled `apply`."""
    generator = build_generator(CLASSES, SHAPE, WIDTH, LATENT)
    drawn = jax.jit(generator.init)(jax.random.key(0))
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: leaf + rng.uniform(-0.3, 0.3, leaf.shape).astype(np.float32), drawn.params)
    stats = jax.tree.map(lambda leaf: leaf + rng.uniform(0, 0.5, leaf.shape).astype(np.float32), drawn.stats)
    return generator, Variables(params, stats), jax.jit(generator.apply, static_argnames="train")


def number(tree):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    ("classes", "shape", "width", "params"),
    [
        (10, (32, 32, 3), 128, 1_052_139),
        (100, (32, 32, 3), 128, 1_061_139),
        # Embedding, dense layer, three normalisations, three convolutions.
        (10, (28, 28, 1), 32, 1_000 + 101 * 7 * 7 * 32 + 2 * (32 + 32 + 16) + 9_248 + 4_624 + 145),
    ],
)
def test_parameter_counts_and_shapes(classes, shape, width, params):
    generator = build_generator(classes, shape, width)
    variables = jax.eval_shape(generator.init, jax.random.key(0))
    assert number(variables.params) == params
    assert number(variables.stats) == 2 * (width + width + width // 2 + shape[2])
    labels = jax.ShapeDtypeStruct((7,), jnp.int32)
    apply = functools.partial(generator.apply, train=True)
    images, after = jax.eval_shape(apply, variables, jax.ShapeDtypeStruct((7, 100), jnp.float32), labels)
    assert (images.shape, images.dtype) == ((7, *shape), jnp.float32)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, variables)
    assert generator[2:] == (classes, 100, shape)


@pytest.mark.slow
@pytest.mark.parametrize("train", [True, False])
def test_every_layer_equals_float64(train):
    _, variables, apply = tiny()
    images, after = apply(variables, LATENTS, LABELS, train=train)
    wanted, stats = faking.generated(*jax.tree.map(np.float64, variables), LATENTS, LABELS, train, SHAPE)
    np.testing.assert_allclose(images, wanted, rtol=1e-3, atol=STEPS)
    jax.tree.map(lambda got, want: np.testing.assert_allclose(got, want, rtol=STEPS, atol=FORMULA), after.stats, stats)
    jax.tree.map(np.testing.assert_array_equal, after.params, variables.params)


@pytest.mark.slow
def test_training_normalises_every_channel_and_evaluation_takes_each_image_alone():
    _, variables, apply = tiny()
    images, _ = apply(variables, LATENTS, LABELS, train=True)
    np.testing.assert_allclose(images.mean((0, 1, 2)), 0, atol=SUM)
    np.testing.assert_allclose(images.var((0, 1, 2)), 1, rtol=5e-3)
    evaluated, after = apply(variables, LATENTS, LABELS, train=False)
    jax.tree.map(np.testing.assert_array_equal, after, variables)
    labels = LABELS[::-1].copy()
    labels[0] = 0
    turned, _ = apply(variables, LATENTS[::-1].copy(), labels, train=False)
    np.testing.assert_allclose(turned[1:], evaluated[::-1][1:], rtol=STEPS, atol=SUM)
    assert np.abs(turned[0] - evaluated[4]).max() > 0.01


@pytest.mark.slow
def test_labels_matter():
    _, variables, apply = tiny()
    noise = np.repeat(3 * LATENTS[:1], 5, axis=0)
    images, _ = apply(variables, noise, LABELS, train=False)
    np.testing.assert_allclose(images[1], images[3], rtol=SUM, atol=FORMULA)
    assert min(np.abs(images[i] - images[j]).max() for i, j in ((0, 1), (0, 2), (1, 2))) > 0.01


@pytest.mark.slow
def test_it_starts_as_in_pytorch():
    variables = jax.jit(build_generator(40, (8, 8, 3), width=32).init)(jax.random.key(3))
    assert np.std(variables.params["embedding"]) == pytest.approx(1, rel=0.05)
    assert np.abs(variables.params["embedding"]).max() > 3
    layers = [variables.params["dense"]["dense"], *(variables.params[f"conv_{i}"]["conv"] for i in range(3))]
    for layer, fan_in in zip(layers, (100, 9 * 32, 9 * 32, 9 * 16), strict=True):
        assert np.abs(layer["kernel"]).max() == pytest.approx(fan_in**-0.5, rel=0.02)
        assert np.std(layer["kernel"]) == pytest.approx((3 * fan_in) ** -0.5, rel=0.1)
        assert 0.05 * fan_in**-0.5 < np.abs(layer["bias"]).max() <= fan_in**-0.5
    for i in range(3):
        norm = variables.params[f"norm_{i}"]
        assert (norm["scale"] == 1).all()
        assert (norm["bias"] == 0).all()
    assert "norm_3" not in variables.params


@pytest.mark.slow
def test_gradients_under_vmap_equal_plain_ones_one_by_one():
    def loss(name, variables, latents):
        generator = build_generator(CLASSES, SHAPE, WIDTH, LATENT, name)
        images, after = generator.apply(variables, latents, LABELS, train=True)
        return (jnp.sin(3 * images) * WEIGHTS).sum(), after.stats

    first = tiny()[1]
    variables = [first, first._replace(params=jax.tree.map(lambda leaf: 0.8 * leaf, first.params))]
    noise = [LATENTS, -LATENTS]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *variables)
    gradient = lambda name: jax.grad(functools.partial(loss, name), has_aux=True)
    together = jax.jit(jax.vmap(gradient("fast")))(stacked, jnp.stack(noise))
    plain = jax.jit(gradient("plain"))
    for i in range(2):
        mine = jax.tree.map(lambda leaf, i=i: leaf[i], together)
        chex.assert_trees_all_close(mine, plain(variables[i], noise[i]), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, (8, 8, 1)), "num_classes: received 0"),
        ((3, (8, 10, 1)), r"image_shape: received \(8, 10, 1\)"),
        ((3, (8, 8)), r"image_shape: received \(8, 8\)"),
        ((3, (8, 8, 1), 1), "width: received 1"),
        ((3, (8, 8, 1), 4, 0), "latent: received 0"),
        ((3, (8, 8, 1), 4, 3, "quick"), "convolution: received 'quick'; allowed: auto, fast"),
    ],
)
def test_sizes_that_it_can_not_have_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_generator(*arguments)


def test_noise_of_another_length_is_refused():
    generator = build_generator(CLASSES, SHAPE, WIDTH, LATENT)
    variables = jax.eval_shape(generator.init, jax.random.key(0))
    with pytest.raises(ValueError, match=r"latents: received shape \(5, 1\)"):
        generator.apply(variables, LATENTS[:, :1], LABELS, train=False)
