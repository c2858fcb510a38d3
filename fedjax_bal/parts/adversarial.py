"""How a generator and a discriminator are trained against each other."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.models import Dcgan
from fedjax_bal.types import Array, Key, PyTree, Variables


class GanTraining(NamedTuple):
    """How a DCGAN is trained.

    Attributes:
        iterations: steps of either network.
        batch_size: real images a step, and as many fakes.
        rate: Adam's learning rate.
    """

    iterations: int
    batch_size: int
    rate: float


def discriminator_loss(real: Array, fake: Array) -> Array:
    """Mean cross-entropy of real images taken for real plus that of fakes taken for fakes, in nats.

    Args:
        real: logits of real images, `Float[B]`.
        fake: logits of fakes, `Float[B]`.

    Returns:
        `Float[]`.

    Example:
        >>> round(float(discriminator_loss(jnp.zeros(2), jnp.zeros(2))), 4)
        1.3863

    References:
        Goodfellow et al., "Generative Adversarial Nets", NeurIPS 2014, eq. 1.
    """
    return jax.nn.softplus(-real).mean() + jax.nn.softplus(fake).mean()


def generator_loss(fake: Array) -> Array:
    """Mean cross-entropy of fakes taken for real, in nats: the loss that does not saturate.

    Args:
        fake: logits of fakes, `Float[B]`.

    Returns:
        `Float[]`.

    Example:
        >>> round(float(generator_loss(jnp.zeros(2))), 4)
        0.6931

    References:
        Goodfellow et al., "Generative Adversarial Nets", NeurIPS 2014, section 3.
    """
    return jax.nn.softplus(-fake).mean()


def trained(
    key: Key, net: Dcgan, draw: Callable[[Key], Array], how: GanTraining
) -> tuple[tuple[Variables, Variables], Array]:
    """Trains a new DCGAN.

    Each step draws real images and noise and takes Adam's step first for the discriminator, whose batch statistics are
    those of real images and of fakes apart, then for the generator on the same noise.

    Args:
        key: decides initial weights, noise and what is drawn.
        net: the architecture.
        draw: from a key to real images with values from -1 to 1, `Float[batch_size, H, W, K]`.
        how: the constants.

    Returns:
        The variables of generator and discriminator, and the discriminator's and the generator's loss before each step,
        `Float[iterations, 2]`.

    References:
        Radford, Metz and Chintala, "Unsupervised Representation Learning with Deep Convolutional Generative Adversarial
        Networks", ICLR 2016, section 4: Adam with learning rate 0.0002 and betas (0.5, 0.999), batches of 128 there.
    """
    optimizer = optax.adam(how.rate, b1=0.5, b2=0.999)

    def moved(variables: Variables, state: PyTree, grads: PyTree, stats: PyTree) -> tuple[Variables, PyTree]:
        updates, state = optimizer.update(grads, state, variables.params)
        return Variables(optax.apply_updates(variables.params, updates), stats), state

    def step(carry: PyTree, index: Array) -> tuple[PyTree, Array]:
        generator, discriminator, makes, judges = carry
        row_key, noise_key = jax.random.split(jax.random.fold_in(key, index))
        make = partial(_images, net, generator.stats, noise(noise_key, how.batch_size, net))
        fakes, back, stats = jax.vjp(make, generator.params, has_aux=True)
        tell = jax.value_and_grad(partial(_telling, net, discriminator.stats, draw(row_key), fakes), has_aux=True)
        (told, seen), grads = tell(discriminator.params)
        discriminator, judges = moved(discriminator, judges, grads, seen)
        fooled, slope = jax.value_and_grad(lambda images: _fooling(net, discriminator, images))(fakes)
        generator, makes = moved(generator, makes, back(slope)[0], stats)
        return (generator, discriminator, makes, judges), jnp.stack([told, fooled])

    generator, discriminator = net.init(jax.random.fold_in(key, how.iterations))
    start = generator, discriminator, optimizer.init(generator.params), optimizer.init(discriminator.params)
    (generator, discriminator, *_), losses = lax.scan(step, start, jnp.arange(how.iterations))
    return (generator, discriminator), losses


def _images(net: Dcgan, stats: PyTree, latents: Array, params: PyTree) -> tuple[Array, PyTree]:
    """Fakes, and the generator's statistics afterwards."""
    images, after = net.generate(Variables(params, stats), latents, train=True)
    return images, after.stats


def _telling(net: Dcgan, stats: PyTree, real: Array, fake: Array, params: PyTree) -> tuple[Array, PyTree]:
    """The discriminator's loss, and its statistics afterwards."""
    of_real, after = net.judge(Variables(params, stats), real, train=True)
    of_fake, after = net.judge(after, fake, train=True)
    return discriminator_loss(of_real, of_fake), after.stats


def _fooling(net: Dcgan, discriminator: Variables, fake: Array) -> Array:
    """The generator's loss."""
    return generator_loss(net.judge(discriminator, fake, train=True)[0])


def noise(key: Key, count: int, net: Dcgan) -> Array:
    """What a generator begins with, `Float32[count, Z]`."""
    return jax.random.normal(key, (count, net.latent), jnp.float32)
