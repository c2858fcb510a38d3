"""Compiled functions: their types for editors, and a check of their arguments' shapes while they are traced."""

import functools
import inspect
import operator
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

F = TypeVar("F", bound=Callable[..., Any])
Sizes = dict[str, Any]

if TYPE_CHECKING:
    AnyArray = Array | np.ndarray  # `jax.jit` converts arguments
else:
    AnyArray = Array

Number = Num[Array, ""] | float
Counts = Num[AnyArray, "*batch C"]


def jitted(*static: str) -> Callable[[F], F]:
    """Decorates a function with `jax.jit`, whose own type hides the function's; `static` names its static arguments.

    The shapes of arguments are checked by their annotations while the function is traced, so a call neither takes
    longer nor waits for the values. Lists become arrays.
    """

    def decorate(function: F) -> F:
        known = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            bound = known.bind(*args, **kwargs)
            sizes: Sizes = {}
            for name, value in bound.arguments.items():
                bound.arguments[name] = _checked(name, known.parameters[name].annotation, value, sizes)
            return function(*bound.args, **bound.kwargs)

        return cast(F, jax.jit(checked, static_argnames=static))

    return decorate


def as_counts(counts: Num[AnyArray, "*shape"]) -> Float[Array, "*shape"]:
    """Converts counts or shares to floats, negative ones to NaN: they must not pass for absent classes."""
    counts = jnp.asarray(counts, float)
    return jnp.where(counts >= 0, counts, jnp.nan)


def _checked(name: str, annotation: Any, value: Any, sizes: Sizes) -> Any:
    """Returns an argument, a list as an array; adds the sizes of its axes. Raises `ValueError` if it is invalid."""
    kind = annotation
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    arrays = [member for member in members if hasattr(member, "dim_str")]
    if (value is None and types.NoneType in members) or get_origin(kind) is Sequence:
        return value
    if get_origin(kind) is Literal:
        return _named(name, get_args(kind), value)
    if not arrays:
        return _whole(name, value)
    if not isinstance(value, jax.Array | np.ndarray | np.generic | int | float):
        value = _as_array(name, value, arrays, sizes)
    shape = np.shape(value)
    if shape or not {int, float} & {*members}:
        fitting = [found for array in arrays if (found := _match(array.dim_str.split(), shape, sizes)) is not None]
        if not fitting:
            raise ValueError(f"{name}: received shape {shape}, {_wanted(name, arrays, shape, sizes)}")
        sizes.update(fitting[0])
    kind, declared = jnp.result_type(value), [dtype for array in arrays for dtype in array.dtypes]
    if all(dtype.startswith(("int", "uint")) for dtype in declared) and jnp.issubdtype(kind, jnp.inexact):
        raise ValueError(f"{name}: received type {kind}, must be integers")
    if all(dtype.startswith("bool") for dtype in declared) and not jnp.issubdtype(kind, jnp.bool_):
        raise ValueError(f"{name}: received type {kind}, must be booleans")
    return value


def _named(name: str, allowed: tuple[str, ...], value: Any) -> str:
    if not isinstance(value, str) or value not in allowed:
        *others, last = map(repr, allowed)
        raise ValueError(f"{name}: received {value!r:.80}, must be {', '.join(others)} or {last}")
    return value


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name}: received {value!r:.80}, must be an integer") from None


def _as_array(name: str, value: Any, arrays: Sequence[Any], sizes: Sizes) -> Array:
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: received {value!r:.80}, {_wanted(name, arrays, None, sizes)}") from None


def _match(axes: list[str], shape: tuple[int, ...], sizes: Sizes) -> Sizes | None:
    """Returns the sizes of named axes, if a shape fits to them and to those known before; None otherwise."""
    found: Sizes = {}
    if axes and axes[0].startswith("*"):
        star, *axes = axes
        count = len(shape) - len(axes)
        if count < 0:
            return None
        leading = shape[:count]
        shape = shape[count:]
        before = sizes.get(star.lstrip("*#"), leading)
        try:
            found[star.lstrip("*#")] = np.broadcast_shapes(leading, before)
        except ValueError:
            return None
        if "#" not in star and leading != before:
            return None
    if len(axes) != len(shape):
        return None
    for axis, size in zip(axes, shape, strict=True):
        wanted = int(axis) if axis.isdigit() else size if axis == "_" else {**sizes, **found}.get(axis, size)
        if size != wanted or (axis == "C" and size == 0):
            return None
        found[axis] = size
    return found


def _wanted(name: str, arrays: Sequence[Any], shape: tuple[int, ...] | None, sizes: Sizes) -> str:
    """Describes the shapes that an argument may have, in words that complete "received ..., "."""
    forms = []
    remedy = ""
    for axes in (array.dim_str.split() for array in arrays):
        shown = ", ".join("..." if axis.startswith("*") else axis for axis in axes)
        known = {axis: sizes[axis] for axis in axes if axis in sizes}
        if axes and len(known) == len(axes):
            forms.append(f"[{shown}] = {tuple(known.values())}")
        else:
            parts = [f"{axis} = {size}" for axis, size in known.items()]
            parts += ["at least one class"] if "C" in axes and "C" not in known else []
            forms.append(" with ".join([f"[{shown}]" if shown else "a number", *filter(None, [" and ".join(parts)])]))
        if shape is not None and axes[:1] == ["B"] and len(shape) == len(axes) - 1:
            remedy = f"; for a single row add an axis, {name}[None]"
    return f"must be {' or '.join(dict.fromkeys(forms))}{remedy}"
