"""A convolution that stays fast inside loops and when every client has its own kernel.

`jax.vmap` over kernels turns a convolution into a grouped one, and JAX's own weight gradient leaves the fast path of
XLA:CPU inside a loop; both cost a factor of ten and more. The convolution here therefore brings its own derivative
(`jax.custom_vjp`), made of two linear pieces that bring their own batching (`jax.custom_batching.custom_vmap`):

- one client: the way that suits the shape, see `fedjax_bal.models.forms`;
- clients with different kernels: shifted copies and batched matrix products;
- clients with one kernel in common: one convolution over all their images.

`convolution="plain"` in `fedjax_bal.models.build` is JAX's own convolution: slower, but with second derivatives.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float

from fedjax_bal.models import forms
from fedjax_bal.models.geometry import Geometry, pad_images

PLAIN = 'build the model with convolution="plain"'


def convolution(
    images: Float[Array, "B H W K"],
    kernel: Float[Array, "h w K O"],
    window_strides: Sequence[int] = (1, 1),
    padding: str | Sequence[tuple[int, int]] = "SAME",
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    precision: Any = None,
) -> Float[Array, "B H2 W2 O"]:
    """Convolve images with a kernel, in any stride and padding.

    Takes what `flax.linen.Conv` hands to its argument `conv_general_dilated`, and serves there. It composes with
    `vmap` (of images, kernel or both, nested too), with `grad`, loops and rematerialisation; it has no second
    derivatives and no forward mode.

    Args:
        images: `[B, H, W, K]`.
        kernel: `[h, w, K, O]`.
        window_strides: steps between outputs, down and across, in pixels.
        padding: "SAME", "VALID" or `((top, bottom), (left, right))` in pixels.
        lhs_dilation: must be 1.
        rhs_dilation: must be 1.
        dimension_numbers: must be those of `[B, H, W, K]` and `[h, w, K, O]`.
        feature_group_count: must be 1.
        precision: must be None.

    Returns:
        `[B, H', W', O]`.

    Raises:
        ValueError: for what this form does not support, when tracing; also when it is differentiated twice.

    Example:
        >>> import jax.numpy as jnp
        >>> convolution(jnp.ones((2, 28, 28, 1)), jnp.ones((5, 5, 1, 16)), (1, 1), "VALID").shape
        (2, 24, 24, 16)
    """
    _refuse_unsupported(images, kernel, lhs_dilation, rhs_dilation, dimension_numbers, feature_group_count, precision)
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(images.shape[1:3], kernel.shape[:2], window_strides, padding)
    return _differentiable(_geometry(window_strides, padding))(images, kernel)


def of_name(name: str) -> Callable[..., Array]:
    """The convolution of a name, as `flax.linen.Conv` wants it.

    Args:
        name: "fast" or "plain".

    Returns:
        A function with the signature of `jax.lax.conv_general_dilated`.

    Raises:
        ValueError: for any other name.

    Example:
        >>> of_name("fast") is convolution
        True
    """
    choices = {"fast": convolution, "plain": lax.conv_general_dilated}
    if name not in choices:
        raise ValueError(f"convolution={name!r} is unknown: choose one of {', '.join(map(repr, choices))}.")
    return choices[name]


@functools.cache
def _differentiable(geometry: Geometry) -> Callable[[Array, Array], Array]:
    """The convolution of one geometry, with its derivative."""

    @jax.custom_vjp
    def convolve(images: Array, kernel: Array) -> Array:
        return _forward(geometry)(images, kernel)

    def forward(images: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
        return _differentiable_once(_forward(geometry))(images, kernel), (images, kernel)

    def backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
        images, kernel = saved
        of_kernel = _differentiable_once(_weight_gradient(geometry, kernel.shape[:2]))(images, cotangent)
        return _image_gradient(geometry, images.shape, kernel, cotangent), of_kernel

    convolve.defvjp(forward, backward)
    return convolve


@functools.cache
def _forward(geometry: Geometry) -> Callable[[Array, Array], Array]:
    """The convolution of one geometry, with its batching."""

    @custom_vmap
    def convolve(images: Array, kernel: Array) -> Array:
        return forms.convolve(images, kernel, geometry)

    @convolve.def_vmap
    def stacked(clients: int, batched: Sequence[bool], images: Array, kernel: Array) -> tuple[Array, bool]:
        del clients
        if not batched[1]:
            joined = convolve(images.reshape(-1, *images.shape[2:]), kernel)
            return joined.reshape(*images.shape[:2], *joined.shape[1:]), True
        each = functools.partial(forms.convolve_by_products, geometry=geometry)
        return jax.vmap(each, _axes(batched))(images, kernel), True

    return convolve


@functools.cache
def _weight_gradient(geometry: Geometry, size: tuple[int, int]) -> Callable[[Array, Array], Array]:
    """The gradient with respect to the kernel for one geometry, with its batching."""

    @custom_vmap
    def gradient(images: Array, cotangent: Array) -> Array:
        return forms.weight_gradient(images, cotangent, size, geometry)

    @gradient.def_vmap
    def stacked(clients: int, batched: Sequence[bool], images: Array, cotangent: Array) -> tuple[Array, bool]:
        del clients
        each = functools.partial(forms.weight_gradient_by_products, size=size, geometry=geometry)
        return jax.vmap(each, _axes(batched))(images, cotangent), True

    return gradient


def _image_gradient(geometry: Geometry, shape: tuple[int, ...], kernel: Array, cotangent: Array) -> Array:
    """The gradient with respect to the images: a convolution of the cotangent with the kernel turned half round."""
    spread = pad_images(cotangent, ((0, 0), (0, 0)), geometry.strides)
    leads = [taps - 1 - pads[0] for taps, pads in zip(kernel.shape[:2], geometry.pads, strict=True)]
    (above, below), (left, right) = (
        (lead, side + taps - 1 - length - lead)
        for lead, side, taps, length in zip(leads, shape[1:3], kernel.shape[:2], spread.shape[1:3], strict=True)
    )
    turned = kernel[::-1, ::-1].transpose(0, 1, 3, 2)
    full = Geometry((1, 1), ((above, below), (left, right)))
    return _differentiable_once(_forward(full))(spread, turned)


def _differentiable_once(piece: Callable[..., Array]) -> Callable[..., Array]:
    """The same function, but one that explains itself when a derivative of it is asked for."""

    @jax.custom_jvp
    def guarded(*operands: Array) -> Array:
        return piece(*operands)

    @guarded.defjvp
    def refuse(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> NoReturn:
        del tangents
        shapes = " and ".join(str(operand.shape) for operand in primals)
        raise ValueError(
            f"The fast convolution was differentiated twice (operands {shapes}), but it has first derivatives only: "
            f"to differentiate through gradients, {PLAIN}."
        )

    return guarded


def _refuse_unsupported(
    images: Array,
    kernel: Array,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    dimension_numbers: Any,
    feature_group_count: int,
    precision: Any,
) -> None:
    """Raise for what only XLA's own convolution can do, and for shapes that no convolution takes."""
    dilations = {"lhs_dilation": lhs_dilation, "rhs_dilation": rhs_dilation}
    refused: dict[str, Any] = {
        name: value for name, value in dilations.items() if value is not None and set(value) != {1}
    }
    if feature_group_count != 1:
        refused["feature_group_count"] = feature_group_count
    if precision is not None:
        refused["precision"] = precision
    expected = lax.conv_dimension_numbers(images.shape, kernel.shape, forms.LAYOUT)
    if dimension_numbers is not None and dimension_numbers not in (forms.LAYOUT, expected):
        refused["dimension_numbers"] = dimension_numbers
    for name, value in refused.items():
        raise ValueError(f"The fast convolution does not support {name}={value}: {PLAIN}, or leave {name} out.")
    if images.shape[3] != kernel.shape[2]:
        raise ValueError(
            f"Images of shape {images.shape} and a kernel of shape {kernel.shape} do not match: the kernel's third "
            f"axis must be the images' last, {images.shape[3]}."
        )


def _axes(batched: Sequence[bool]) -> tuple[int | None, ...]:
    """Flags of `custom_vmap` as `in_axes` of `vmap`."""
    return tuple(0 if flag else None for flag in batched)


def _geometry(strides: Sequence[int], pads: Sequence[tuple[int, int]]) -> Geometry:
    """A geometry of plain integers, which can be hashed."""
    (down, across), ((top, bottom), (left, right)) = strides, pads
    return Geometry((int(down), int(across)), ((int(top), int(bottom)), (int(left), int(right))))
