"""Convolutions on GPUs without patches in memory: a kernel reads them out of the images while it multiplies.

A convolution is the product of patches and kernel, and the gradient with respect to the kernel that of transposed
patches and cotangent. Both are one function of Pallas here, compiled by Triton; the gradient with respect to the images
is a convolution, see `gradients.phase_kernel`. `jax.vmap` runs the function for all clients in one launch.

jax 0.11 and later warn that Pallas will drop Triton. Its successor, Mosaic, has no full float32 products on GPUs.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_bal.models.convolution.geometry import Geometry
from fedjax_bal.target import target_platform

ROWS, COLUMNS, DEPTH = 128, 64, 32
"""Largest sides of the tiles: of the result, and of the sum that is computed at a time."""
SMALLEST = 16
"""The smallest side of a tile that Triton multiplies."""
LONGEST_SUM = 2048
"""Pixels that a part of a weight gradient sums; the parts, which are summed afterwards, keep all of a GPU busy."""


class Patches(NamedTuple):
    """The matrix of patches `[pixels, taps]`, which is never written: where its numbers lie in the images.

    Attributes:
        image: the images' shape, `(B, H, W, K)`.
        size: height and width of the kernel.
        geometry: positions of the kernel.
    """

    image: tuple[int, ...]
    size: tuple[int, ...]
    geometry: Geometry

    @property
    def shape(self) -> tuple[int, int]:
        """Number of patches, and of the numbers in each."""
        high, wide = self.geometry.output_size(self.image[1:3], self.size)
        return self.image[0] * high * wide, math.prod(self.size) * self.image[3]

    def places(self, pixels: Array, taps: Array) -> tuple[Array, Array]:
        """Returns the indices of numbers in the flattened images, and which of them exist; the others are zeros."""
        _, height, width, inputs = self.image
        (down, across), ((top, _), (left, _)) = self.geometry
        high, wide = self.geometry.output_size(self.image[1:3], self.size)
        # `lax`'s division, because the compiler sees neighbours in memory through it, and not through Python's.
        rows, tap = lax.div(pixels, wide), lax.div(taps, inputs)
        y = lax.rem(rows, high) * down - top + lax.div(tap, self.size[1])
        x = lax.rem(pixels, wide) * across - left + lax.rem(tap, self.size[1])
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        exist = (pixels < self.shape[0]) & (taps < self.shape[1])
        return ((lax.div(rows, high) * height + y) * width + x) * inputs + lax.rem(taps, inputs), inside & exist


def convolve(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """Convolves by the product of patches and kernel."""
    patches = Patches(images.shape, kernel.shape[:2], geometry)
    result = _product(images, kernel.reshape(-1, kernel.shape[-1]), patches, transposed=False)
    return result.reshape(len(images), *geometry.output_size(images.shape[1:3], kernel.shape[:2]), -1)


def gradient(
    images: Float[Array, "B H W K"], cotangent: Float[Array, "B H2 W2 O"], size: Sequence[int], geometry: Geometry
) -> Float[Array, "h w K O"]:
    """Computes the gradient with respect to the kernel by the product of transposed patches and cotangent."""
    patches = Patches(images.shape, tuple(size), geometry)
    result = _product(images, cotangent.reshape(-1, cotangent.shape[-1]), patches, transposed=True)
    return result.reshape(*size, images.shape[-1], -1)


def _product(images: Array, factor: Array, patches: Patches, *, transposed: bool) -> Float[Array, "M N"]:
    """Multiplies the matrix of patches, or the transposed one, by a factor."""
    if target_platform() != "gpu":
        raise ValueError(
            f"convolution='implicit' is for GPUs, and this program is compiled for a {target_platform().upper()}: "
            "choose another, such as 'fast'"
        )
    # Here, because importing Pallas takes a quarter of a second, which only this form needs.
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    summed, columns = factor.shape
    rows = patches.shape[transposed]
    tile = _side(rows, ROWS), _side(columns, COLUMNS), _side(summed, DEPTH)
    parts = pallas.cdiv(summed, LONGEST_SUM) if transposed else 1
    total = jnp.promote_types(images.dtype, jnp.float32)
    products = pallas.pallas_call(
        functools.partial(_multiply, patches=patches, transposed=transposed, tile=tile, total=total),
        out_shape=jax.ShapeDtypeStruct((parts, rows, columns), images.dtype if parts == 1 else total),
        grid=(pallas.cdiv(rows, tile[0]), pallas.cdiv(columns, tile[1]), parts),
        compiler_params=triton.CompilerParams(num_warps=8),
        name="implicit_product",
    )(images.reshape(-1), factor)
    return products.sum(0).astype(images.dtype)


def _multiply(
    images: Any,
    factor: Any,
    result: Any,
    *,
    patches: Patches,
    transposed: bool,
    tile: tuple[int, int, int],
    total: Any,
) -> None:
    """Computes a tile of one part of the product; the operands are references to whole arrays."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    parts, rows, columns = result.shape
    summed = factor.shape[0]
    part = pallas.program_id(2)
    row = (pallas.program_id(0) * tile[0] + jnp.arange(tile[0]))[:, None]
    column = (pallas.program_id(1) * tile[1] + jnp.arange(tile[1]))[None]
    turns = pallas.cdiv(pallas.cdiv(summed, parts), tile[2])

    def add(turn: Array, total: Array) -> Array:
        place = (part * turns + turn) * tile[2] + jnp.arange(tile[2])
        index, exist = patches.places(place[None], row) if transposed else patches.places(row, place[None])
        left = triton.load(images.at[index], mask=exist, other=0)
        place = place[:, None]
        right = triton.load(factor.at[place, column], mask=(place < summed) & (column < columns), other=0)
        return total + jnp.dot(left, right, preferred_element_type=total.dtype)

    sums = lax.fori_loop(0, turns, add, jnp.zeros(tile[:2], total))
    triton.store(result.at[part, row, column], sums.astype(result.dtype), mask=(row < rows) & (column < columns))


def _side(length: int, most: int) -> int:
    """Returns the side of a tile, a power of two, for a side of a matrix."""
    return min(most, max(SMALLEST, 1 << (length - 1).bit_length()))
