"""The precision in which a model computes."""

import functools

import jax
import jax.numpy as jnp

from fedjax_bal.types import Array, Key, Model, Outputs, PyTree, Variables
from fedjax_bal.validate import one_of

_PRODUCTS = {"float32": "highest", "tensorfloat32": "tensorfloat32", "bfloat16": "bfloat16"}


def matmul_precision(precision: str) -> str:
    """JAX's name of a precision, for `jax.default_matmul_precision`.

    Args:
        precision: as in `Execution`. "float32" asks for full float32, which is not every accelerator's default.

    Returns:
        JAX's name for it.

    Raises:
        ValueError: for another precision.

    Example:
        >>> matmul_precision("float32")
        'highest'
    """
    return _PRODUCTS[one_of("precision", precision, _PRODUCTS)]


def at_precision(model: Model, precision: str) -> Model:
    """The same model, computing in another precision.

    With "bfloat16", images and a copy of the parameters are rounded to bfloat16 and every layer computes in it; logits,
    features and all statistics come out in float32, and so do gradients, because the parameters stay float32. With
    "float32" and "tensorfloat32" the model is unchanged: these two differ in `matmul_precision` alone, which the engine
    sets while it traces a round, and on a device without tensor cores not at all.

    Args:
        model: a model.
        precision: as in `Execution`.

    Returns:
        A model with the same parameters.

    Raises:
        ValueError: for another precision.

    References:
        Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.1: float32 master weights.

    Example:
        >>> from fedjax_bal.models import build
        >>> model = at_precision(build("mlp", 10, (28, 28, 1)), "bfloat16")
        >>> outputs, _ = model.apply(model.init(jax.random.key(0)), jnp.ones((2, 28, 28, 1)), train=False)
        >>> outputs.logits.dtype
        dtype('float32')
    """
    one_of("precision", precision, _PRODUCTS)
    return _in_bfloat16(model) if precision == "bfloat16" else model


@functools.lru_cache(maxsize=64)  # equal models are the same one, so that runs with them are the same program
def _in_bfloat16(model: Model) -> Model:
    return model._replace(
        apply=functools.partial(_apply_in_bfloat16, model), head=functools.partial(_head_in_bfloat16, model)
    )


def _apply_in_bfloat16(
    model: Model,
    variables: Variables,
    images: Array,
    *,
    train: bool,
    key: Key | None = None,
    real: Array | None = None,
) -> tuple[Outputs, Variables]:
    rounded = variables._replace(params=_cast(variables.params, jnp.bfloat16))
    outputs, after = model.apply(rounded, images.astype(jnp.bfloat16), train=train, key=key, real=real)
    return _cast(outputs, jnp.float32), after._replace(params=variables.params)


def _head_in_bfloat16(model: Model, params: PyTree, features: Array) -> Array:
    return model.head(_cast(params, jnp.bfloat16), features.astype(jnp.bfloat16)).astype(jnp.float32)


def _cast(tree: PyTree, dtype: jnp.dtype) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
