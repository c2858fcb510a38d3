"""The choice between the layers' own fast derivatives and JAX's.

A layer's own derivative (`jax.custom_vjp`) works only in reverse mode and, for some layers, only once; JAX's works in
any mode and to any order, but is slower on CPUs.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from fedjax_bal.types import Model

F = TypeVar("F", bound=Callable[..., Any])

any_derivative = jax.make_user_context(False)
"""True where layers use JAX's own derivatives. JAX caches the programs of both settings separately."""


def fast_derivative(
    forward: Callable[..., Any], backward: Callable[..., Any], plain: Callable[..., Any] | None = None, **settings: Any
) -> Callable[[F], F]:
    """Decorates a function with the derivative of a `jax.custom_vjp`, which `any_derivative` switches off.

    Then `plain`, which computes the same, replaces the function; it is needed if JAX can't differentiate the function
    itself, or only slowly.
    """

    def decorate(function: F) -> F:
        flexible = plain or function
        fast = jax.custom_vjp(function, **settings)
        fast.defvjp(forward, backward)

        @functools.wraps(function)
        def choose(*operands: Any) -> Any:
            return flexible(*operands) if any_derivative.value else fast(*operands)

        return choose  # type: ignore[return-value]

    return decorate


# Cached, because compiled programs belong to a model's functions: equal models must be the same object.
@functools.lru_cache(maxsize=64)
def differentiable(model: Model) -> Model:
    """Returns the model with derivatives in any mode and of any order; it is slower, and on CPUs needs a single device.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedjax_bal.models import build
        >>> model = differentiable(build("mlp", 3, (8, 8, 1), hidden=[2]))
        >>> variables = model.init(jax.random.key(0))
        >>> loss = lambda images: model.apply(variables, images, train=False)[0].logits.sum()
        >>> jax.hessian(loss)(jnp.ones((1, 8, 8, 1))).shape
        (1, 8, 8, 1, 1, 8, 8, 1)
    """
    init, apply, head = (_with_any_derivative(function) for function in (model.init, model.apply, model.head))
    return model._replace(init=init, apply=apply, head=head)


def _with_any_derivative(function: F) -> F:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with any_derivative(True):
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]
