"""What a configuration can name, with a text on each: what `fedjax-bal list` shows."""

import inspect
import json
from collections.abc import Callable, Collection
from typing import Any


def listing(what: str) -> dict[str, str]:
    """The names of one kind.

    Args:
        what: one of `LISTINGS`.

    Returns:
        Name -> a text of one or more lines.

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
    from fedjax_bal.citations import short_citation
    from fedjax_bal.recipes import RECIPES

    found = {}
    for name, function in RECIPES.items():
        takes, papers = _parameters(function), short_citation(name)
        lines = [_first_line(function), f"takes {takes}" if takes else "", f"from {papers}" if papers else ""]
        found[name] = "\n".join(line for line in lines if line)
    return found


def _selectors() -> dict[str, str]:
    from fedjax_bal.selection.choice import FROM_FEDERATION, SELECTORS

    found = {}
    for name, function in SELECTORS.items():
        takes = _parameters(function, skip=("clients_per_round", *FROM_FEDERATION))
        found[name] = _first_line(function) + (f"\ntakes {takes}" if takes else "")
    return found


def _models() -> dict[str, str]:
    from fedjax_bal.models import MODELS

    return dict(MODELS)


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

    return {name: info.description for name, info in DATASETS.items()}


LISTINGS: dict[str, Callable[[], dict[str, str]]] = {
    "recipes": _recipes,
    "models": _models,
    "selectors": _selectors,
    "partitions": _partitions,
    "datasets": _datasets,
}
"""Kind -> what makes its list; nothing is imported before it is asked for."""


def _first_line(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").strip().splitlines()[0]


def _parameters(function: Callable[..., Any], skip: Collection[str] = ()) -> str:
    """The parameters with their defaults, as a configuration writes them."""
    shown = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in skip:
            continue
        default = parameter.default
        shown.append(name if default is parameter.empty else f"{name}={_written(default)}")
    return ", ".join(shown)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
