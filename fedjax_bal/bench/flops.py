"""Counts the floating-point operations of a model in its traced program.

A multiply-add is two operations; only dense layers and convolutions count. A convolution is counted as one (with its
padding) regardless of the form that computes it, so the model is traced with JAX's own convolution. Training is the
forward pass and two more of the same size, the gradients of weights and of inputs, minus the gradient of the images,
which isn't needed.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from fedjax_bal.models import differentiable
from fedjax_bal.types import Model


class Flops(NamedTuple):
    """Floating-point operations per sample.

    Attributes:
        forward: operations of a forward pass.
        training: operations of a training step.
    """

    forward: int
    training: int


def model_flops(model: Model) -> Flops:
    """Counts the operations per sample of a model, traced with JAX's own convolution.

    Example:
        >>> from fedjax_bal import models
        >>> model_flops(models.build("mlp", 10, (28, 28, 1)))  # 784 x 64 and 64 x 10 multiply-adds
        Flops(forward=101632, training=204544)
    """
    model = differentiable(model)
    key = jax.random.key(0)
    variables = jax.eval_shape(model.init, key)
    images = jax.ShapeDtypeStruct((1, *model.input_shape), model.input_dtype)
    program = jax.make_jaxpr(lambda v, x: model.apply(v, x, train=True, key=key)[0].logits)(variables, images)
    layers = list(count(program))
    forward = sum(layers)
    return Flops(forward, 3 * forward - layers[0])


def count(program: ClosedJaxpr | Jaxpr) -> Iterator[int]:
    """Yields the operations of each matrix product and convolution of a program, in order.

    A loop is counted as often as it runs, if that is known; a branch counts as its most expensive arm.

    Example:
        >>> import jax.numpy as jnp
        >>> list(count(jax.make_jaxpr(jnp.dot)(jnp.zeros((2, 3)), jnp.zeros((3, 5)))))
        [60]
    """
    for equation in program.eqns:
        match equation.primitive.name:
            case "dot_general":
                (contracted, _), _ = equation.params["dimension_numbers"]
                lengths = [equation.invars[0].aval.shape[axis] for axis in contracted]  # type: ignore[attr-defined]
                yield 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(lengths)  # type: ignore[attr-defined]
            case "conv_general_dilated":
                kernel = equation.invars[1].aval.shape  # type: ignore[attr-defined]
                outputs = equation.params["dimension_numbers"].rhs_spec[0]
                window = math.prod(kernel) // kernel[outputs]  # already the channels of one group
                yield 2 * math.prod(equation.outvars[0].aval.shape) * window  # type: ignore[attr-defined]
            case "scan":
                inside = list(count(equation.params["jaxpr"]))
                yield from inside * equation.params["length"]
            case "cond":
                yield from max((list(count(arm)) for arm in equation.params["branches"]), key=sum)
            case _:
                for part in _programs(equation.params.values()):
                    yield from count(part)


def _programs(values: Any) -> Iterator[ClosedJaxpr | Jaxpr]:
    for value in values:
        if isinstance(value, ClosedJaxpr | Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from _programs(value)
