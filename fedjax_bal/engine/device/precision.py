"""The precision in which a model computes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_bal.types import Array, Model, Outputs, PyTree, Variables
from fedjax_bal.validate import one_of

_PRODUCTS = {"float32": "highest", "tensorfloat32": "tensorfloat32", "bfloat16": "bfloat16"}


def matmul_precision(precision: str) -> str:
    """JAX's name of a precision of `Execution`, for `jax.default_matmul_precision`.

    "float32" asks for full float32, which is not every accelerator's default.
    """
    return _PRODUCTS[one_of("precision", precision, _PRODUCTS)]


def at_precision(model: Model, precision: str) -> Model:
    """The same model, with the same parameters, computing in another precision of `Execution`.

    With "bfloat16", images and a copy of the parameters are rounded to bfloat16 and every layer computes in it; logits,
    features and all statistics are returned in float32, and so are gradients, because the parameters stay float32
    (Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.1). With "float32" and "tensorfloat32" the
    model is unchanged: these two differ in `matmul_precision` alone, which the engine sets while it traces a round.
    """
    one_of("precision", precision, _PRODUCTS)
    return _in_bfloat16(model) if precision == "bfloat16" else model


@functools.lru_cache(maxsize=64)  # equal models are the same one, so that runs with them are the same program
def _in_bfloat16(model: Model) -> Model:
    def apply(variables: Variables, images: Array, **mode: Any) -> tuple[Outputs, Variables]:
        rounded = variables._replace(params=_cast(variables.params, jnp.bfloat16))
        outputs, after = model.apply(rounded, images.astype(jnp.bfloat16), **mode)
        return _cast(outputs, jnp.float32), after._replace(params=variables.params)

    def head(params: PyTree, features: Array) -> Array:
        return model.head(_cast(params, jnp.bfloat16), features.astype(jnp.bfloat16)).astype(jnp.float32)

    return model._replace(apply=apply, head=head)


def _cast(tree: PyTree, dtype: jnp.dtype) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
