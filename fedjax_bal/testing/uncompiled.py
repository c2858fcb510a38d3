"""Runs a program without XLA: each operation at once, the simple ones in NumPy.

Under `jax.disable_jit` alone JAX still compiles every operation for every shape: hundreds of programs for one round.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import primitives

_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "abs_p": np.abs,
    "add_p": np.add,
    "and_p": np.bitwise_and,
    "eq_p": np.equal,
    "exp_p": np.exp,
    "ge_p": np.greater_equal,
    "gt_p": np.greater,
    "is_finite_p": np.isfinite,
    "le_p": np.less_equal,
    "log1p_p": np.log1p,
    "log_p": np.log,
    "lt_p": np.less,
    "max_p": np.maximum,
    "min_p": np.minimum,
    "mul_p": np.multiply,
    "ne_p": np.not_equal,
    "neg_p": np.negative,
    "not_p": np.invert,
    "or_p": np.bitwise_or,
    "shift_right_logical_p": np.right_shift,
    "sign_p": np.sign,
    "sqrt_p": np.sqrt,
    "sub_p": np.subtract,
    "tanh_p": np.tanh,
    "xor_p": np.bitwise_xor,
}


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Within this context nothing is traced, and only operations that NumPy lacks are compiled, one by one."""
    known = {getattr(primitives, name): rule for name, rule in _RULES.items() if hasattr(primitives, name)}
    compiled = {primitive: primitive.impl for primitive in known}
    try:
        for primitive, rule in known.items():
            primitive.def_impl(functools.partial(_run_operation, rule, compiled[primitive]))
        with jax.disable_jit():
            yield
    finally:
        for primitive, implementation in compiled.items():
            primitive.def_impl(implementation)


def _run_operation(rule: Callable[..., Any], compiled: Callable[..., Any], *operands: Any, **options: Any) -> Any:
    """Runs the operation in NumPy, or by XLA if the rule doesn't cover its operands or options."""
    if all(map(_plain, operands)):
        with np.errstate(all="ignore"):
            result = rule(*map(np.asarray, operands), **options)
        if result is not NotImplemented:
            return jax.device_put(np.asarray(result, order="C"))
    return compiled(*operands, **options)


def _plain(operand: Any) -> bool:
    """Tells whether NumPy computes with the operand as JAX does: an array of numbers whose type isn't weak."""
    if not isinstance(operand, np.ndarray | jax.Array) or jnp.issubdtype(operand.dtype, jax.dtypes.extended):
        return False
    return operand.dtype != jnp.bfloat16 and not jax.typeof(operand).weak_type


def _elementwise(function: Callable[..., Any], *operands: np.ndarray, **options: Any) -> Any:
    if function is np.right_shift and operands[0].dtype.kind != "u":
        return NotImplemented
    return function(*operands) if _default(options) else NotImplemented


def _reduction(function: Callable[..., Any], operand: np.ndarray, *, axes: tuple[int, ...], **options: Any) -> Any:
    return function(operand, axis=tuple(axes)).astype(operand.dtype) if _default(options) else NotImplemented


def _broadcast(
    operand: np.ndarray, *, shape: tuple[int, ...], broadcast_dimensions: tuple[int, ...], **options: Any
) -> Any:
    sides = [1] * len(shape)
    for side, dimension in zip(operand.shape, broadcast_dimensions, strict=True):
        sides[dimension] = side
    return np.broadcast_to(operand.reshape(sides), shape) if _default(options) else NotImplemented


def _convert(operand: np.ndarray, *, new_dtype: Any, weak_type: bool, **options: Any) -> Any:
    known = isinstance(new_dtype, np.dtype) and new_dtype.kind in "bif" and new_dtype != jnp.bfloat16
    # NumPy and XLA differ for floats that are too large for an integer.
    exact = known and not weak_type and not (operand.dtype.kind == "f" and new_dtype.kind == "i")
    return operand.astype(new_dtype) if exact and _default(options) else NotImplemented


def _select(which: np.ndarray, *cases: np.ndarray) -> Any:
    return np.where(which, cases[1], cases[0]) if which.dtype == bool and len(cases) == 2 else NotImplemented


def _divide(above: np.ndarray, below: np.ndarray) -> Any:
    return np.divide(above, below) if above.dtype.kind == "f" else NotImplemented


def _power(base: np.ndarray, *, y: int) -> Any:
    return base**y if base.dtype.kind == "f" else NotImplemented


def _reshape(operand: np.ndarray, *, new_sizes: tuple[int, ...], **options: Any) -> Any:
    return operand.reshape(new_sizes) if _default(options) else NotImplemented


def _slice(operand: np.ndarray, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    return operand[tuple(map(slice, start_indices, limit_indices, strides or [1] * operand.ndim))]


def _dynamic_slice(operand: np.ndarray, *starts: np.ndarray, slice_sizes: tuple[int, ...]) -> Any:
    inside = [
        min(max(int(start), 0), side - size)
        for start, side, size in zip(starts, operand.shape, slice_sizes, strict=True)
    ]
    return operand[tuple(slice(start, start + size) for start, size in zip(inside, slice_sizes, strict=True))]


def _product(left: np.ndarray, right: np.ndarray, *, dimension_numbers: Any, **options: Any) -> Any:
    if not left.dtype == right.dtype == np.float32 or options.get("out_sharding") is not None:
        return NotImplemented
    (summed, theirs), (batch, beside) = dimension_numbers
    names = list(range(left.ndim))
    others = list(range(left.ndim, left.ndim + right.ndim))
    for mine, other in zip((*summed, *batch), (*theirs, *beside), strict=True):
        others[other] = names[mine]
    free = [name for name in (*names, *others) if names.count(name) + others.count(name) == 1]
    return np.einsum(left, names, right, others, [names[axis] for axis in batch] + free)


def _default(options: dict[str, Any]) -> bool:
    """Tells whether all options that the NumPy rule does not know are None."""
    return all(option is None for option in options.values())


_RULES: dict[str, Callable[..., Any]] = {
    **{name: functools.partial(_elementwise, function) for name, function in _ELEMENTWISE.items()},
    "broadcast_in_dim_p": _broadcast,
    "concatenate_p": lambda *operands, dimension: np.concatenate(operands, dimension),
    "convert_element_type_p": _convert,
    "div_p": _divide,
    "dot_general_p": _product,
    "dynamic_slice_p": _dynamic_slice,
    "integer_pow_p": _power,
    "reduce_and_p": functools.partial(_reduction, np.all),
    "reduce_max_p": functools.partial(_reduction, np.max),
    "reduce_min_p": functools.partial(_reduction, np.min),
    "reduce_or_p": functools.partial(_reduction, np.any),
    "reduce_sum_p": functools.partial(_reduction, np.sum),
    "reshape_p": _reshape,
    "select_n_p": _select,
    "slice_p": _slice,
    "squeeze_p": lambda operand, *, dimensions: np.squeeze(operand, tuple(dimensions)),
    "transpose_p": lambda operand, *, permutation: operand.transpose(permutation),
}
