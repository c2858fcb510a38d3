"""Optax transformations and schedules as they are: static values, whose numbers can't be read."""

import contextlib
import dataclasses
import functools
import types
from collections.abc import Hashable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_bal.jax_setup import is_users
from fedjax_bal.types import PyTree


@jax.tree_util.register_static
class Opaque:
    """A function, or a pytree of functions and arrays, as part of a compiled program or as a key.

    Two are equal if optax made them in the same way from equal numbers, and arrays are equal to the last bit. A
    function from elsewhere may read anything, such as a global number, and so equals itself alone.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        try:
            self._contents = _contents(value)
        except (TypeError, ValueError, RecursionError):  # a traced number, an empty cell, a function that holds itself
            self._contents = id(value)

    def __eq__(self, other: object) -> bool:
        """Compares by contents."""
        return isinstance(other, Opaque) and self._contents == other._contents

    def __hash__(self) -> int:
        """The hash of the contents."""
        return hash(self._contents)

    def __repr__(self) -> str:
        """A function's name, or the type of several functions."""
        return getattr(self.value, "__qualname__", f"optax.{type(self.value).__name__}")


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class UnknownNumber:
    """Stands for the learning rate or the momentum of an optax transformation; using it raises `ValueError`."""

    def _refuse(self, *_: Any) -> Any:
        raise ValueError(
            "optimizer: received an optax transformation, whose learning rate and momentum can't be read from it, but "
            "a part asks for one of them: build the optimizer with fedjax_bal.optimizer, as optimizer('sgd', 0.1)"
        )

    __jax_array__ = __array__ = __float__ = __bool__ = __neg__ = __abs__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __pow__ = __rpow__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


UNKNOWN = UnknownNumber()


def in_round(given: optax.GradientTransformation, round: Any) -> optax.GradientTransformation:
    """A transformation whose schedules of `optax.inject_hyperparams` are at a round, whatever its own steps."""
    counter = type(optax.WrappedSchedule(optax.constant_schedule(0.0)).init())
    is_counter = lambda node: isinstance(node, counter)
    now = counter(jnp.asarray(round, jnp.int32))

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None) -> tuple[PyTree, PyTree]:
        state = jax.tree.map(lambda node: now if is_counter(node) else node, state, is_leaf=is_counter)
        return given.update(updates, state, params)

    return optax.GradientTransformation(given.init, update)


def _contents(value: Any) -> Hashable:
    """A hashable value, equal for values that were made alike; it holds all functions, so that none is forgotten."""
    leaves, structure = jax.tree.flatten(value)
    return structure, tuple(map(_leaf_contents, leaves))


def _leaf_contents(leaf: Any) -> Hashable:
    if isinstance(leaf, functools.partial):
        return functools.partial, _contents((leaf.func, leaf.args, leaf.keywords))
    if isinstance(leaf, types.MethodType):
        return types.MethodType, _contents((leaf.__func__, leaf.__self__))
    if isinstance(leaf, types.FunctionType) and _is_of_optax(leaf):
        cells = [cell.cell_contents for cell in leaf.__closure__ or ()]
        return leaf.__code__, _contents((cells, leaf.__defaults__, leaf.__kwdefaults__))
    if _is_of_optax(type(leaf)):  # an object of optax without a value of its own, such as a wrapped schedule
        return type(leaf), _contents(vars(leaf))
    if isinstance(leaf, np.ndarray | jax.Array):
        array = np.asarray(leaf)
        return array.shape, array.dtype.str, array.tobytes()
    hash(leaf)
    return type(leaf), leaf


def calls_other_code(value: Any) -> bool:
    """Tells whether a function from elsewhere, which may read any value, is in a function or a pytree of them."""
    try:
        return any(map(_calls_other_code, jax.tree.leaves(value)))
    except RecursionError:  # a function that holds itself
        return True


def _calls_other_code(leaf: Any) -> bool:
    if isinstance(leaf, functools.partial):
        return calls_other_code((leaf.func, leaf.args, leaf.keywords))
    if isinstance(leaf, types.MethodType):
        return calls_other_code((leaf.__func__, leaf.__self__))
    if isinstance(leaf, types.FunctionType) and _is_of_optax(leaf):
        return calls_other_code((list(_filled_cells(leaf)), leaf.__defaults__, leaf.__kwdefaults__))
    if _is_of_optax(type(leaf)):
        return calls_other_code(vars(leaf))
    return callable(leaf) and is_users(getattr(leaf, "__module__", None) or type(leaf).__module__)


def _filled_cells(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # the cell of a variable that was never assigned
            yield cell.cell_contents


def _is_of_optax(made: Any) -> bool:
    return (made.__module__ or "").partition(".")[0] == "optax"
