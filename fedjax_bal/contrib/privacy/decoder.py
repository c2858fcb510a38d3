"""Attacks that learn to invert features: decoders trained on the attacker's own images; helpers of all attacks."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from annotated_types import Ge
from jax import lax
from jaxtyping import Array, Float

from fedjax_bal.annotations import Count, NonNegative, checked
from fedjax_bal.models import convolution as convolutions
from fedjax_bal.models.generator import doubled_twice, enlarging
from fedjax_bal.models.layers import Conv, Linear, flatten
from fedjax_bal.types import Key, Model, PyTree, Variables
from fedjax_bal.validate import whole_number

Width = Annotated[Count, Ge(2)]

SLOPE = 0.2


class Upwards(nn.Module):
    """A dense layer to maps of a quarter of the side, two doublings with a convolution each, and a last convolution.

    Activations are leaky rectifiers, except for the last layer: normalised pixels have no fixed bounds. Batch
    normalisation is left out, because it would make an image depend on the others of its batch.

    Attributes:
        image_shape: `(H, W, K)`, H and W multiples of 4.
        width: channels of the first two stages; the third has half as many.
    """

    image_shape: tuple[int, ...]
    width: int

    @nn.compact
    def __call__(self, vectors: Float[Array, "B Z"]) -> Float[Array, "B H W K"]:
        """Returns the images of vectors."""
        height, width, channels = self.image_shape
        convolve = convolutions.of_name("fast")
        doubled = enlarging(convolve)
        maps = nn.leaky_relu(Linear(self.width * (height // 4) * (width // 4), name="dense")(vectors), SLOPE)
        maps = maps.reshape(-1, height // 4, width // 4, self.width)
        for stage, outputs in enumerate((self.width, self.width // 2)):
            maps = nn.leaky_relu(Conv(outputs, 3, 1, doubled, name=f"conv_{stage}")(maps), SLOPE)
        return Conv(channels, 3, 1, convolve, name="conv_2")(maps)


class Encoder(nn.Module):
    """Two convolutions that halve the side, then a dense layer to mean and log variance of a normal distribution.

    Attributes:
        latent: Z.
        width: channels of the second convolution; the first has half as many.
    """

    latent: int
    width: int

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"]) -> tuple[Float[Array, "B Z"], Float[Array, "B Z"]]:
        """Returns mean and log variance of each image."""
        maps = images
        convolve = convolutions.of_name("fast")
        for stage, outputs in enumerate((self.width // 2, self.width)):
            maps = nn.leaky_relu(Conv(outputs, 3, 1, convolve, stride=2, name=f"conv_{stage}")(maps), SLOPE)
        mean, log_var = jnp.split(Linear(2 * self.latent, name="dense")(flatten(maps)), 2, axis=-1)
        return mean, log_var


class Decoder(nn.Module):
    """A network from features, and from latent vectors if it uses them, to images.

    Attributes:
        image_shape: `(H, W, K)`.
        width: channels of its first stages.
        latent: Z, the length of a latent vector, encoded from the image in training; 0 for "upcnn", which has none.
    """

    image_shape: tuple[int, ...]
    width: int
    latent: int

    def setup(self) -> None:
        """Creates the networks."""
        self.upwards = Upwards(self.image_shape, self.width)
        if self.latent:
            self.encoder = Encoder(self.latent, self.width)

    def __call__(self, features: Array, images: Array, noise: Array) -> Array:
        """Returns the loss, `[]`."""
        if not self.latent:
            return ((self.decode(features, noise) - images) ** 2).mean()
        mean, log_var = self.encoder(images)
        decoded = self.decode(features, mean + jnp.exp(log_var / 2) * noise)
        squares = ((decoded - images) ** 2).sum((1, 2, 3))
        return (squares / 2 + kl_to_standard_normal(mean, log_var)).mean()

    def decode(self, features: Array, latents: Array) -> Array:
        """Returns images `[B, H, W, K]`."""
        return self.upwards(jnp.concatenate([features, latents], -1))


class FittedDecoder(NamedTuple):
    """A trained decoder.

    Attributes:
        decoder: its network.
        variables: its parameters; `stats` has the mean feature `[F]` and the spread `[]` that standardise features.
        losses: the loss of each step's batch, `[iterations]`: squared pixels for "upcnn", nats an image for "vae".
    """

    decoder: Decoder
    variables: Variables
    losses: Float[Array, " iterations"]


@checked
def fit_decoder(
    key: Key,
    model: Model,
    variables: Variables,
    images: Float[Array, "A H W K"],
    *,
    kind: Literal["upcnn", "vae"] = "upcnn",
    iterations: Count = 2000,
    batch_size: Count = 64,
    rate: NonNegative = 1e-3,
    width: Width = 64,
    latent: Count = 32,
) -> FittedDecoder:
    r"""Trains a decoder to reconstruct images from their features under a frozen model.

    The model is in evaluation mode. With f the features of an image x,

    - `"upcnn"` minimises the mean squared error of the image that its network computes from f;
    - `"vae"`, a conditional variational autoencoder, draws z from the normal distribution whose mean and variance an
      encoder computes from x, and minimises $\frac12 \|\hat x(f, z) - x\|^2 + KL$ to the standard normal distribution,
      the negative evidence bound for pixels of variance 1. Information in f need not pass through z, so without x the
      decoder shows what f alone reveals at z = 0, and the alternatives at z drawn from the standard normal
      distribution.

    Features are centred and divided by their root mean square over all images and features. Each step draws a batch
    with replacement and updates with Adam, whose learning rate falls to 0 along half a cosine.

    Args:
        key: the key of initial weights, batches and latent vectors.
        model: the model under attack.
        variables: the model's variables, which are not changed.
        images: the attacker's own, `[A, H, W, K]`, normalised, H and W multiples of 4; disjoint from the images under
            attack, which the decoder must not have seen.
        kind: "upcnn" or "vae".
        iterations: number of steps.
        batch_size: images per step.
        rate: Adam's learning rate at the first step.
        width: channels of the decoder's first two stages; an integer of at least 2.
        latent: Z, the length of the latent vector; ignored by "upcnn".

    Returns:
        The decoder, for `decode`.

    Raises:
        ValueError: an unknown kind, images of another shape than the model's or with sides that are not multiples of 4,
            or a number out of range.

    Example:
        >>> from fedjax_bal.models import build
        >>> model = build("tiny_bn", 3, (8, 8, 1))
        >>> variables, key = model.init(jax.random.key(0)), jax.random.key(1)
        >>> images = jax.random.normal(key, (20, 8, 8, 1))
        >>> fitted = fit_decoder(key, model, variables, images, iterations=3, batch_size=4, width=4)
        >>> decode(fitted, features_of(model, variables, images[:2])).shape
        (2, 8, 8, 1)

    References:
        ReBaFL (Xu et al., 2023), section 5.6, names the attacks without sizes or settings, so these are ours:
        Dosovitskiy and Brox, "Inverting Visual Representations with Convolutional Networks", CVPR 2016, and Kingma and
        Welling, "Auto-Encoding Variational Bayes", ICLR 2014, made conditional as in Sohn et al., "Learning Structured
        Output Representation using Deep Conditional Generative Models", NeurIPS 2015, with a prior that is the same
        for all features. Dosovitskiy and Brox enlarge with zeros between pixels and 5x5 convolutions; here pixels are
        repeated and convolved with 3x3, which leaves no chequered pattern. They have three dense layers before 4096
        features; here there is one.
    """
    check_images(model, images)
    check_sides(model.input_shape)
    decoder = Decoder(model.input_shape, width, latent if kind == "vae" else 0)
    fitted, losses = _fit(key, decoder, model, variables, jnp.asarray(images), iterations, batch_size, rate)
    return FittedDecoder(decoder, fitted, losses)


def decode(fitted: FittedDecoder, features: Float[Array, "M F"], key: Key | None = None) -> Float[Array, "M H W K"]:
    """Decodes features to images.

    Args:
        fitted: from `fit_decoder`.
        features: `[M, F]`, of images or class prototypes.
        key: draws the latent vector of each image from the standard normal distribution; None uses its mean, 0. Ignored
            by "upcnn".

    Returns:
        `[M, H, W, K]`, normalised; values may exceed the range of pixels.

    Raises:
        ValueError: features have another length than those that the decoder was trained on.
    """
    length = fitted.variables.stats["mean"].shape[0]
    if len(features.shape) != 2 or features.shape[1] != length:
        raise ValueError(
            f"features: received shape {tuple(features.shape)}, must be (M, {length}): the features of the model that "
            "the decoder was trained on"
        )
    shape = (features.shape[0], fitted.decoder.latent)
    latents = jnp.zeros(shape) if key is None else jax.random.normal(key, shape)
    return _decode(fitted.decoder, fitted.variables, jnp.asarray(features), latents)


def kl_to_standard_normal(mean: Float[Array, "B Z"], log_var: Float[Array, "B Z"]) -> Float[Array, " B"]:
    r"""Computes the divergence of normal distributions with independent components from the standard normal one.

    $KL = \frac12 \sum_z (\mu_z^2 + \sigma_z^2 - 1 - \log \sigma_z^2)$.

    Args:
        mean: $\mu$, `[B, Z]`.
        log_var: $\log \sigma^2$, `[B, Z]`.

    Returns:
        Nats, `[B]`; not negative.

    Example:
        >>> kl_to_standard_normal(jnp.array([[0.0, 0.0], [1.0, 2.0]]), jnp.zeros((2, 2))).tolist()
        [0.0, 2.5]

    References:
        Kingma and Welling, "Auto-Encoding Variational Bayes", ICLR 2014, appendix B.
    """
    return (mean**2 + jnp.exp(log_var) - 1 - log_var).sum(-1) / 2


@partial(jax.jit, static_argnames=("decoder", "model", "iterations", "batch_size"))
def _fit(
    key: Key,
    decoder: Decoder,
    model: Model,
    variables: Variables,
    images: Array,
    iterations: int,
    batch_size: int,
    rate: float,
) -> tuple[Variables, Array]:
    init_key, step_key = jax.random.split(key)
    features = features_of(model, variables, images)
    mean = features.mean(0)
    spread = jnp.sqrt(((features - mean) ** 2).mean())
    spread = jnp.where(spread > 0, spread, 1.0)
    features = (features - mean) / spread
    noiseless = jnp.zeros((1, decoder.latent))

    def loss(params: PyTree, index: Array) -> tuple[Array, Array]:
        row_key, noise_key = jax.random.split(jax.random.fold_in(step_key, index))
        rows = jax.random.randint(row_key, (batch_size,), 0, len(images))
        noise = jax.random.normal(noise_key, (batch_size, decoder.latent))
        value = jnp.asarray(decoder.apply({"params": params}, features[rows], images[rows], noise))
        return value, value

    start = decoder.init(init_key, features[:1], images[:1], noiseless)["params"]
    params, losses = minimise(loss, start, iterations, rate)
    return Variables(params, {"mean": mean, "spread": spread}), losses


@partial(jax.jit, static_argnames="decoder")
def _decode(decoder: Decoder, variables: Variables, features: Array, latents: Array) -> Array:
    standard = (features - variables.stats["mean"]) / variables.stats["spread"]
    return jnp.asarray(decoder.apply({"params": variables.params}, standard, latents, method="decode"))


@partial(jax.jit, static_argnames=("model", "chunk"))
def features_of(
    model: Model, variables: Variables, images: Float[Array, "A H W K"], *, chunk: int = 256
) -> Float[Array, "A F"]:
    """Computes features `[A, F]` of images under a model in evaluation mode, in chunks.

    `fedjax_bal.balance.class_prototypes` of them are the prototypes that a ReBaFL client with these images sends.

    Args:
        model: the model.
        variables: the model's variables, which are not changed.
        images: `[A, H, W, K]`, normalised.
        chunk: images per chunk.

    Raises:
        ValueError: images of another shape than the model's, or none; a chunk that is not a positive integer.

    Example:
        >>> from fedjax_bal.models import build
        >>> model = build("tiny_bn", 3, (8, 8, 1))
        >>> features_of(model, model.init(jax.random.key(0)), jnp.ones((5, 8, 8, 1)), chunk=2).shape
        (5, 64)
    """
    whole_number("chunk", chunk)
    check_images(model, images)
    count = len(images)
    chunk = min(chunk, count)
    padded = jnp.pad(images, ((0, -count % chunk), (0, 0), (0, 0), (0, 0)))
    parts = padded.reshape(-1, chunk, *model.input_shape)
    seen = lax.map(lambda part: model.apply(variables, part, train=False)[0].features, parts)
    return seen.reshape(-1, seen.shape[-1])[:count]


def check_images(model: Model, images: Array) -> None:
    """Raises `ValueError` unless there are images, of the model's shape."""
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[1:] != tuple(model.input_shape) or not shape[0]:
        raise ValueError(
            f"images: received shape {shape}, must be (A, {', '.join(map(str, model.input_shape))}) with A of at least "
            f"1, what the model {model.name} was built for"
        )


def check_sides(image_shape: tuple[int, ...]) -> None:
    """Raises `ValueError` unless height and width of `(H, W, K)` are multiples of 4, for the two doublings."""
    doubled_twice(image_shape, "an attack's network")


def minimise(
    loss: Callable[[PyTree, Array], tuple[Array, Array]], params: PyTree, iterations: int, rate: float | Array
) -> tuple[PyTree, Array]:
    """Minimises `loss(params, index) -> (value, report)` with Adam; the rate falls to 0 along half a cosine.

    Returns the last parameters, and the report before each step, `[iterations, ...]`.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, iterations))

    def step(carry: tuple[PyTree, PyTree], index: Array) -> tuple[tuple[PyTree, PyTree], Array]:
        params, state = carry
        grads, report = jax.grad(loss, has_aux=True)(params, index)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), report

    (params, _), reports = lax.scan(step, (params, optimizer.init(params)), jnp.arange(iterations))
    return params, reports
