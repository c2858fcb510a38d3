"""A DCGAN: a generator that makes images from noise, and a discriminator that tells them from real images."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float

from fedjax_bal.models import convolution as convolutions
from fedjax_bal.models.generator import PADS, SLOPE, doubled_twice, doubling, pure_functions
from fedjax_bal.models.layers import Convolution, Real, dense_product, flatten
from fedjax_bal.models.normalization import BatchNorm
from fedjax_bal.types import Key, Variables
from fedjax_bal.validate import whole_number

narrow_normal = initializers.normal(0.02)
"""Normal of deviation 0.02, for all weights but those of normalisations."""


class Dcgan(NamedTuple):
    """Generator and discriminator, as pure functions.

    Attributes:
        init: `init(key) -> (generator, discriminator)`, the `Variables` of both.
        generate: `generate(generator, latents, *, train) -> (images, Variables)` for standard normal noise
            `Float[B, Z]`, to images `Float[B, H, W, K]` with values from -1 to 1; in training with the statistics of
            this batch, which update the running ones.
        judge: `judge(discriminator, images, *, train, real=None) -> (logits, Variables)` for images `Float[B, H, W, K]`
            with values from -1 to 1, to `Float[B]`, above 0 for images taken for real; `real: Bool[B]` marks the rows
            that may enter batch statistics, None for all.
        latent: Z, the length of the noise.
        image_shape: `(H, W, K)`.
    """

    init: Callable[[Key], tuple[Variables, Variables]]
    generate: Callable[..., tuple[Array, Variables]]
    judge: Callable[..., tuple[Array, Variables]]
    latent: int
    image_shape: tuple[int, ...]


def build_dcgan(image_shape: tuple[int, ...], width: int = 128, latent: int = 100, convolution: str = "fast") -> Dcgan:
    """Builds a DCGAN.

    With h = H / 4, w = W / 4 and c channels the generator has Z h w c + 2 c + 16 c (c/2) + 2 (c/2) + 16 (c/2) K + K
    parameters, the discriminator 16 K (c/2) + c/2 + 16 (c/2) c + 2 c + h w c + 1: 953,731 and 142,657 by default for
    32x32x3 images.

    A layer has a bias unless a normalisation follows. Without biases, a discriminator that normalises fake images
    separately sees neither their brightness nor their contrast, and a generator of uniform grey deceives it.

    Args:
        image_shape: `(H, W, K)`, height and width in pixels, multiples of 4, then channels.
        width: channels of the maps at a quarter of the image's side; those at half the side have half as many.
        latent: Z, the length of the noise.
        convolution: as in `fedjax_bal.models.build`: "fast", or "plain", which has second derivatives.

    Returns:
        Both networks as pure functions.

    Raises:
        ValueError: impossible sizes, an unknown convolution, and, from `generate` and `judge`, noise or images of
            another shape.

    Example:
        >>> gan = build_dcgan((8, 8, 1), width=4, latent=3)
        >>> generator, discriminator = jax.jit(gan.init)(jax.random.key(0))
        >>> images, _ = jax.jit(gan.generate, static_argnames="train")(generator, jnp.ones((2, 3)), train=False)
        >>> logits, _ = jax.jit(gan.judge, static_argnames="train")(discriminator, images, train=False)
        >>> images.shape, logits.shape
        ((2, 8, 8, 1), (2,))

    References:
        Radford, Metz and Chintala, "Unsupervised Representation Learning with Deep Convolutional Generative Adversarial
        Networks", ICLR 2016, section 3: strides in place of pooling, batch normalisation but for the generator's last
        and the discriminator's first layer, ReLU and tanh there, leaky ReLU of slope 0.2 here, weights normal of
        deviation 0.02. They make images of 64 pixels by four doublings; images of 28 and 32 take two here.
    """
    whole_number("latent", latent)
    whole_number("width", width, 2)
    shape = doubled_twice(image_shape, "a DCGAN")
    convolve = convolutions.of_name(convolution)
    start_generator, generate = _pure_functions(_Generator(shape, width, convolve), "latents", (latent,))
    start_discriminator, judge = _pure_functions(_Discriminator(width, convolve), "images", shape)

    def init(key: Key) -> tuple[Variables, Variables]:
        first, second = jax.random.split(key)
        return start_generator(first), start_discriminator(second)

    # Plain functions of two sets of variables, so that a training loop can carry and differentiate them separately.
    return Dcgan(init, generate, judge, latent, shape)


def _pure_functions(network: nn.Module, name: str, shape: tuple[int, ...]) -> tuple[Callable, Callable]:
    def check(rows: Array) -> None:
        if rows.shape[1:] != shape:
            wanted = ", ".join(map(str, ("B", *shape)))
            raise ValueError(f"{name}: received shape {rows.shape}, must be [{wanted}]")

    return pure_functions(network, check, jax.ShapeDtypeStruct((1, *shape), jnp.float32))


class _Generator(nn.Module):
    """A dense layer to maps of a quarter of the side, two transposed convolutions that double it, tanh."""

    image_shape: tuple[int, int, int]
    width: int
    convolve: Convolution

    @nn.compact
    def __call__(self, latents: Float[Array, "B Z"], real: Real = None, *, train: bool) -> Float[Array, "B H W K"]:
        height, width, channels = self.image_shape
        doubled = doubling(self.convolve)
        maps = _dense(self.width * (height // 4) * (width // 4), "dense")(latents)
        maps = maps.reshape(-1, height // 4, width // 4, self.width)
        maps = nn.relu(BatchNorm(name="norm_0")(maps, real, train=train))
        maps = _conv(self.width // 2, 1, doubled, "conv_0")(maps)
        maps = nn.relu(BatchNorm(name="norm_1")(maps, real, train=train))
        return jnp.tanh(_conv(channels, 1, doubled, "conv_1", bias=True)(maps))


class _Discriminator(nn.Module):
    """Two convolutions that halve the side, and a dense layer to one number."""

    width: int
    convolve: Convolution

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real = None, *, train: bool) -> Float[Array, " B"]:
        # As in the DCGAN paper, there is no batch normalisation next to the images, here and in the generator: it made
        # training unstable.
        maps = nn.leaky_relu(_conv(self.width // 2, 2, self.convolve, "conv_0", bias=True)(images), SLOPE)
        maps = _conv(self.width, 2, self.convolve, "conv_1")(maps)
        maps = nn.leaky_relu(BatchNorm(name="norm_1")(maps, real, train=train), SLOPE)
        return _dense(1, "dense", bias=True)(flatten(maps))[:, 0]


def _dense(outputs: int, name: str, bias: bool = False) -> nn.Dense:
    return nn.Dense(outputs, use_bias=bias, kernel_init=narrow_normal, dot_general=dense_product, name=name)


def _conv(outputs: int, stride: int, convolve: Callable[..., Array], name: str, bias: bool = False) -> nn.Conv:
    """Makes a convolution of 4x4 kernels."""
    return nn.Conv(
        outputs,
        (4, 4),
        (stride, stride),
        PADS,
        use_bias=bias,
        kernel_init=narrow_normal,
        conv_general_dilated=convolve,
        name=name,
    )
