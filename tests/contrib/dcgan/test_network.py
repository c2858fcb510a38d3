"""The DCGAN: exact counts, every layer against NumPy in float64, which rows count, and how it starts."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from contrib.dcgan import gans
from jax import lax
from rounding import STEPS, SUM

from fedjax_bal.contrib.dcgan import build_dcgan
from fedjax_bal.models import convolution
from fedjax_bal.models.generator import PADS, doubling
from fedjax_bal.types import Variables

LATENT, SHAPE, WIDTH = 3, (8, 12, 2), 5
RNG = np.random.default_rng(0)
LATENTS = RNG.normal(size=(6, LATENT)).astype(np.float32)
IMAGES = RNG.uniform(-1, 1, (6, *SHAPE)).astype(np.float32)


@functools.cache
def tiny():
    """Networks of an odd width, variables in which every number matters, and what is compiled of them."""
    net = build_dcgan(SHAPE, WIDTH, LATENT)
    rng = np.random.default_rng(1)
    moved = lambda low, high: lambda leaf: np.asarray(leaf) + rng.uniform(low, high, leaf.shape).astype(np.float32)
    drawn = jax.jit(net.init)(jax.random.key(0))
    both = [Variables(jax.tree.map(moved(-0.3, 0.3), p), jax.tree.map(moved(0, 0.5), s)) for p, s in drawn]
    return both, jax.jit(net.generate, static_argnames="train"), jax.jit(net.judge, static_argnames="train")


def number(tree):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    ("shape", "width", "generator", "discriminator"),
    [
        ((32, 32, 3), 128, 953_731, 142_657),
        # Dense layer, two normalisations, two convolutions; convolution, convolution, normalisation, dense layer.
        ((28, 28, 1), 32, 4900 * 32 + 64 + 32 + 512 * 16 + 256 + 1, 256 + 16 + 256 * 32 + 64 + 49 * 32 + 1),
        ((4, 8, 2), 5, 100 * 2 * 5 + 10 + 4 + 16 * 5 * 2 + 16 * 2 * 2 + 2, 16 * 2 * 2 + 2 + 16 * 2 * 5 + 10 + 10 + 1),
    ],
)
def test_parameter_counts_and_shapes(shape, width, generator, discriminator):
    net = build_dcgan(shape, width)
    makes, judges = jax.eval_shape(net.init, jax.random.key(0))
    assert (number(makes.params), number(judges.params)) == (generator, discriminator)
    assert (number(makes.stats), number(judges.stats)) == (2 * (width + width // 2), 2 * width)
    latents = jax.ShapeDtypeStruct((7, 100), jnp.float32)
    images, after = jax.eval_shape(functools.partial(net.generate, train=True), makes, latents)
    assert (images.shape, images.dtype) == ((7, *shape), jnp.float32)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, makes)
    logits, after = jax.eval_shape(functools.partial(net.judge, train=True), judges, images)
    assert (logits.shape, logits.dtype) == ((7,), jnp.float32)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, judges)
    assert net[3:] == (100, shape)


@pytest.mark.slow
@pytest.mark.parametrize("train", [True, False])
def test_every_layer_equals_float64(train):
    (generator, discriminator), generate, judge = tiny()
    wide = jax.tree.map(np.float64, (generator, discriminator))
    for (got, after), (wanted, stats) in (
        (generate(generator, LATENTS, train=train), gans.generated(*wide[0], LATENTS.astype(float), SHAPE, train)),
        (judge(discriminator, IMAGES, train=train), gans.judged(*wide[1], IMAGES.astype(float), train)),
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=STEPS)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=STEPS, atol=SUM), after.stats, stats)


@pytest.mark.slow
def test_rows_that_are_not_real_enter_no_statistics():
    (_, discriminator), _, judge = tiny()
    real = np.array([True, False, True, True, False, False])
    wide = jax.tree.map(np.float64, discriminator)
    for filling in (0.0, 50.0):
        images = np.where(real[:, None, None, None], IMAGES, np.float32(filling))
        logits, after = judge(discriminator, images, train=True, real=real)
        wanted, stats = gans.judged(*wide, IMAGES[real].astype(float), True)
        np.testing.assert_allclose(logits[real], wanted, rtol=1e-3, atol=STEPS)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=STEPS, atol=SUM), after.stats, stats)


@pytest.mark.parametrize("name", quick.only(["fast", "plain"], "fast"))
def test_doubling_is_the_convolution_of_images_spread_apart_and_so_is_its_gradient(name):
    kernel = RNG.normal(size=(4, 4, 2, 3)).astype(np.float32)
    weights = RNG.normal(size=(6, 16, 24, 3)).astype(np.float32)

    def apart(images, kernel):
        layout = ("NHWC", "HWIO", "NHWC")
        pads = ((2, 2), (2, 2))
        return lax.conv_general_dilated(images, kernel, (1, 1), pads, (2, 2), dimension_numbers=layout)

    @functools.partial(jax.jit, static_argnums=0)
    def results(form, images, kernel):
        total = lambda images, kernel: (jnp.sin(form(images, kernel)) * weights).sum()
        return form(images, kernel), *jax.grad(total, (0, 1))(images, kernel)

    ours = functools.partial(doubling(convolution.of_name(name)), strides=(1, 1), padding=PADS)
    for got, wanted in zip(results(ours, IMAGES, kernel), results(apart, IMAGES, kernel), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((8, 10, 1),), r"image_shape: received \(8, 10, 1\)"),
        (((8, 8, 1), 1), "width: received 1"),
        (((8, 8, 1), 4, 3, "quick"), "convolution: received 'quick'; allowed: auto, fast"),
    ],
)
def test_sizes_that_it_can_not_have_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_dcgan(*arguments)
