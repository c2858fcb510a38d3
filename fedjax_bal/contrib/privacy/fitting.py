"""The optimizer of the attacks."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.types import Array, PyTree


def minimise(
    loss: Callable[[PyTree, Array], tuple[Array, Array]], params: PyTree, iterations: int, rate: float | Array
) -> tuple[PyTree, Array]:
    """Minimises `loss(params, index) -> (value, report)` by Adam, at a rate that falls to 0 along half a cosine.

    Returns the last parameters, and the report before each step, `[iterations, ...]`.

    Example:
        >>> square = lambda x, index: ((x - 3) ** 2, (x - 3) ** 2)
        >>> x, losses = minimise(square, jnp.zeros(()), 200, 0.1)
        >>> round(float(x), 2), float(losses[0])
        (3.0, 9.0)
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, iterations))

    def step(carry: tuple[PyTree, PyTree], index: Array) -> tuple[tuple[PyTree, PyTree], Array]:
        params, state = carry
        grads, report = jax.grad(loss, has_aux=True)(params, index)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), report

    (params, _), reports = lax.scan(step, (params, optimizer.init(params)), jnp.arange(iterations))
    return params, reports
