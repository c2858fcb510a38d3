"""A 3x3 convolution of images enlarged by two, computed on the small images.

Enlarging by repetition copies each pixel four times, so that the three taps of the kernel in a row or column fall on
two pixels: each of the four places within a doubled pixel sees a 2x2 kernel of sums of taps. That takes 16 products per
small pixel and pair of channels instead of 36.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_bal.models.layers import Convolution

# For the first and the second of two repeated pixels: the taps, of three, that fall on each of two neighbours.
_TAPS = (((1.0, 0.0, 0.0), (0.0, 1.0, 1.0)), ((1.0, 1.0, 0.0), (0.0, 0.0, 1.0)))


def doubled_twice(image_shape: tuple[int, ...], who: str) -> tuple[int, int, int]:
    """Checks the shape of images that a network makes by doubling its first maps twice, and returns it."""
    if len(image_shape) != 3 or min(image_shape) < 1 or image_shape[0] % 4 or image_shape[1] % 4:
        raise ValueError(
            f"image_shape: received {tuple(image_shape)}, must be (height, width, channels) with height and width "
            f"multiples of 4, because {who} doubles its first maps twice: pad or crop the images"
        )
    height, width, channels = image_shape
    return height, width, channels


def enlarging(convolve: Convolution) -> Callable[..., Array]:
    """A convolution that first doubles its images' height and width by repetition.

    It serves as `flax.linen.Conv`'s `conv_general_dilated` for 3x3 kernels, stride 1 and one pixel of padding: images
    `[B, H, W, K]` and a kernel `[3, 3, K, O]` to `[B, 2 H, 2 W, O]`.

    Example:
        >>> import jax
        >>> images, kernel = jnp.ones((1, 2, 2, 1)), jnp.ones((3, 3, 1, 1))
        >>> enlarging(jax.lax.conv_general_dilated)(images, kernel, (1, 1), ((1, 1), (1, 1)))[0, :, :, 0].tolist()
        [[4.0, 6.0, 6.0, 4.0], [6.0, 9.0, 9.0, 6.0], [6.0, 9.0, 9.0, 6.0], [4.0, 6.0, 6.0, 4.0]]
    """

    def enlarged(images: Array, kernel: Array, strides: Any, padding: Any, **settings: Any) -> Array:
        given = kernel.shape[:2], tuple(strides), tuple(map(tuple, padding))
        if given != ((3, 3), (1, 1), ((1, 1), (1, 1))):
            raise ValueError(
                f"enlarging: received a kernel of {given[0]}, strides {given[1]} and padding {given[2]}, must be "
                "(3, 3), (1, 1) and ((1, 1), (1, 1)): only that convolution can be computed on the small images"
            )
        settings.setdefault("dimension_numbers", ("NHWC", "HWIO", "NHWC"))
        return _interleave(convolve(images, _kernel_of_sums(kernel), strides, padding, **settings))

    return enlarged


def _kernel_of_sums(kernel: Float[Array, "3 3 K O"]) -> Float[Array, "2 2 K 4*O"]:
    """The four 2x2 kernels side by side: place in the row, place in the column, then the output channel."""
    taps = jnp.asarray(_TAPS, kernel.dtype)
    kernels = jnp.einsum("ath,bsw,hwko->tskabo", taps, taps, kernel, precision="highest")
    return kernels.reshape(*kernels.shape[:3], -1)


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
