"""CBFL's generator, from noise and a class to an image."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers
from jaxtyping import Array, Float, Int

from fedjax_bal.models import convolution as convolutions
from fedjax_bal.models.image_networks import doubled_twice, enlarging, pure_functions
from fedjax_bal.models.layers import Conv, Convolution, Linear
from fedjax_bal.models.normalization import BatchNorm
from fedjax_bal.types import Key, Variables
from fedjax_bal.validate import whole_number

SLOPE = 0.2
LARGE_EPSILON = 0.8


class Generator(NamedTuple):
    """A network from noise and classes to images, as pure functions.

    Attributes:
        init: `init(key) -> Variables`.
        apply: `apply(variables, latents, labels, *, train) -> (images, Variables)` for standard normal noise
            `Float[B, Z]` and labels `Int[B]`, to normalised images `Float[B, H, W, K]`; in training with the statistics
            of this batch, which update the running ones.
        num_classes: C.
        latent: Z, the length of the noise.
        image_shape: `(H, W, K)`.
    """

    init: Callable[[Key], Variables]
    apply: Callable[..., tuple[Array, Variables]]
    num_classes: int
    latent: int
    image_shape: tuple[int, int, int]


def build_generator(
    num_classes: int,
    image_shape: tuple[int, ...],
    width: int = 128,
    latent: int = 100,
    convolution: str = "fast",
) -> Generator:
    """Builds CBFL's generator: 1,052,139 parameters for 10 classes and 32x32x3 images, 1,061,139 for 100 classes.

    Args:
        num_classes: C.
        image_shape: `(H, W, K)`, height and width in pixels, multiples of 4, then channels.
        width: channels of the first two stages; the third has half as many.
        latent: Z, the length of the noise.
        convolution: as in `fedjax_bal.models.build`: "fast", or "plain", which has second derivatives.

    Returns:
        The generator as pure functions.

    Raises:
        ValueError: sizes that it can't have, an unknown convolution, and, from `apply`, noise of another length.

    Example:
        >>> generator = build_generator(10, (8, 8, 1), width=4, latent=3)
        >>> variables = generator.init(jax.random.key(0))
        >>> images, variables = generator.apply(variables, jnp.ones((2, 3)), jnp.array([0, 9]), train=False)
        >>> images.shape
        (2, 8, 8, 1)
    """
    whole_number("num_classes", num_classes)
    whole_number("latent", latent)
    whole_number("width", width, 2)
    shape = doubled_twice(image_shape, "the generator")
    network = _AcganNetwork(num_classes, shape, width, convolutions.of_name(convolution))

    def check(latents: Array, labels: Array) -> None:
        if latents.shape != (*labels.shape, latent):
            raise ValueError(
                f"latents: received shape {latents.shape} for labels of shape {labels.shape}, must be [B, {latent}] "
                "and [B]"
            )

    examples = jax.ShapeDtypeStruct((1, latent), jnp.float32), jax.ShapeDtypeStruct((1,), jnp.int32)
    return Generator(*pure_functions(network, check, *examples), num_classes, latent, shape)


class _AcganNetwork(nn.Module):
    """Noise times the class's embedding, a dense layer to maps of a quarter of the side, two doublings, tanh.

    The last normalisation has no parameters: it gives every channel mean 0 and variance 1, like normalised images.
    Linear layers and convolutions start as in PyTorch, the embedding from the standard normal law.

    References:
        CBFL (Li et al., 2023), section 5.4, names AC-GAN's generator (Odena et al., "Conditional Image Synthesis with
        Auxiliary Classifier GANs", ICML 2017); layers as in the authors' code. Two of its normalisations have an
        epsilon of 0.8, as a widely copied AC-GAN code does, apparently instead of the momentum; kept, because the
        published numbers come from it.
    """

    num_classes: int
    image_shape: tuple[int, int, int]
    width: int
    convolve: Convolution

    @nn.compact
    def __call__(self, latents: Float[Array, "B Z"], labels: Int[Array, " B"], *, train: bool) -> Array:
        height, width, channels = self.image_shape
        doubled = enlarging(self.convolve)
        embedding = self.param("embedding", initializers.normal(1.0), (self.num_classes, latents.shape[-1]))
        # A product instead of a lookup, whose gradient GPUs sum in any order.
        chosen = lax.dot(
            jax.nn.one_hot(labels, self.num_classes, dtype=embedding.dtype), embedding, precision=lax.Precision.HIGHEST
        )
        maps = Linear(self.width * (height // 4) * (width // 4), name="dense")(chosen * latents)
        maps = maps.reshape(-1, height // 4, width // 4, self.width)
        maps = BatchNorm(name="norm_0")(maps, None, train=train)
        for stage, outputs in enumerate((self.width, self.width // 2)):
            maps = Conv(outputs, 3, 1, doubled, name=f"conv_{stage}")(maps)
            maps = BatchNorm(LARGE_EPSILON, name=f"norm_{stage + 1}")(maps, None, train=train)
            maps = nn.leaky_relu(maps, SLOPE)
        maps = jnp.tanh(Conv(channels, 3, 1, self.convolve, name="conv_2")(maps))
        return BatchNorm(affine=False, name="norm_3")(maps, None, train=train)
