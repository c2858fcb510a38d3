"""Max pooling with a gradient that is fast on CPUs: of disjoint 2x2 and of overlapping 3x3 windows.

XLA's own gradient of a window maximum is a scatter of selected elements, which is slow there; comparing with the
maximum and interleaving the corners is fast. If several pixels are equal, the first one, row by row, takes the
gradient, as in PyTorch.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_bal.models.derivatives import fast_derivative


def _forward(images: Array) -> tuple[Array, tuple[Array, Array]]:
    highest = functools.reduce(jnp.maximum, _corners(images))
    return highest, (images, highest)


def _backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array]:
    """Sends the gradient to the chosen pixels, by interleaving the four corners' shares."""
    images, highest = saved
    _, height, width, channels = images.shape
    chosen = _first_maximum(images, highest)
    corners = [jnp.where(chosen == i, cotangent, 0) for i in range(4)]
    rows = [jnp.stack(corners[:2], 3), jnp.stack(corners[2:], 3)]
    even = jnp.stack(rows, 2).reshape(-1, height - height % 2, width - width % 2, channels)
    return (jnp.pad(even, ((0, 0), (0, height % 2), (0, width % 2), (0, 0))),)


@fast_derivative(_forward, _backward, plain=lambda images: _choose_first(_corners(images)))
def max_pool(images: Float[Array, "B H W K"]) -> Float[Array, "B H2 W2 K"]:
    """Maximum of each 2x2 block of pixels, `[B, H // 2, W // 2, K]`; ignores a last odd row or column."""
    return functools.reduce(jnp.maximum, _corners(images))


def _corners(images: Array) -> list[Array]:
    """The four pixels of every block: upper left, upper right, lower left, lower right."""
    height, width = (side - side % 2 for side in images.shape[1:3])
    return [images[:, row:height:2, column:width:2] for row in (0, 1) for column in (0, 1)]


def _first_maximum(images: Array, highest: Array) -> Int[Array, "B H2 W2 K"]:
    """Number of the first corner equal to the maximum; of the last corner if none is, which happens only for NaN."""
    first, second, third, _ = _corners(images)
    return jnp.where(first == highest, 0, jnp.where(second == highest, 1, jnp.where(third == highest, 2, 3)))


def _choose_first(views: Sequence[Array]) -> Array:
    """The maximum of the views; its derivative is that of the first one equal to it, not shared among equals."""
    highest = functools.reduce(jnp.maximum, views)
    return jnp.select([view == highest for view in views], views, highest)


def _overlapping_forward(images: Array) -> tuple[Array, tuple[Array, Array]]:
    highest = functools.reduce(jnp.maximum, _neighbours(images, -jnp.inf))
    return highest, (images, highest)


def _overlapping_backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array]:
    """Sends the gradient to the chosen pixels; to the centre if no pixel is equal, which happens only for NaN."""
    images, highest = saved
    equal = [view == highest for view in _neighbours(images, -jnp.inf)]
    chosen = jnp.select(equal, list(range(9)), 4)
    shares = [jnp.where(chosen == i, cotangent, 0) for i in range(9)]
    scatter = jax.linear_transpose(lambda images: _neighbours(images, 0), images)
    return scatter(shares)


@fast_derivative(
    _overlapping_forward,
    _overlapping_backward,
    plain=lambda images: _choose_first(_neighbours(images, -jnp.inf)),
)
def overlapping_max_pool(images: Float[Array, "B H W K"]) -> Float[Array, "B H2 W2 K"]:
    """Maximum of the 3x3 window around every second pixel, `[B, ceil(H / 2), ceil(W / 2), K]`; ignores the outside."""
    return functools.reduce(jnp.maximum, _neighbours(images, -jnp.inf))


def _neighbours(images: Array, outside: float) -> list[Array]:
    """The pixels at each of the nine places around every second pixel, row by row."""
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=outside)
    height, width = (side + side % 2 for side in images.shape[1:3])
    return [padded[:, i : i + height - 1 : 2, j : j + width - 1 : 2] for i in range(3) for j in range(3)]
