"""The choice between fast derivatives of the layers' own and those that JAX finds.

A layer's own derivative (`jax.custom_vjp`) works in reverse mode and, for some layers, once; JAX's works in any mode,
as often as wanted, but is slower on CPUs.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from fedjax_bal.types import Model

F = TypeVar("F", bound=Callable[..., Any])

any_derivative = jax.make_user_context(False)
"""True where layers use JAX's own derivatives. JAX keeps the programs of both settings apart in its caches."""


def fast_derivative(
    forward: Callable[..., Any], backward: Callable[..., Any], plain: Callable[..., Any] | None = None, **settings: Any
) -> Callable[[F], F]:
    """Decorator: gives a function the derivative of `jax.custom_vjp`, which `any_derivative` leaves out.

    There `plain`, which computes the same, takes the function's place, if JAX's derivative of the function won't do.
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
    """The same model with derivatives in any mode and of any order; it is slower, and on CPUs needs a single device.

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
