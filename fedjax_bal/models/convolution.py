"""A convolution that stays fast inside loops and when every client has its own kernel.

`jax.vmap` over kernels turns a convolution into a grouped one, and JAX's own weight gradient leaves the fast path of
XLA:CPU inside a loop; both cost a factor of ten and more. The convolution here therefore has its own derivative
(`jax.custom_vjp`), made of two linear pieces with their own batching (`jax.custom_batching.custom_vmap`):

- one client: the form that is fastest for the shape, see `fedjax_bal.models.forms.rules`;
- clients with different kernels: shifted copies and batched matrix products;
- clients that share a kernel: one convolution of all their images.

Feature groups are treated like clients with different kernels. `convolution="plain"` in `fedjax_bal.models.build` is
JAX's own convolution: slower, but with second derivatives, as is any form within `fedjax_bal.models.differentiable`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float

from fedjax_bal.models.derivatives import fast_derivative
from fedjax_bal.models.forms import automatic, gradients
from fedjax_bal.models.forms.depthwise import depthwise
from fedjax_bal.models.forms.rules import FORMS, keep_apart
from fedjax_bal.models.geometry import LAYOUT, Geometry, plain_convolution
from fedjax_bal.models.onednn import library

PLAIN = 'build the model with convolution="plain"'
_KNOWN = {"lhs_dilation", "rhs_dilation", "dimension_numbers", "feature_group_count", "precision"}


def convolution(
    images: Float[Array, "B H W K"],
    kernel: Float[Array, "h w K2 O"],
    window_strides: Sequence[int] = (1, 1),
    padding: str | Sequence[tuple[int, int]] = "SAME",
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    precision: Any = None,
    form: str = "fast",
) -> Float[Array, "B H2 W2 O"]:
    """Convolves images with a kernel, in any stride and padding, and in feature groups.

    Its signature is that of `flax.linen.Conv`'s argument `conv_general_dilated`. It composes with `vmap` (of images,
    kernel or both, nested too), with `grad`, loops and rematerialisation; it has second derivatives and forward mode
    only within `fedjax_bal.models.differentiable`.

    Args:
        images: `[B, H, W, K]`.
        kernel: `[h, w, K / groups, O]`.
        window_strides: steps between outputs, down and across, in pixels.
        padding: "SAME", "VALID" or `((top, bottom), (left, right))` in pixels.
        lhs_dilation: must be 1.
        rhs_dilation: must be 1.
        dimension_numbers: must be those of `[B, H, W, K]` and `[h, w, K, O]`.
        feature_group_count: number of groups of input and output channels; each has a kernel of its own.
        precision: must be None.
        form: one of `fedjax_bal.models.forms.rules.FORMS`, or "auto", see `fedjax_bal.models.forms.automatic`.

    Returns:
        `[B, H', W', O]`.

    Raises:
        ValueError: arguments that this form does not support, or a second derivative, when tracing.

    Example:
        >>> import jax.numpy as jnp
        >>> convolution(jnp.ones((2, 28, 28, 1)), jnp.ones((5, 5, 1, 16)), (1, 1), "VALID").shape
        (2, 24, 24, 16)
    """
    _refuse_unsupported(images, kernel, lhs_dilation, rhs_dilation, dimension_numbers, feature_group_count, precision)
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(images.shape[1:3], kernel.shape[:2], window_strides, padding)
    geometry, form = _geometry(window_strides, padding), automatic.form() if form == "auto" else form
    if feature_group_count == 1:
        return _differentiable(geometry, form)(images, kernel)
    if kernel.shape[2] == 1:
        return depthwise(images, kernel, geometry)
    return _in_groups(_differentiable(geometry, form), images, kernel, feature_group_count)


def of_name(name: str) -> Callable[..., Array]:
    """The convolution of a name, with the signature of `jax.lax.conv_general_dilated`."""
    choices: dict[str, Callable[..., Array]] = {
        form: functools.partial(convolution, form=form) for form in ("auto", *FORMS)
    }
    choices["plain"] = lax.conv_general_dilated
    if name not in choices:
        raise ValueError(f"convolution={name!r} is unknown: choose one of {', '.join(map(repr, choices))}.")
    if name == "onednn":
        library.check_built()
    if name == "builtin":
        automatic.check_builtin()
    return choices[name]


@functools.cache
def where_supported(name: str) -> Callable[..., Array]:
    """The convolution of a name where it supports the arguments, JAX's own elsewhere: for layers of any kind."""
    chosen = of_name(name)

    def convolve(images: Array, kernel: Array, window_strides: Any, padding: Any, **settings: Any) -> Array:
        dilations = [*(settings.get("lhs_dilation") or ()), *(settings.get("rhs_dilation") or ())]
        known = {name: settings.pop(name) for name in _KNOWN & set(settings)}
        plain = images.ndim != 4 or set(dilations) - {1} or known.get("precision") is not None
        if plain or any(value is not None for value in settings.values()):
            return lax.conv_general_dilated(images, kernel, window_strides, padding, **known, **settings)
        return chosen(images, kernel, window_strides, padding, **known)

    return convolve


@functools.cache
def _differentiable(geometry: Geometry, form: str) -> Callable[[Array, Array], Array]:
    """The convolution of one geometry, with its derivative."""

    def forward(images: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
        images = keep_apart(images)
        return _differentiable_once(_forward(geometry, form))(images, kernel), (images, kernel)

    def backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
        images, kernel = saved
        cotangent = keep_apart(cotangent)
        of_kernel = _differentiable_once(_weight_gradient(geometry, form, kernel.shape[:2]))(images, cotangent)
        phases, back = gradients.phase_kernel(kernel, geometry, images.shape[1:3], cotangent.shape[1:3])
        # The gradient of the images is a forward convolution again, and so has its batching and its choice of forms.
        of_images = _differentiable_once(_forward(back, form, back=True))(cotangent, phases)
        return gradients.interleave_phases(of_images, geometry.strides, images.shape[1:3]), of_kernel

    @fast_derivative(forward, backward, plain=functools.partial(plain_convolution, geometry=geometry))
    def convolve(images: Array, kernel: Array) -> Array:
        return _forward(geometry, form)(images, kernel)

    return convolve


@functools.cache
def _forward(geometry: Geometry, form: str, *, back: bool = False) -> Callable[[Array, Array], Array]:
    """The convolution of one geometry, with its batching; `back` if it is the gradient with respect to the images."""
    alone, together = (maps.back if back else maps.convolve for maps in FORMS[form])

    @custom_vmap
    def convolve(images: Array, kernel: Array) -> Array:
        return alone(images, kernel, geometry)

    @convolve.def_vmap
    def stacked(clients: int, batched: Sequence[bool], images: Array, kernel: Array) -> tuple[Array, bool]:
        del clients
        if not batched[1]:  # clients share the kernel: their images are one batch
            joined = convolve(images.reshape(-1, *images.shape[2:]), kernel)
            return joined.reshape(*images.shape[:2], *joined.shape[1:]), True
        each = lambda images, kernel: together(images, kernel, geometry)
        return jax.vmap(each, _axes(batched))(images, kernel), True

    return convolve


@functools.cache
def _weight_gradient(geometry: Geometry, form: str, size: tuple[int, int]) -> Callable[[Array, Array], Array]:
    """The gradient with respect to the kernel for one geometry, with its batching."""

    @custom_vmap
    def gradient(images: Array, cotangent: Array) -> Array:
        return FORMS[form].alone.gradient(images, cotangent, size, geometry)

    @gradient.def_vmap
    def stacked(clients: int, batched: Sequence[bool], images: Array, cotangent: Array) -> tuple[Array, bool]:
        del clients
        each = lambda images, cotangent: FORMS[form].stacked.gradient(images, cotangent, size, geometry)
        return jax.vmap(each, _axes(batched))(images, cotangent), True

    return gradient


def _in_groups(convolve: Callable[[Array, Array], Array], images: Array, kernel: Array, groups: int) -> Array:
    """Convolves each group of channels with its own kernel."""
    parts = images.reshape(*images.shape[:3], groups, -1)
    kernels = kernel.reshape(*kernel.shape[:3], groups, -1)
    results = jax.vmap(convolve, (3, 3), 3)(parts, kernels)
    return results.reshape(*results.shape[:3], -1)


def _differentiable_once(piece: Callable[..., Array]) -> Callable[..., Array]:
    """Wraps a function so that its derivative raises an error that explains the remedy."""

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
    """Raises for what only XLA's own convolution supports, and for shapes that don't match."""
    dilations = {"lhs_dilation": lhs_dilation, "rhs_dilation": rhs_dilation}
    refused: dict[str, Any] = {
        name: value for name, value in dilations.items() if value is not None and set(value) != {1}
    }
    if precision is not None:
        refused["precision"] = precision
    expected = lax.conv_dimension_numbers(images.shape, kernel.shape, LAYOUT)
    if dimension_numbers is not None and dimension_numbers not in (LAYOUT, expected):
        refused["dimension_numbers"] = dimension_numbers
    for name, value in refused.items():
        raise ValueError(f"The fast convolution does not support {name}={value}: {PLAIN}, or leave {name} out.")
    if images.shape[3] != kernel.shape[2] * feature_group_count or kernel.shape[3] % feature_group_count:
        raise ValueError(
            f"Images of shape {images.shape}, a kernel of shape {kernel.shape} and {feature_group_count} feature "
            "group(s) do not match: the kernel's third axis must be the images' last divided by the groups, and its "
            "fourth a multiple of the groups."
        )


def _axes(batched: Sequence[bool]) -> tuple[int | None, ...]:
    """Converts flags of `custom_vmap` to `in_axes` of `vmap`."""
    return tuple(0 if flag else None for flag in batched)


def _geometry(strides: Sequence[int], pads: Sequence[tuple[int, int]]) -> Geometry:
    """A geometry of plain integers, so that it can be hashed."""
    (down, across), ((top, bottom), (left, right)) = strides, pads
    return Geometry((int(down), int(across)), ((int(top), int(bottom)), (int(left), int(right))))
