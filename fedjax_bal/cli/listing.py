"""The lists of `fedjax-bal list`: every name that a configuration can use, with a text on each."""

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any


def listing(what: str) -> dict[str, str]:
    """The names of one kind, one of `LISTINGS`, each with a text of one or more lines.

    Raises:
        ValueError: there is no such list.

    Example:
        >>> print(listing("partitions")["shards"])
        Cuts the label-sorted data into equal shards and deals each client the same number of them.
        takes shards_per_client=2
        also called shard
        >>> print(listing("recipes")["fedprox"])
        FedAvg with a proximal term.
        takes mu=0.001
        from Li et al., MLSys 2020
    """
    if what not in LISTINGS:
        raise ValueError(f"list: received {what!r}; allowed: {', '.join(LISTINGS)}")
    return LISTINGS[what]()


def _recipes() -> dict[str, str]:
    from fedjax_bal.recipes import RECIPES, short_citation

    found = {}
    for name, function in RECIPES.items():
        takes, papers = _parameters(function), short_citation(name)
        lines = [_first_line(function), f"takes {takes}" if takes else "", f"from {papers}" if papers else ""]
        found[name] = "\n".join(line for line in lines if line)
    return found


def _selectors() -> dict[str, str]:
    from fedjax_bal.selection import FROM_FEDERATION, SELECTORS

    found = {}
    for name, function in SELECTORS.items():
        takes = _parameters(function, skip=("clients_per_round", *FROM_FEDERATION))
        found[name] = _first_line(function) + (f"\ntakes {takes}" if takes else "")
    return found


def _models() -> dict[str, str]:
    from fedjax_bal.models import MODELS, options

    found = {}
    for name, description in MODELS.items():
        takes = ", ".join(_with_default(key, option.default, ...) for key, option in options(name).items())
        found[name] = description + (f"\ntakes {takes}" if takes else "")
    return found


def _partitions() -> dict[str, str]:
    from fedjax_bal.data import partition

    found = {}
    for name, function in partition.SCHEMES.items():
        takes = _parameters(function, skip=("rng", "labels", "num_clients"))
        others = ", ".join(partition.aliases_of(name))
        lines = [_first_line(function), f"takes {takes}" if takes else "", f"also called {others}" if others else ""]
        found[name] = "\n".join(line for line in lines if line)
    return found


def _datasets() -> dict[str, str]:
    from fedjax_bal.data import DATASETS

    return {name: reader.description for name, reader in DATASETS.items()}


def _optimizers() -> dict[str, str]:
    import optax

    from fedjax_bal.config import parameters
    from fedjax_bal.optim import optimizer_names, option_names

    found = {}
    for name in optimizer_names():
        fields = parameters(getattr(optax, name))
        found[name] = _optax(name, {option: fields[option] for option in option_names(name) if option in fields})
    return found


def _schedules() -> dict[str, str]:
    from fedjax_bal.config import parameters
    from fedjax_bal.optim import schedule_factory, schedule_names

    found = {}
    for name in schedule_names():
        function = schedule_factory(name)
        own = function.__doc__ and _described({name: function})[name]
        found[name] = own or _optax(name, parameters(function))
    return found


def _optax(name: str, fields: Mapping[str, tuple[Any, Any]]) -> str:
    """The text on a function of optax, whose own texts are long."""
    takes = ", ".join(_with_default(key, default, ...) for key, (_, default) in fields.items())
    return f"optax.{name}" + (f"\ntakes {takes}" if takes else "")


def _availability() -> dict[str, str]:
    from fedjax_bal.selection import AVAILABILITY

    return _described(AVAILABILITY)


def _delivery() -> dict[str, str]:
    from fedjax_bal.selection import DELIVERY

    return _described(DELIVERY)


def _speeds() -> dict[str, str]:
    from fedjax_bal.selection import SPEEDS

    return _described(SPEEDS)


def _described(functions: Mapping[str, Callable[..., Any]]) -> dict[str, str]:
    """The first line on each function, and its parameters."""
    found = {}
    for name, function in functions.items():
        takes = _parameters(function)
        found[name] = _first_line(function) + (f"\ntakes {takes}" if takes else "")
    return found


LISTINGS: dict[str, Callable[[], dict[str, str]]] = {
    "recipes": _recipes,
    "models": _models,
    "selectors": _selectors,
    "partitions": _partitions,
    "datasets": _datasets,
    "optimizers": _optimizers,
    "schedules": _schedules,
    "availability": _availability,
    "delivery": _delivery,
    "speeds": _speeds,
}
"""Kind -> function that makes its list, which imports only what it needs."""


def _first_line(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").strip().splitlines()[0]


def _parameters(function: Callable[..., Any], skip: Collection[str] = ()) -> str:
    """The parameters with their defaults, as a configuration writes them."""
    shown = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in skip:
            continue
        shown.append(_with_default(name, parameter.default, parameter.empty))
    return ", ".join(shown)


def _with_default(name: str, default: Any, none: Any) -> str:
    return name if default is none else f"{name}={_written(default)}"


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
