"""Trains the two networks of a DCGAN, generator and discriminator, against each other."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.models import Dcgan
from fedjax_bal.types import Array, Key, PyTree, Variables


def discriminator_loss(real: Array, fake: Array) -> Array:
    """Mean cross-entropy of the logits of real images taken for real plus that of fakes taken for fakes, in nats."""
    return jax.nn.softplus(-real).mean() + jax.nn.softplus(fake).mean()


def generator_loss(fake: Array) -> Array:
    """Mean cross-entropy of the logits of fakes taken for real, in nats: the form that does not saturate."""
    return jax.nn.softplus(-fake).mean()


def train_dcgan(
    key: Key, net: Dcgan, draw: Callable[[Key], Array], *, iterations: int, batch_size: int, rate: float
) -> tuple[tuple[Variables, Variables], Array]:
    """Trains a new DCGAN with Adam at betas (0.5, 0.999), as Radford, Metz and Chintala (ICLR 2016) do.

    Each step draws real images, by `draw`, with values from -1 to 1, and noise. The discriminator moves first, with
    batch statistics of real images and of fakes apart, then the generator on the same noise.

    Returns:
        The variables of generator and discriminator, and their losses before each step: the discriminator's and the
        generator's, `Float[iterations, 2]`.
    """
    optimizer = optax.adam(rate, b1=0.5, b2=0.999)

    def update(variables: Variables, state: PyTree, grads: PyTree, stats: PyTree) -> tuple[Variables, PyTree]:
        updates, state = optimizer.update(grads, state, variables.params)
        return Variables(optax.apply_updates(variables.params, updates), stats), state

    def step(carry: PyTree, index: Array) -> tuple[PyTree, Array]:
        generator, discriminator, generator_state, discriminator_state = carry
        row_key, noise_key = jax.random.split(jax.random.fold_in(key, index))
        generate = partial(_generate, net, generator.stats, noise(noise_key, batch_size, net))
        fakes, pull_back, stats = jax.vjp(generate, generator.params, has_aux=True)
        discriminate = partial(_discriminate, net, discriminator.stats, draw(row_key), fakes)
        (loss, seen), grads = jax.value_and_grad(discriminate, has_aux=True)(discriminator.params)
        discriminator, discriminator_state = update(discriminator, discriminator_state, grads, seen)
        judge = lambda images: generator_loss(net.judge(discriminator, images, train=True)[0])
        own_loss, slope = jax.value_and_grad(judge)(fakes)
        generator, generator_state = update(generator, generator_state, pull_back(slope)[0], stats)
        return (generator, discriminator, generator_state, discriminator_state), jnp.stack([loss, own_loss])

    generator, discriminator = net.init(jax.random.fold_in(key, iterations))
    start = generator, discriminator, optimizer.init(generator.params), optimizer.init(discriminator.params)
    (generator, discriminator, *_), losses = lax.scan(step, start, jnp.arange(iterations))
    return (generator, discriminator), losses


def noise(key: Key, count: int, net: Dcgan) -> Array:
    """The input of a generator, `Float32[count, Z]`."""
    return jax.random.normal(key, (count, net.latent), jnp.float32)


def _generate(net: Dcgan, stats: PyTree, latents: Array, params: PyTree) -> tuple[Array, PyTree]:
    """Fakes, and the generator's new statistics."""
    images, after = net.generate(Variables(params, stats), latents, train=True)
    return images, after.stats


def _discriminate(net: Dcgan, stats: PyTree, real: Array, fake: Array, params: PyTree) -> tuple[Array, PyTree]:
    """The discriminator's loss, and its new statistics."""
    of_real, after = net.judge(Variables(params, stats), real, train=True)
    of_fake, after = net.judge(after, fake, train=True)
    return discriminator_loss(of_real, of_fake), after.stats
