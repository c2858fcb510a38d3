"""The types of compiled functions, as type checkers and editors are to see them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import jax
import numpy as np
from jaxtyping import Array

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    AnyArray = Array | np.ndarray  # `jax.jit` converts arguments
else:
    AnyArray = Array


def jitted(*static: str) -> Callable[[F], F]:
    """Decorates a function with `jax.jit`, whose own type hides the function's; `static` names its static arguments."""
    return lambda function: cast(F, jax.jit(function, static_argnames=static))
