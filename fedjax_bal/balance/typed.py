"""Compiled functions: their types for editors, and one check of all arguments by their annotations."""

import dataclasses
import functools
import inspect
import operator
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, Gt, Le
from jax.core import Tracer
from jaxtyping import Array, Float, Num

F = TypeVar("F", bound=Callable[..., Any])
Sizes = dict[str, Any]

# Bounds may be exceeded by a rounding error: that of a decayed beta, for instance, by one digit of 32 bits.
_ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True)
class Below:
    """Annotation of labels: integers from 0 to the size of an axis, less one."""

    axis: str


if TYPE_CHECKING:
    AnyArray = Array | np.ndarray  # `jax.jit` converts arguments
else:
    AnyArray = Array

Number = Num[Array, ""] | float
Counts = Annotated[Num[AnyArray, "*batch C"], Ge(0)]
NonNegative = Annotated[Number, Ge(0)]
Positive = Annotated[Number, Gt(0)]
Share = Annotated[Number, Ge(0), Le(1)]


def jitted(*static: str) -> Callable[[F], F]:
    """Decorates a function with `jax.jit`, whose own type hides the function's; `static` names its static arguments.

    Arguments are checked by their annotations first: shapes always, also those of traced arrays; bounds (`Ge`, `Gt`,
    `Le`, `Below`) where values are known. A NaN is within all bounds, as it shows in the result. Lists become arrays.
    Inside a compiled program nothing is left of the checks.
    """

    def decorate(function: F) -> F:
        compiled = jax.jit(function, static_argnames=static)
        known = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = known.bind(*args, **kwargs)
            except TypeError:
                return compiled(*args, **kwargs)  # raises Python's own error, which names the function
            sizes: Sizes = {}
            for name, value in bound.arguments.items():
                bound.arguments[name] = _checked(name, known.parameters[name].annotation, value, sizes)
            for name, value in bound.arguments.items():
                _check_bounds(name, known.parameters[name].annotation, value, sizes)
            return compiled(*bound.args, **bound.kwargs)

        return cast(F, call)

    return decorate


def as_counts(counts: Num[AnyArray, "*shape"]) -> Float[Array, "*shape"]:
    """Converts counts or shares to floats, negative ones to NaN: they must not pass for absent classes."""
    counts = jnp.asarray(counts, float)
    return jnp.where(counts >= 0, counts, jnp.nan)


def _checked(name: str, annotation: Any, value: Any, sizes: Sizes) -> Any:
    """Returns an argument, a list as an array; adds the sizes of its axes. Raises `ValueError` if it is invalid."""
    kind = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
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


def _as_array(name: str, value: Any, arrays: Sequence[Any], sizes: Sizes) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name}: received {value!r:.80}, {_wanted(name, arrays, None, sizes)}")
    return array


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


def _check_bounds(name: str, annotation: Any, value: Any, sizes: Sizes) -> None:
    """Raises `ValueError` for a value out of bounds, if it is known; a NaN is within them."""
    unknown = value is None or isinstance(value, Tracer) or not getattr(value, "is_fully_addressable", True)
    if unknown or get_origin(annotation) is not Annotated:
        return
    values = np.asarray(value)
    notes: Sequence[Any] = annotation.__metadata__
    for note in notes:
        if isinstance(note, Below):
            high = sizes[note.axis] - 1
            outside = (values < 0) | (values > high)
            rule = f"from 0 to {note.axis} - 1 = {high}; leave out or mask rows without a class"
        elif isinstance(note, Le):
            most: Any = note.le
            outside = values > most + _ROUNDING
            rule = f"at most {note.le}"
        elif isinstance(note, Gt):
            outside = values <= note.gt
            rule = f"above {note.gt}"
        else:
            outside = values < note.ge
            rule = f"at least {note.ge}"
        if outside.any():
            raise ValueError(f"{name}: received {values[outside].flat[0]:g}, must be {rule}")
