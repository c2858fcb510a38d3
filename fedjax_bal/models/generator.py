"""Networks that make images or features: doubling convolutions, pure functions, and CBFL's and FedGen's generators.

Doubling turns each pixel into four places, and each place is the result of its own 2x2 kernel on the small images. So a
doubling convolution is one 2x2 convolution of the small images with four times the channels, which takes fewer products
than a convolution of the large images.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers
from jaxtyping import Array, Float, Int

from fedjax_bal.models import convolution as convolutions
from fedjax_bal.models.layers import Conv, Convolution, Linear
from fedjax_bal.models.normalization import BatchNorm
from fedjax_bal.types import Key, Variables
from fedjax_bal.validate import whole_number

PADS = ((1, 1), (1, 1))
SLOPE = 0.2
LARGE_EPSILON = 0.8

# For the first and the second copy of a pixel: which of the three taps fall on each of the two neighbours that it sees.
_TAPS = (((1.0, 0.0, 0.0), (0.0, 1.0, 1.0)), ((1.0, 1.0, 0.0), (0.0, 0.0, 1.0)))


def doubled_twice(image_shape: tuple[int, ...], who: str) -> tuple[int, int, int]:
    """Checks the shape of images that a network makes by doubling its first maps twice, and returns it."""
    # Multiples of 4 only, because a doubled side is even: other sides would need cropping.
    sides = tuple(whole_number("image_shape", side) for side in image_shape)
    if len(sides) != 3 or sides[0] % 4 or sides[1] % 4:
        raise ValueError(
            f"image_shape: received {sides}, must be (height, width, channels) with height and width multiples of 4, "
            f"because {who} doubles its first maps twice: pad or crop the images"
        )
    return sides


def enlarging(convolve: Convolution) -> Convolution:
    """Returns a 3x3 convolution that first doubles its images' height and width by repetition.

    It serves as `flax.linen.Conv`'s `conv_general_dilated` for stride 1 and one pixel of padding: images `[B, H, W, K]`
    and a kernel `[3, 3, K, O]` to `[B, 2 H, 2 W, O]`. Three taps in a row fall on two pixels, so that the small kernels
    are sums of taps.

    Example:
        >>> images, kernel = jnp.ones((1, 2, 2, 1)), jnp.ones((3, 3, 1, 1))
        >>> enlarging(jax.lax.conv_general_dilated)(images, kernel, (1, 1), ((1, 1), (1, 1)))[0, :, :, 0].tolist()
        [[4.0, 6.0, 6.0, 4.0], [6.0, 9.0, 9.0, 6.0], [6.0, 9.0, 9.0, 6.0], [4.0, 6.0, 6.0, 4.0]]
    """

    def kernels(kernel: Float[Array, "3 3 K O"]) -> Float[Array, "2 2 K 4*O"]:
        taps = jnp.asarray(_TAPS, kernel.dtype)
        places = jnp.einsum("ath,bsw,hwko->tskabo", taps, taps, kernel, precision="highest")
        return places.reshape(*places.shape[:3], -1)

    return _by_places("enlarging", convolve, (3, 3), kernels)


def doubling(convolve: Convolution) -> Convolution:
    """Returns a transposed convolution of 4x4 kernels and stride 2, which doubles its images' height and width.

    It serves as `flax.linen.Conv`'s `conv_general_dilated` for stride 1 and one pixel of padding: images `[B, H, W, K]`
    and a kernel `[4, 4, K, O]` to `[B, 2 H, 2 W, O]`, the convolution of the images with a zero between neighbouring
    pixels and two around them.

    Example:
        >>> images, kernel = jnp.ones((1, 2, 2, 1)), jnp.ones((4, 4, 1, 1))
        >>> doubling(jax.lax.conv_general_dilated)(images, kernel, (1, 1), PADS)[0, :, :, 0].tolist()
        [[1.0, 2.0, 2.0, 1.0], [2.0, 4.0, 4.0, 2.0], [2.0, 4.0, 4.0, 2.0], [1.0, 2.0, 2.0, 1.0]]
    """

    def kernels(kernel: Float[Array, "4 4 K O"]) -> Float[Array, "2 2 K 4*O"]:
        # Tap 2 t + a of the kernel is tap t of the small kernel of place a.
        places = kernel.reshape(2, 2, 2, 2, *kernel.shape[2:]).transpose(0, 2, 4, 1, 3, 5)
        return places.reshape(2, 2, kernel.shape[2], -1)

    return _by_places("doubling", convolve, (4, 4), kernels)


def pure_functions(
    network: nn.Module, check: Callable[..., None], *inputs: jax.ShapeDtypeStruct
) -> tuple[Callable[[Key], Variables], Callable[..., tuple[Array, Variables]]]:
    """Makes a network's `init`, from the shapes of its inputs, and `apply`, which first calls `check(*inputs)`."""

    def init(key: Key) -> Variables:
        zeros = (jnp.zeros(each.shape, each.dtype) for each in inputs)
        collections = network.init(key, *zeros, train=False)
        return Variables(collections["params"], collections["stats"])

    def apply(variables: Variables, *inputs: Array, train: bool, **settings: Any) -> tuple[Array, Variables]:
        check(*inputs)
        mutable = ["stats"] if train else []
        results, changed = network.apply(variables._asdict(), *inputs, train=train, mutable=mutable, **settings)
        return results, variables._replace(stats=changed.get("stats", variables.stats))

    # Jitted for calls by themselves; inlined, so that they add no call to a larger program.
    return jax.jit(init, inline=True), jax.jit(apply, inline=True, static_argnames="train")


def _by_places(
    name: str, convolve: Convolution, size: tuple[int, int], kernels: Callable[[Array], Array]
) -> Convolution:
    """Makes a doubling convolution from `kernels(kernel)`, whose channels are ordered by place (row, column)."""

    def doubled(images: Array, kernel: Array, strides: Any, padding: Any, **settings: Any) -> Array:
        given = kernel.shape[:2], tuple(strides), tuple(map(tuple, padding))
        if given != (size, (1, 1), PADS):
            raise ValueError(
                f"{name}: received a kernel of {given[0]}, strides {given[1]} and padding {given[2]}, must be {size}, "
                f"(1, 1) and {PADS}: only that convolution can be computed on the small images"
            )
        settings.setdefault("dimension_numbers", ("NHWC", "HWIO", "NHWC"))
        maps = convolve(images, kernels(kernel), strides, padding, **settings)

        # Moves each place's results to its pixels. Padding by one pixel gives one window more than there are pixels in
        # each direction, and the results of a second place start one window later.
        rows, windows_down, windows_across, channels = maps.shape
        parts = maps.reshape(rows, windows_down, windows_across, 2, 2, channels // 4)
        height = windows_down - 1
        width = windows_across - 1
        places = [
            jnp.stack([parts[:, down : down + height, right : right + width, down, right] for right in (0, 1)], 3)
            for down in (0, 1)
        ]
        return jnp.stack(places, 2).reshape(rows, 2 * height, 2 * width, channels // 4)

    return doubled


class Generator(NamedTuple):
    """A network from noise and classes to images or features, as pure functions.

    Attributes:
        init: `init(key) -> Variables`.
        apply: `apply(variables, latents, labels, *, train) -> (images, Variables)` for noise `Float[B, Z]` and labels
            `Int[B]`, to normalised images `Float[B, H, W, K]` or features `Float[B, F]`; in training with the
            statistics of this batch, which update the running ones.
        num_classes: C.
        latent: Z, the length of the noise.
        image_shape: `(H, W, K)`, or `(F,)`.
    """

    init: Callable[[Key], Variables]
    apply: Callable[..., tuple[Array, Variables]]
    num_classes: int
    latent: int
    image_shape: tuple[int, ...]


def build_generator(
    num_classes: int, image_shape: tuple[int, ...], width: int = 128, latent: int = 100, convolution: str = "fast"
) -> Generator:
    """Builds CBFL's generator: 1,052,139 parameters for 10 classes and 32x32x3 images, 1,061,139 for 100 classes.

    Args:
        num_classes: C.
        image_shape: `(H, W, K)`, height and width in pixels, multiples of 4, then channels.
        width: channels of the first two stages; the third has half as many.
        latent: Z, the length of the noise.
        convolution: as in `fedjax_bal.models.build`: "fast", or "plain", which has second derivatives.

    Returns:
        The generator as pure functions, for standard normal noise.

    Raises:
        ValueError: impossible sizes, an unknown convolution, and, from `apply`, noise of another length.

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
    return _from_noise(network, num_classes, latent, shape)


def build_feature_generator(num_classes: int, features: int, width: int = 256, latent: int = 32) -> Generator:
    """Builds FedGen's generator of features: 19,744 parameters for 10 classes and 32 features.

    A dense layer on noise and the one-hot class, batch normalisation, ReLU, and a dense layer to the features.

    Args:
        num_classes: C.
        features: F, the width of the classifier's input.
        width: outputs of the first layer.
        latent: Z, the length of the noise.

    Returns:
        The generator as pure functions, for noise that is uniform in [0, 1).

    Raises:
        ValueError: a size below 1, and, from `apply`, noise of another length.

    Example:
        >>> generator = build_feature_generator(10, 6, width=4, latent=3)
        >>> variables = generator.init(jax.random.key(0))
        >>> features, variables = generator.apply(variables, jnp.ones((2, 3)), jnp.array([0, 9]), train=False)
        >>> features.shape
        (2, 6)

    References:
        FedGen (Zhu et al., 2021), with the layers and sizes of the authors' code.
    """
    sizes = {"num_classes": num_classes, "features": features, "width": width, "latent": latent}
    for name, size in sizes.items():
        whole_number(name, size)
    return _from_noise(_FeatureNetwork(num_classes, features, width), num_classes, latent, (features,))


def _from_noise(network: nn.Module, num_classes: int, latent: int, shape: tuple[int, ...]) -> Generator:
    """Makes a generator of a network of latents and labels."""

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
        # A product instead of a lookup, because GPUs add up the gradient of a lookup in any order.
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


class _FeatureNetwork(nn.Module):
    """Noise and the one-hot class, a dense layer, batch normalisation, ReLU, a dense layer to features."""

    num_classes: int
    features: int
    width: int

    @nn.compact
    def __call__(self, latents: Float[Array, "B Z"], labels: Int[Array, " B"], *, train: bool) -> Array:
        classes = jax.nn.one_hot(labels, self.num_classes, dtype=latents.dtype)
        hidden = Linear(self.width, name="dense_0")(jnp.concatenate([latents, classes], axis=1))
        hidden = BatchNorm(name="norm")(hidden[:, None, None], None, train=train)[:, 0, 0]
        return Linear(self.features, name="dense_1")(nn.relu(hidden))
