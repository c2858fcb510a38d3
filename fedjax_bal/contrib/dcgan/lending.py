"""The part that trains and lends DCGANs, and the recipe of CBFL with their images."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from annotated_types import Ge
from jax import lax

from fedjax_bal.annotations import Count, CountOrZero, NonNegative, Seed
from fedjax_bal.contrib.dcgan.network import Dcgan, build_dcgan
from fedjax_bal.data import MAX_ROWS, available_bytes, gather, normalised
from fedjax_bal.methods.needs import without_other
from fedjax_bal.parts import CheckContext, Fakes, Need, Part, PrivateMean, part, static
from fedjax_bal.recipes import Recipe, cbfl
from fedjax_bal.types import Array, Context, Federation, Key, PyTree, Variables


def discriminator_loss(real: Array, fake: Array) -> Array:
    """Returns the discriminator's mean cross-entropy on real images plus that on fakes, in nats, from its logits."""
    return jax.nn.softplus(-real).mean() + jax.nn.softplus(fake).mean()


def generator_loss(fake: Array) -> Array:
    """Returns the mean cross-entropy of the fakes' logits with the label "real", in nats: the non-saturating form."""
    return jax.nn.softplus(-fake).mean()


def train_dcgan(
    key: Key, net: Dcgan, draw: Callable[[Key], Array], *, iterations: int, batch_size: int, rate: float
) -> tuple[tuple[Variables, Variables], Array]:
    """Trains a new DCGAN with Adam at betas (0.5, 0.999), as Radford, Metz and Chintala (ICLR 2016) do.

    Each step draws noise and, by `draw`, real images with values from -1 to 1. The discriminator is updated first, with
    separate batch statistics for real images and fakes, then the generator on the same noise.

    Returns:
        The variables of generator and discriminator, and the losses of discriminator and generator in each step,
        `Float[iterations, 2]`.
    """
    optimizer = optax.adam(rate, b1=0.5, b2=0.999)

    def update(variables: Variables, state: PyTree, grads: PyTree, stats: PyTree) -> tuple[Variables, PyTree]:
        updates, state = optimizer.update(grads, state, variables.params)
        return Variables(optax.apply_updates(variables.params, updates), stats), state

    def step(carry: PyTree, index: Array) -> tuple[PyTree, Array]:
        generator, discriminator, generator_state, discriminator_state = carry
        row_key, noise_key = jax.random.split(jax.random.fold_in(key, index))
        latents = noise(noise_key, batch_size, net)

        def generate(params: PyTree) -> tuple[Array, PyTree]:
            images, after = net.generate(generator._replace(params=params), latents, train=True)
            return images, after.stats

        fakes, pull_back, stats = jax.vjp(generate, generator.params, has_aux=True)
        real = draw(row_key)

        def discriminate(params: PyTree) -> tuple[Array, PyTree]:
            of_real, after = net.judge(discriminator._replace(params=params), real, train=True)
            of_fake, after = net.judge(after, fakes, train=True)
            return discriminator_loss(of_real, of_fake), after.stats

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
    """Draws a generator's input, `Float32[count, Z]`."""
    return jax.random.normal(key, (count, net.latent), jnp.float32)


POOL = "dcgan"
"""The name of the auxiliary set with the rows of each client's DCGAN."""


NONE = -1
"""The label of a generated image, and the row number of a client without images."""


_BYTES = 255.0


def lending_law(class_counts: Array, labels: Array, client: Array) -> Array:
    """Computes the probability of borrowing a fake of each given class from each other client, `Float[A, N]`.

    It is proportional to the other clients' numbers of images of the class. If no other client holds the class, all
    other clients with images are equally likely.

    Example:
        >>> counts = jnp.array([[5, 5], [3, 0], [1, 0], [0, 0]])
        >>> lending_law(counts, jnp.array([0, 1]), 0).tolist()
        [[0.0, 0.75, 0.25, 0.0], [0.0, 0.5, 0.5, 0.0]]
    """
    others = jnp.arange(len(class_counts)) != client
    held = jnp.where(others, class_counts[:, labels].T, 0)
    anything = others & (class_counts.sum(1) > 0)
    weights = jnp.where(held.sum(1, keepdims=True) > 0, held, anything)
    return weights / jnp.maximum(weights.sum(1, keepdims=True), 1)


def borrow_images(key: Key, labels: Array, ctx: Context) -> Array:
    """Draws normalised images made by other clients' DCGANs, one for each label, `Float[A, H, W, K]`."""
    federation = ctx.federation
    if POOL not in federation.auxiliary:
        raise ValueError("fakes: received a federation without DCGANs' images; put SharedDcgans into the recipe")
    lender_key, image_key = jax.random.split(key)
    pools = jnp.asarray(federation.auxiliary[POOL]).reshape(federation.num_clients, -1)
    law = lending_law(jnp.asarray(federation.class_counts), labels, ctx.client)
    lenders = jax.random.categorical(lender_key, jnp.log(law))
    rows = pools[lenders, jax.random.randint(image_key, labels.shape, 0, pools.shape[1])]
    return normalised(federation.images.at[rows].get(mode="clip"), federation.mean, federation.std)


@part
class SharedDcgans(Part):
    """Trains a DCGAN on every client's own rows, before the first round, and lends its images to all other clients.

    A DCGAN is unconditional: it can't generate a given class. For a fake of a class, a sampler picks one of the clients
    that hold the class, see `lending_law`; the class that the image shows is left to chance.

    Each client lends `pool` images, made once by its network, instead of the network. The fakes of a mini-batch come
    from many clients; generating them in the local step would take up to 70 networks and a quarter of a gigabyte of
    weights. Drawing images from a pool costs no time in a round. In return fakes recur and take memory: the pool of 100
    clients, 256 images each, is half as large as CIFAR-10.

    The images are appended to the federation's and have their type: bytes are rounded, floats lie between the lowest
    and the highest value of the client's own. Clients' rows and counts don't change. The auxiliary set "dcgan",
    `Int32[N * pool]`, lists each client's images in order of clients, with -1 for clients without rows, which train and
    lend nothing. A client's DCGAN depends only on its number, its rows (copies included) and the seed; all seeds of a
    run share it. It is trained whenever a simulation is built, one client after another. The single exchange of
    networks isn't counted as traffic.

    Attributes:
        iterations: steps of the optimizers.
        pool: number of images that each DCGAN makes.
        batch_size: images per step, drawn with replacement from the client's rows.
        rate: Adam's learning rate.
        width: see `build_dcgan`.
        latent: length of the noise.
        seed: seeds initial weights, noise and batches, from 0 to 2**32 - 1.

    References:
        CBFL (Li et al., 2023), section 6.2 and Table 5, which state neither the architecture nor any constant, nor
        whose DCGAN a client uses. Radford, Metz and Chintala, ICLR 2016, for the networks and the optimizer.
    """

    iterations: int = static(2000)
    pool: int = static(256)
    batch_size: int = static(64)
    rate: float = static(0.0002)
    width: int = static(128)
    latent: int = static(100)
    seed: int = static(0)

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that clients needn't hide their rows from each other."""
        why = "but clients see images that are learned from others' rows without noise"
        return (without_other("shared DCGANs", self, PrivateMean, because=why),)

    def check(self, context: CheckContext) -> None:
        """Rejects a federation in which no client can borrow from another one."""
        holders = np.count_nonzero(context.federation.sizes)
        if holders < 2:
            raise ValueError(
                f"shared DCGANs: received a federation in which {holders} of {context.federation.num_clients} clients "
                "have rows, must be at least 2, as no client takes fakes from its own DCGAN: partition for more clients"
            )

    def prepare_federation(self, federation: Federation) -> Federation:
        """Returns the federation with all DCGANs' images."""
        if POOL in federation.auxiliary:
            raise ValueError("shared DCGANs: received a federation that has their images; enlarge the original one")
        build_dcgan(tuple(federation.images.shape[1:]), self.width, self.latent)
        holders = np.flatnonzero(federation.sizes)
        _check_room(federation, len(holders) * self.pool)
        rows = np.full((federation.num_clients, self.pool), NONE, np.int32)
        rows[holders] = len(federation.images) + np.arange(len(holders) * self.pool).reshape(-1, self.pool)
        labels = np.asarray(federation.labels)

        # The images, followed by those that each holder's DCGAN makes.
        images = np.asarray(federation.images)
        larger = np.empty((len(images) + len(holders) * self.pool, *images.shape[1:]), images.dtype)
        larger[: len(images)] = images
        plain = jax.tree.map(jnp.asarray, federation.without_names()._replace(images=images, auxiliary={}))
        key = jax.random.key(self.seed)
        unseeded = dataclasses.replace(self, seed=0)  # one program for all seeds
        for place, client in enumerate(holders):
            begin = len(images) + place * self.pool
            own = federation.rows[federation.offsets[client] : federation.offsets[client + 1]]
            made = _make_pool(unseeded, plain, key, client, *_range(images, own))
            larger[begin : begin + self.pool] = np.asarray(made)
        return federation._replace(
            images=larger,
            labels=np.concatenate([labels, np.full(len(holders) * self.pool, NONE, labels.dtype)]),
            auxiliary={**federation.auxiliary, POOL: rows.reshape(-1)},
        )


def _check_room(federation: Federation, count: int) -> None:
    """Rejects more images than can be numbered, or than fit into memory, before any is made."""
    own = len(federation.images)
    fewer = "ask for a smaller pool"
    if own + count > MAX_ROWS:
        raise ValueError(f"pool: {count:,} images make {own + count:,} rows; at most {MAX_ROWS} are supported: {fewer}")
    image = int(np.prod(federation.images.shape[1:])) * federation.images.dtype.itemsize
    needed = (2 * own + count) * image
    free = available_bytes()  # the old images count twice, as training the DCGANs reads a copy
    if free is not None and needed > free:
        raise ValueError(
            f"pool: {count:,} images take {count * image / 1e9:.3g} GB; with all else that making them takes it is "
            f"{needed / 1e9:.3g} GB, but {free / 1e9:.3g} GB are free: {fewer}"
        )


def _range(images: np.ndarray, rows: np.ndarray) -> tuple[Any, Any]:
    """Returns the values that are mapped to -1 and 1; bytes are already scaled to [0, 1]."""
    if images.dtype == np.uint8:
        return np.float32(0), np.float32(1)
    low = np.float32(images[rows].min())
    high = np.float32(images[rows].max())
    return low, high if high > low else low + np.float32(1)


@partial(jax.jit, static_argnums=0)
def _make_pool(part: SharedDcgans, federation: Federation, key: Key, client: Array, low: Array, high: Array) -> Array:
    """Trains one client's DCGAN and makes its images, `[pool, H, W, K]` of the type of the federation's images."""
    key = jax.random.fold_in(key, client)
    net = build_dcgan(federation.images.shape[1:], part.width, part.latent)

    def draw(key: Key) -> Array:
        # To the range of tanh.
        return 2 * (_draw_images(key, federation, client, part.batch_size) - low) / (high - low) - 1

    sizes = {"iterations": part.iterations, "batch_size": part.batch_size, "rate": part.rate}
    (generator, _), _ = train_dcgan(key, net, draw, **sizes)
    latents = noise(jax.random.fold_in(key, part.iterations + 1), part.pool, net)
    images, _ = net.generate(generator, latents, train=False)
    pixels = (images + 1) / 2 * (high - low) + low
    whole = federation.images.dtype == jnp.uint8
    return (jnp.round(_BYTES * pixels) if whole else pixels).astype(federation.images.dtype)


def _draw_images(key: Key, federation: Federation, client: Array, count: int) -> Array:
    """Draws images of a client with replacement: bytes scaled to [0, 1], floats unchanged."""
    first = federation.offsets[client]
    end = federation.offsets[client + 1]
    positions = jax.random.randint(key, (count,), first, end)
    batch = gather(federation, positions, jnp.ones(count, bool))
    return batch.images * federation.std + federation.mean


def cbfl_dcgan(
    warm_up: CountOrZero = 700,
    labels: Literal["balanced", "uniform", "rarest"] = "balanced",
    rarest: Count | None = None,
    learn: Literal["distillation", "cross_entropy"] = "distillation",
    fakes: Count = 70,
    weight: NonNegative = 1.0,
    distillation: NonNegative = 1.0,
    attention: NonNegative = 400.0,
    temperature: float = 5.0,
    direction: Literal["teacher_student", "student_teacher"] = "teacher_student",
    width: Annotated[int, Ge(2)] = 128,
    latent: Count = 100,
    iterations: CountOrZero = 2000,
    pool: Count = 256,
    seed: Seed = 0,
) -> Recipe:
    """CBFL with images of DCGANs that clients train on their own data before the first round and lend to all others.

    Args:
        warm_up: as in `cbfl`, like all options up to `direction`.
        labels: labels of the fakes.
        rarest: number of classes, with labels of "rarest".
        learn: the student's targets on fakes.
        fakes: number of fakes per mini-batch.
        weight: lambda, weight of the loss on fakes.
        distillation: weight of the distillation in this loss.
        attention: beta, weight of the attention transfer in this loss.
        temperature: T of the distillation.
        direction: direction of its divergence.
        width: a DCGAN's channels.
        latent: length of its noise.
        iterations: its steps.
        pool: number of images that it makes, from which fakes are drawn.
        seed: seeds the DCGANs, from 0 to 2**32 - 1; all seeds of a run share them.

    Example:
        >>> [type(part).__name__ for part in cbfl_dcgan().parts]
        ['SharedDcgans', 'Fakes']

    References:
        CBFL (Li et al., 2023), section 6.2 and Table 5, without details of the DCGANs; `SharedDcgans` documents the
        choices made here. Lending DCGANs isn't counted as traffic.
    """
    noise = cbfl(
        warm_up=warm_up, generator="gaussian", labels=labels, rarest=rarest, learn=learn, fakes=fakes, weight=weight,
        distillation=distillation, attention=attention, temperature=temperature, direction=direction, width=width,
        latent=latent,
    )  # fmt: skip
    borrowed = [dataclasses.replace(part, images=borrow_images) for part in noise.parts if isinstance(part, Fakes)]
    return Recipe("cbfl_dcgan", (SharedDcgans(iterations, pool, width=width, latent=latent, seed=seed), *borrowed))
