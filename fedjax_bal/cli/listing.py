"""The lists of `fedjax-bal list`: every name that a configuration can use, with a text on each."""

import inspect
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from textwrap import indent
from typing import Any

from fedjax_bal.config import nearest_choices


def listing(what: str) -> dict[str, str]:
    """The names of one kind, one of `LISTINGS`, each with a text of one or more lines.

    Example:
        >>> print(listing("partitions")["shards"])
        Cuts the label-sorted data into equal shards and deals each client the same number of them.
        takes shards_per_client=2
        also called shard
        >>> print(listing("recipes")["fedavg_ft"])
        FedAvg whose server fine-tunes the classifier on balanced rows of its own after each round.
        takes epochs=5, learning_rate=0.01, momentum=0.5, batch_size=50
        needs auxiliary rows (auxiliary.per_class)
        from Xu et al., arXiv 2023
    """
    if what not in LISTINGS:
        raise ValueError(f"list: received {what!r}; {nearest_choices(what, LISTINGS)}")
    return LISTINGS[what]()


def grouped(what: str | None) -> Iterator[tuple[str, dict[str, str]]]:
    """The names of a kind with their texts, in groups with headings; recipes by family, others in one group.

    For None the kinds themselves.
    """
    if what is None:
        yield "", {kind: f"fedjax-bal list {kind}" for kind in LISTINGS}
        return
    texts = listing(what)
    if what != "recipes":
        yield "", texts
        return
    families: dict[str, dict[str, str]] = {}
    for name, text in texts.items():
        families.setdefault(_family(name), {})[name] = text
    yield from families.items()


def _family(recipe: str) -> str:
    from fedjax_bal.recipes import RECIPES

    heading = (inspect.getdoc(inspect.getmodule(RECIPES[recipe])) or "Of your own").partition("\n")[0]
    return heading.rstrip(".")


def described_whole(kind: str, name: str) -> str:
    """All that is known of a name: what `listing` says, its docstring or header, and of a recipe its parts and papers.

    Raises:
        ValueError: there is no such kind or name.

    Example:
        >>> "Proximal (Loss)" in described_whole("recipes", "fedprox")
        True
        >>> "Command   fedjax-bal run" in described_whole("configs", "quickstart")
        True
    """
    names = listing(kind)
    if name not in names:
        raise ValueError(f"list {kind}: received {name!r}; {nearest_choices(name, names)}")
    if kind == "configs":
        return _headers()[name]
    return names[name] if kind not in _FUNCTIONS else "\n\n".join(_whole(kind, name, _FUNCTIONS[kind]()[name]))


def _whole(kind: str, name: str, function: Callable[..., Any]) -> Iterator[str]:
    yield inspect.getdoc(function) or ""
    if kind == "recipes":
        from fedjax_bal.parts import names_of_needs
        from fedjax_bal.recipes import citation

        yield "\n".join([f"Defaults: {_defaults(function) or 'it has no options'}", *_readings(function)])
        recipe = _at_defaults(function)
        if recipe is None:
            return
        yield f"Needs at these defaults: {', '.join(names_of_needs(recipe.parts)) or 'nothing'}"
        parts = [_part(part) for part in recipe.parts] or ["  none"]
        yield "\n\n".join(["Parts at these defaults, with their roles:", *parts])
        try:
            yield citation(recipe)
        except ValueError:
            yield f"No citation of {recipe.name} is known; `register(..., citation=BIBTEX)` gives one to your own."


def _part(part: Any) -> str:
    """A part's class, roles, and what its docstring says before the first of its sections, equations included."""
    says = re.split(r"\n\n[A-Z]\w+:\n", inspect.getdoc(type(part)) or "")[0]
    return f"  {type(part).__name__} ({', '.join(role.__name__ for role in _roles(part))})\n{indent(says, '    ')}"


def _roles(part: Any) -> list[type]:
    return [kind for kind in type(part).__mro__ if kind.__module__ == "fedjax_bal.parts.roles"]


def _recipes() -> dict[str, str]:
    from fedjax_bal.parts import names_of_needs
    from fedjax_bal.recipes import RECIPES, short_citation

    def described(name: str, function: Callable[..., Any]) -> str:
        recipe = _at_defaults(function)
        needs = "" if recipe is None else ", ".join(names_of_needs(recipe.parts))
        return _described(
            function, _text(*_readings(function), _after("needs", needs), _after("from", short_citation(name)))
        )

    return {name: described(name, function) for name, function in RECIPES.items()}


def _at_defaults(recipe: Callable[..., Any]) -> Any:
    """The recipe at its defaults; None if one of its parameters has none."""
    parameters = inspect.signature(recipe).parameters.values()
    return None if any(own.default is own.empty for own in parameters) else recipe()


def _readings(recipe: Callable[..., Any]) -> list[str]:
    """The readings that `variant` chooses from, a line each."""
    variants = getattr(recipe, "variants", {}).items()
    return [f"variant={name}: {_written_out(values, ...) or 'the defaults'}" for name, values in variants]


def _recipe_functions() -> Mapping[str, Callable[..., Any]]:
    from fedjax_bal.recipes import RECIPES

    return RECIPES


def _selector_functions() -> Mapping[str, Callable[..., Any]]:
    from fedjax_bal.selection import SELECTORS

    return SELECTORS


def _partition_functions() -> Mapping[str, Callable[..., Any]]:
    from fedjax_bal.data import partition

    return partition.SCHEMES


_FUNCTIONS: dict[str, Callable[[], Mapping[str, Callable[..., Any]]]] = {
    "recipes": _recipe_functions,
    "selectors": _selector_functions,
    "partitions": _partition_functions,
}
"""Kind -> function that gives the functions whose docstrings say all."""


def _selectors() -> dict[str, str]:
    from fedjax_bal.selection import FROM_FEDERATION, SELECTORS

    skip = ("clients_per_round", *FROM_FEDERATION)
    return {name: _described(function, skip=skip) for name, function in SELECTORS.items()}


def _models() -> dict[str, str]:
    from fedjax_bal.models import MODELS, options

    defaults = {name: {key: option.default for key, option in options(name).items()} for name in MODELS}
    return {
        name: _text(entry.description, _after("takes", _written_out(defaults[name], ...)))
        for name, entry in MODELS.items()
    }


def _partitions() -> dict[str, str]:
    from fedjax_bal.data import partition

    skip = ("rng", "labels", "num_clients", *partition.FROM_DATASET)
    also = {name: _after("also called", ", ".join(partition.aliases_of(name))) for name in partition.SCHEMES}
    return {name: _described(function, also[name], skip=skip) for name, function in partition.SCHEMES.items()}


def _datasets() -> dict[str, str]:
    from fedjax_bal.data import DATASETS

    return {name: reader.description for name, reader in DATASETS.items()}


def _metrics() -> dict[str, str]:
    from fedjax_bal.metrics import METRICS

    def described(metric: Any) -> str:
        words = ["each evaluated round"] * (metric.of_round is not None) + ["a whole run"] * (metric.of_run is not None)
        return _text(metric.meaning, f"of {' and of '.join(words)}{_after(', in', metric.unit.symbol)}")

    return {name: described(metric) for name, metric in METRICS.items()}


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

    functions = {name: schedule_factory(name) for name in schedule_names()}
    return {
        name: _described(function) if function.__doc__ else _optax(name, parameters(function))
        for name, function in functions.items()
    }


def _availability() -> dict[str, str]:
    from fedjax_bal.selection import AVAILABILITY

    return {name: _described(function) for name, function in AVAILABILITY.items()}


def _delivery() -> dict[str, str]:
    from fedjax_bal.selection import DELIVERY

    return {name: _described(function) for name, function in DELIVERY.items()}


def _speeds() -> dict[str, str]:
    from fedjax_bal.selection import SPEEDS

    return {name: _described(function) for name, function in SPEEDS.items()}


def _headers() -> dict[str, str]:
    """The comments at the top of built-in configurations."""
    from fedjax_bal.config import builtin_configs

    heads = {name: file.read_text(encoding="utf-8").partition("\n\n")[0] for name, file in builtin_configs().items()}
    return {name: head[2:].replace("\n# ", "\n").replace("\n#", "\n") for name, head in heads.items()}


def _configs() -> dict[str, str]:
    first = {name: header.partition("\n\n")[0].replace("\n", " ") for name, header in _headers().items()}
    return {name: _first_sentence(text) for name, text in first.items()}


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].removesuffix(".") + "."


LISTINGS: dict[str, Callable[[], dict[str, str]]] = {
    "recipes": _recipes,
    "models": _models,
    "selectors": _selectors,
    "partitions": _partitions,
    "datasets": _datasets,
    "metrics": _metrics,
    "optimizers": _optimizers,
    "schedules": _schedules,
    "availability": _availability,
    "delivery": _delivery,
    "speeds": _speeds,
    "configs": _configs,
}
"""Kind -> function that makes its list, which imports only what it needs."""


def _described(function: Callable[..., Any], more: str = "", skip: Collection[str] = ()) -> str:
    """The first line of a function's docstring, its parameters with their defaults, and more."""
    first = (function.__doc__ or "").strip().partition("\n")[0]
    return _text(first, _after("takes", _defaults(function, skip)), more)


def _defaults(function: Callable[..., Any], skip: Collection[str] = ()) -> str:
    """The parameters of a function with their defaults."""
    parameters = inspect.signature(function).parameters.items()
    defaults = {name: parameter.default for name, parameter in parameters if name not in skip}
    return _written_out(defaults, inspect.Parameter.empty)


def _optax(name: str, fields: Mapping[str, tuple[Any, Any]]) -> str:
    """The text on a function of optax, whose own texts are long."""
    defaults = {key: default for key, (_, default) in fields.items()}
    return _text(f"optax.{name}", _after("takes", _written_out(defaults, ...)))


def _written_out(values: Mapping[str, Any], none: Any) -> str:
    """Parameters as a configuration writes them; `none` stands for the default of one that has to be given."""
    return ", ".join(name if value is none else f"{name}={_written(value)}" for name, value in values.items())


def _written(value: Any) -> str:
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except TypeError:  # a function, or a number of NumPy, of a plug-in
        return str(getattr(value, "__name__", value))


def _after(word: str, text: str) -> str:
    return text and f"{word} {text}"


def _text(*lines: str) -> str:
    return "\n".join(filter(None, lines))
