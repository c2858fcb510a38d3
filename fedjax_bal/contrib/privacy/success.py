"""Measures of an attack's success."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Recovery(NamedTuple):
    r"""Similarity of each image to the truth.

    Attributes:
        mse: mean squared error, relative to the square of a pixel's full range, `[M]`.
        psnr: $-10 \log_{10}$ of it, in decibels, `[M]`; infinite for a perfect copy.
        correlation: of the pixels, from -1 to 1, `[M]`; 0 if one of the two images is constant. It ignores brightness
            and contrast, which an attack often gets wrong.
    """

    mse: Float[Array, " M"]
    psnr: Float[Array, " M"]
    correlation: Float[Array, " M"]


@jax.jit
def recovered(
    images: Float[Array, "M H W K"], truth: Float[Array, "M H W K"], std: Float[Array, " K"] | float = 1.0
) -> Recovery:
    """Compares an attack's images with the truth.

    For features of single images the truth is that image: this control shows the attack's power. For a prototype it is
    the class's mean image, or the image nearest to the attack's, see `nearest`. Compare the numbers with those of a
    wrong truth, such as the image of another row: images of one kind have much in common.

    Args:
        images: the attack's, `[M, H, W, K]`, normalised.
        truth: `[M, H, W, K]`, normalised in the same way.
        std: the divisor of pixels scaled to [0, 1], `[K]`, so that errors are relative to their range; 1 for images
            with pixels in [0, 1].

    Returns:
        Errors and correlations `[M]`.

    Raises:
        ValueError: shapes that differ.

    Example:
        >>> truth = jnp.arange(4.0).reshape(1, 2, 2, 1)
        >>> found = recovered(truth + 0.2, truth, std=0.5)
        >>> [round(float(value[0]), 3) for value in found]
        [0.01, 20.0, 1.0]
    """
    if len(images.shape) != 4 or images.shape != truth.shape:
        raise ValueError(
            f"recovered: received images of shape {tuple(images.shape)} and truth of shape {tuple(truth.shape)}, must "
            "be [M, H, W, K] both"
        )
    mse = (((images - truth) * jnp.asarray(std)) ** 2).mean((1, 2, 3))
    return Recovery(mse, -10 * jnp.log10(mse), _correlation(images, truth))


def _correlation(left: Array, right: Array) -> Array:
    """Pearson's correlation of the pixels of each image."""
    left, right = (rows - rows.mean((1, 2, 3), keepdims=True) for rows in (left, right))
    product, *squares = ((a * b).sum((1, 2, 3)) for a, b in ((left, right), (left, left), (right, right)))
    lengths = jnp.sqrt(squares[0]) * jnp.sqrt(squares[1])
    return jnp.where(lengths > 0, product / jnp.where(lengths > 0, lengths, 1.0), 0.0)
