"""Shared by the networks that make images: convolutions that double an image's sides, and their pure functions.

Each of the four places within a doubled pixel sees its own 2x2 kernel of the small images. So a doubling convolution is
one 2x2 convolution of the small images with four times the channels, which takes fewer products than one of the large
images.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_bal.models.layers import Convolution
from fedjax_bal.types import Key, Variables
from fedjax_bal.validate import whole_number

PADS = ((1, 1), (1, 1))

# For the first and the second of two repeated pixels: the taps, of three, that fall on each of two neighbours.
_TAPS = (((1.0, 0.0, 0.0), (0.0, 1.0, 1.0)), ((1.0, 1.0, 0.0), (0.0, 0.0, 1.0)))


def doubled_twice(image_shape: tuple[int, ...], who: str) -> tuple[int, int, int]:
    """Checks the shape of images that a network makes by doubling its first maps twice, and returns it."""
    sides = tuple(whole_number("image_shape", side) for side in image_shape)
    if len(sides) != 3 or sides[0] % 4 or sides[1] % 4:
        raise ValueError(
            f"image_shape: received {sides}, must be (height, width, channels) with height and width multiples of 4, "
            f"because {who} doubles its first maps twice: pad or crop the images"
        )
    return sides


def enlarging(convolve: Convolution) -> Convolution:
    """A 3x3 convolution that first doubles its images' height and width by repetition.

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
    """A transposed convolution of 4x4 kernels and stride 2, which doubles its images' height and width.

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
    """A network's `init`, from the shapes of its inputs, and `apply`, which begins with `check(*inputs)`."""

    def init(key: Key) -> Variables:
        zeros = (jnp.zeros(each.shape, each.dtype) for each in inputs)
        collections = network.init(key, *zeros, train=False)
        return Variables(collections["params"], collections["stats"])

    def apply(variables: Variables, *inputs: Array, train: bool, **settings: Any) -> tuple[Array, Variables]:
        check(*inputs)
        mutable = ["stats"] if train else []
        results, changed = network.apply(variables._asdict(), *inputs, train=train, mutable=mutable, **settings)
        return results, variables._replace(stats=changed.get("stats", variables.stats))

    return jax.jit(init, inline=True), jax.jit(apply, inline=True, static_argnames="train")


def _by_places(
    name: str, convolve: Convolution, size: tuple[int, int], kernels: Callable[[Array], Array]
) -> Convolution:
    """A convolution by `kernels(kernel)`, one for each place: its row, its column, then the output channel."""

    def doubled(images: Array, kernel: Array, strides: Any, padding: Any, **settings: Any) -> Array:
        given = kernel.shape[:2], tuple(strides), tuple(map(tuple, padding))
        if given != (size, (1, 1), PADS):
            raise ValueError(
                f"{name}: received a kernel of {given[0]}, strides {given[1]} and padding {given[2]}, must be {size}, "
                f"(1, 1) and {PADS}: only that convolution can be computed on the small images"
            )
        settings.setdefault("dimension_numbers", ("NHWC", "HWIO", "NHWC"))
        return _interleave(convolve(images, kernels(kernel), strides, padding, **settings))

    return doubled


def _interleave(maps: Float[Array, "B H1 W1 4*O"]) -> Float[Array, "B 2*H 2*W O"]:
    """Moves each place's results to its pixels; those of a second place start one window later."""
    rows, height, width, channels = maps.shape
    height, width, outputs = height - 1, width - 1, channels // 4
    parts = maps.reshape(rows, height + 1, width + 1, 2, 2, outputs)
    places = [
        jnp.stack([parts[:, down : down + height, right : right + width, down, right] for right in (0, 1)], 3)
        for down in (0, 1)
    ]
    return jnp.stack(places, 2).reshape(rows, 2 * height, 2 * width, outputs)
