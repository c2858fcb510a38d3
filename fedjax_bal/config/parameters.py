"""Parameters of functions as keys of a section."""

import inspect
import typing
from collections.abc import Callable, Collection
from typing import Annotated, Any

from annotated_types import Ge, Lt

from fedjax_bal.annotations import Number, Seed, checkable

# One parameter as pydantic's create_model takes it: its annotation and its default (... where it has none).
Field = tuple[Any, Any]

# Known by name wherever they occur, since annotations and optax leave the range of options open.
_SeedOrNull = Seed | None
_RANGES = {"momentum": Annotated[Number, Ge(0), Lt(1)], "seed": Seed, "published_seed": _SeedOrNull}


def parameters(function: Callable[..., Any], skip: Collection[str] = ()) -> dict[str, Field]:
    """The parameters of a function that a configuration can set: annotation and default by name.

    A parameter that neither its annotation nor its default explains (a function, a dtype) is left out. The default of a
    momentum is 0 where the function has None.

    Example:
        >>> def dirichlet(rng, alpha: float, min_size: int = 10): ...
        >>> fields = parameters(dirichlet, skip=["rng"])
        >>> sorted(fields), fields["min_size"][1]
        (['alpha', 'min_size'], 10)
    """
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in skip or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kind = _RANGES.get(name) or checkable(_annotation(function, parameter), parameter.default)
        default = 0.0 if name == "momentum" and parameter.default is None else parameter.default
        if kind is not None:
            found[name] = (kind, ... if default is parameter.empty else default)
    return found


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    try:
        return typing.get_type_hints(function).get(parameter.name, parameter.empty)
    except NameError:  # a name imported for type checkers only
        return parameter.empty
