"""A convolution that stays fast inside loops and when every client has its own kernel.

`jax.vmap` over kernels turns a convolution into a grouped one, and inside a loop JAX's own weight gradient misses the
fast path of XLA:CPU; each costs a factor of ten or more. The convolution here therefore has its own derivative
(`jax.custom_vjp`), made of two linear pieces with their own batching (`jax.custom_batching.custom_vmap`):

- one client: the fastest form for the shape, see `fedjax_bal.models.convolution.rules`;
- clients with different kernels: shifted copies and batched matrix products;
- clients that share a kernel: one convolution of all their images.

Feature groups are handled like clients with different kernels. `convolution="plain"` in `fedjax_bal.models.build` is
JAX's own convolution: slower, but with second derivatives, as is any form within `fedjax_bal.models.differentiable`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float

from fedjax_bal.models.convolution import automatic, gradients
from fedjax_bal.models.convolution.forward import depthwise
from fedjax_bal.models.convolution.geometry import LAYOUT, Geometry, plain_convolution
from fedjax_bal.models.convolution.rules import FORMS, keep_apart
from fedjax_bal.models.derivatives import fast_derivative
from fedjax_bal.validate import one_of

PLAIN = 'build the model with convolution="plain"'


def convolution(
    images: Float[Array, "B H W K"],
    kernel: Float[Array, "h w K2 O"],
    window_strides: Sequence[int] = (1, 1),
    padding: str | Sequence[tuple[int, int]] = "SAME",
    *,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    form: str = "fast",
    **settings: Any,
) -> Float[Array, "B H2 W2 O"]:
    """Convolves images with a kernel, in any stride and padding, and in feature groups.

    Its signature is that of `flax.linen.Conv`'s argument `conv_general_dilated`. It composes with `vmap` (of images,
    kernel or both, also nested), with `grad`, loops and rematerialisation; it has second derivatives and forward mode
    only within `fedjax_bal.models.differentiable`. For dilation, another layout, a precision, or images that don't have
    two dimensions, it calls JAX's own convolution.

    Args:
        images: `[B, H, W, K]`.
        kernel: `[h, w, K / groups, O]`.
        window_strides: steps between outputs, down and across, in pixels.
        padding: "SAME", "VALID" or `((top, bottom), (left, right))` in pixels.
        dimension_numbers: None for those of `[B, H, W, K]` and `[h, w, K, O]`.
        feature_group_count: number of groups of input and output channels; each has its own kernel.
        form: one of `FORMS` in `fedjax_bal.models.convolution.rules`, or "auto", see
            `fedjax_bal.models.convolution.automatic`.
        **settings: further arguments of `jax.lax.conv_general_dilated`.

    Returns:
        `[B, H', W', O]`.

    Raises:
        ValueError: a second derivative, when tracing.

    Example:
        >>> import jax.numpy as jnp
        >>> convolution(jnp.ones((2, 28, 28, 1)), jnp.ones((5, 5, 1, 16)), (1, 1), "VALID").shape
        (2, 24, 24, 16)
    """
    asked = {name: value for name, value in settings.items() if value is not None}
    dilated = any(set(asked.pop(name, ())) - {1} for name in ("lhs_dilation", "rhs_dilation"))
    if images.ndim != 4 or dilated or asked or not _fits(images, kernel, dimension_numbers, feature_group_count):
        if images.ndim == 4 and dimension_numbers is None:
            dimension_numbers = LAYOUT
        settings |= {"dimension_numbers": dimension_numbers, "feature_group_count": feature_group_count}
        return lax.conv_general_dilated(images, kernel, window_strides, padding, **settings)
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(images.shape[1:3], kernel.shape[:2], window_strides, padding)
    if form == "auto":
        form = automatic.form()
    # Plain integers, so that equal geometries are one key of the caches below.
    down, across = window_strides
    (top, bottom), (left, right) = padding
    geometry = Geometry((int(down), int(across)), ((int(top), int(bottom)), (int(left), int(right))))
    if feature_group_count == 1:
        return _differentiable(geometry, form)(images, kernel)
    # With a single channel in each group, sums of shifted copies are faster than products.
    if kernel.shape[2] == 1:
        return depthwise(images, kernel, geometry)
    # Groups are handled as if they were clients, because XLA's grouped convolution is slow on CPUs.
    parts = images.reshape(*images.shape[:3], feature_group_count, -1)
    kernels = kernel.reshape(*kernel.shape[:3], feature_group_count, -1)
    results = jax.vmap(_differentiable(geometry, form), (3, 3), 3)(parts, kernels)
    return results.reshape(*results.shape[:3], -1)


def _fits(images: Array, kernel: Array, dimension_numbers: Any, groups: int) -> bool:
    """Tells whether the layout is the usual one and the channels match; if they don't, JAX raises the error."""
    if dimension_numbers not in (None, LAYOUT, lax.conv_dimension_numbers(images.shape, kernel.shape, LAYOUT)):
        return False
    return images.shape[3] == kernel.shape[2] * groups and kernel.shape[3] % groups == 0


def of_name(name: str) -> Callable[..., Array]:
    """Returns the convolution with this name, which has the signature of `jax.lax.conv_general_dilated`."""
    choices: dict[str, Callable[..., Array]] = {
        form: functools.partial(convolution, form=form) for form in ("auto", *FORMS)
    }
    choices["plain"] = lax.conv_general_dilated
    if one_of("convolution", name, choices) == "builtin":
        automatic.check_builtin()
    return choices[name]


# Cached, as are the two functions below, because jax finds a program by the functions in it: a new closure would be
# traced and compiled again in every call.
@functools.cache
def _differentiable(geometry: Geometry, form: str) -> Callable[[Array, Array], Array]:
    """Makes the convolution of one geometry, with its derivative."""

    def forward(images: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
        images = keep_apart(images)
        return _differentiable_once(_forward(geometry, form))(images, kernel), (images, kernel)

    def backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
        images, kernel = saved
        cotangent = keep_apart(cotangent)
        of_kernel = _differentiable_once(_weight_gradient(geometry, form, kernel.shape[:2]))(images, cotangent)
        phases, back = gradients.phase_kernel(kernel, geometry, images.shape[1:3], cotangent.shape[1:3])
        # The gradient with respect to the images is also a forward convolution, with its batching and choice of forms.
        of_images = _differentiable_once(_forward(back, form, back=True))(cotangent, phases)
        return gradients.interleave_phases(of_images, geometry.strides, images.shape[1:3]), of_kernel

    @fast_derivative(forward, backward, plain=functools.partial(plain_convolution, geometry=geometry))
    def convolve(images: Array, kernel: Array) -> Array:
        return _forward(geometry, form)(images, kernel)

    return convolve


@functools.cache
def _forward(geometry: Geometry, form: str, *, back: bool = False) -> Callable[[Array, Array], Array]:
    """Makes the convolution of one geometry, with its batching; `back` if it is the gradient of the images."""
    alone, together = (maps.back if back else maps.convolve for maps in FORMS[form])

    @custom_vmap
    def convolve(images: Array, kernel: Array) -> Array:
        return alone(images, kernel, geometry)

    # Without this rule, `vmap` over kernels would make a grouped convolution of the form for one client.
    @convolve.def_vmap
    def stacked(clients: int, batched: Sequence[bool], images: Array, kernel: Array) -> tuple[Array, bool]:
        del clients
        if not batched[1]:  # clients share the kernel: their images are one batch, and one product of more rows is fast
            joined = convolve(images.reshape(-1, *images.shape[2:]), kernel)
            return joined.reshape(*images.shape[:2], *joined.shape[1:]), True
        # From here on JAX batches, also for nested vmaps: the form consists of products, which batch as products.
        each = lambda images, kernel: together(images, kernel, geometry)
        return jax.vmap(each, _axes(batched))(images, kernel), True

    return convolve


@functools.cache
def _weight_gradient(geometry: Geometry, form: str, size: tuple[int, int]) -> Callable[[Array, Array], Array]:
    """Makes the gradient with respect to the kernel for one geometry, with its batching."""

    @custom_vmap
    def gradient(images: Array, cotangent: Array) -> Array:
        return FORMS[form].alone.gradient(images, cotangent, size, geometry)

    @gradient.def_vmap
    def stacked(clients: int, batched: Sequence[bool], images: Array, cotangent: Array) -> tuple[Array, bool]:
        del clients
        each = lambda images, cotangent: FORMS[form].stacked.gradient(images, cotangent, size, geometry)
        return jax.vmap(each, _axes(batched))(images, cotangent), True

    return gradient


def _differentiable_once(piece: Callable[..., Array]) -> Callable[..., Array]:
    """Wraps a function so that its derivative raises an error with the remedy."""

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


def _axes(batched: Sequence[bool]) -> tuple[int | None, ...]:
    """Converts flags of `custom_vmap` to `in_axes` of `vmap`."""
    return tuple(0 if flag else None for flag in batched)
