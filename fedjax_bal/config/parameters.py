"""Parameters of functions as keys of a section."""

import inspect
import itertools
import re
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

    Args:
        function: a function or a class.
        skip: parameters to leave out.

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


def documented(thing: Any) -> dict[str, str]:
    """Reads the texts on arguments or attributes, by name, from the docstring of a function or class.

    Example:
        >>> documented(parameters)["function"]
        'a function or a class.'
    """
    _, _, block = re.sub(r"^Attributes:$", "Args:", inspect.getdoc(thing) or "", flags=re.M).partition("\nArgs:\n")
    found: dict[str, str] = {}
    for line in itertools.takewhile(lambda line: not line or line.startswith(" "), block.splitlines()):
        entry = re.match(r" {4}(\w+): (.*)", line)
        if entry:
            found[entry[1]] = entry[2]
        elif found:
            found[list(found)[-1]] += " " + line.strip()
    return {name: text.strip() for name, text in found.items()}


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    try:
        return typing.get_type_hints(function).get(parameter.name, parameter.empty)
    except NameError:  # a name imported for type checkers only
        return parameter.empty
