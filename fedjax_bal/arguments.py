"""Annotations of ranges, and a decorator that checks a function's arguments by their annotations."""

import functools
import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec, TypeVar

import numpy as np
from annotated_types import Ge, Gt, Lt

from fedjax_bal.validate import check_generator, checked_labels

Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Gt(0), Lt(1)]

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function so that it first validates and converts its arguments by their annotations.

    Configurations are validated by the same annotations. An argument `rng` must be a NumPy generator, and `labels` must
    be integers; arguments of types that YAML can't express are passed on unchecked.

    Example:
        >>> @checked
        ... def in_groups(clients: Count, size: Count = 2):
        ...     return clients // size
        >>> in_groups(7), in_groups(np.int64(7), 3.0)
        (3, 2)
        >>> in_groups(0)
        Traceback (most recent call last):
        ValueError: clients: received 0, must be an integer of at least 1
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        from fedjax_bal.annotations import check  # imports pydantic, which `import fedjax_bal` avoids

        bound = signature.bind(*args, **kwargs)
        kinds = _kinds(function)
        for name, value in bound.arguments.items():
            if name == "rng":
                check_generator(value)
            elif name == "labels":
                bound.arguments[name] = checked_labels(value)
            elif name in kinds:
                if isinstance(value, np.ndarray | np.generic):
                    value = value.tolist()
                elif isinstance(value, os.PathLike):
                    value = os.fspath(value)
                bound.arguments[name] = check(name, kinds[name], value)
        return function(*bound.args, **bound.kwargs)

    return call


@functools.cache
def _kinds(function: Callable[..., Any]) -> dict[str, Any]:
    from fedjax_bal.annotations import parameters

    return {name: kind for name, (kind, _) in parameters(function).items()}
