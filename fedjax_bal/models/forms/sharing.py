"""Weight gradients from the same copies that the convolution and the image gradient make, for GPUs.

XLA makes equal copies once, if they are written alike. Each form here goes with one or two of `forward`.
"""

from collections.abc import Sequence

from jaxtyping import Array, Float

from fedjax_bal.models.forms import forward, gradients
from fedjax_bal.models.geometry import Geometry, patches


def of_patches(images: Array, cotangent: Array, size: Sequence[int], geometry: Geometry) -> Float[Array, "h w K O"]:
    """The gradient with respect to the kernel, from the copies of `forward.by_patches`."""
    product = _product(patches(images, size, geometry), cotangent)
    return product.reshape(*size, images.shape[-1], -1)


def of_lines(images: Array, cotangent: Array, size: Sequence[int], geometry: Geometry) -> Float[Array, "h w K O"]:
    """The gradient with respect to a kernel of stride 1, from the copies of two convolutions.

    They are those of the images in `forward.by_columns`, and of the cotangent in `forward.by_rows` for the image
    gradient.
    """
    (left, _), width = geometry.pads[1], images.shape[2]
    back = Geometry((1, 1), ((0, 0), (size[1] - 1 - left, width - cotangent.shape[2] + left)))
    columns, rows = forward.lines(images, size[0], geometry, 0), forward.lines(cotangent, size[1], back, 1)
    product = _product(columns, rows).reshape(size[0], images.shape[-1], size[1], -1)
    return product[:, :, ::-1].transpose(0, 2, 1, 3)


def of_blocks(images: Array, cotangent: Array, size: Sequence[int], geometry: Geometry) -> Float[Array, "h w K O"]:
    """The gradient with respect to the kernel, from the copies of `forward.by_blocks`."""
    return gradients.by_blocks(images, cotangent, size, geometry, lambda *where: _flat(patches(*where)).T)


def _product(seen: Array, cotangent: Array) -> Float[Array, "P O"]:
    return _flat(seen).T @ _flat(cotangent)


def _flat(channels: Array) -> Array:
    return channels.reshape(-1, channels.shape[-1])
