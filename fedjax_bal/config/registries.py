"""The names that a configuration may use, and the parameters that go with each; imported when they are asked for."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any

from fedjax_bal.config.rules import (
    Either,
    Flag,
    ListOf,
    MapOf,
    OneOf,
    OrNull,
    Readable,
    Real,
    ValueRule,
    Whole,
    Word,
    WordOr,
    under,
)

# One parameter as pydantic's create_model takes it: its annotation and its default (... where it has none).
Field = tuple[Any, Any]

_SEED = Whole(0, 2**32 - 1)

# Known by name wherever they occur, since annotations and optax leave the range of options open.
_RANGES: Mapping[str, ValueRule] = {
    "momentum": Real(0, 1, below=True),
    "seed": _SEED,
    "published_seed": OrNull(_SEED),
}


def datasets() -> Collection[str]:
    """The names of the data sets.

    Returns:
        The names.

    Example:
        >>> "fashion_mnist_small" in datasets()
        True
    """
    from fedjax_bal.data import DATASETS

    return tuple(DATASETS)


def dataset_parameters(name: str) -> dict[str, Field]:
    """The parameters of a data set that a configuration can set.

    Args:
        name: one of `datasets()`.

    Returns:
        As for `parameters`: what the reader of the user's own files takes, and the constants that pixels are normalised
        with.

    Example:
        >>> sorted(dataset_parameters("image_folder")), dataset_parameters("mnist")["mean"][1]
        (['channels', 'mean', 'path', 'side', 'std'], (0.1307,))
    """
    from fedjax_bal.data import DATASETS, OWN

    reader = DATASETS[name]
    constants = {"mean": (Real(), reader.mean or OWN), "std": (Real(0, above=True), reader.std or OWN)}
    fields = {
        key: (Annotated[Any, under(WordOr(Either(number, ListOf(number)), OWN))], default)
        for key, (number, default) in constants.items()
    }
    return (parameters(reader.read) if reader.origin == "own" else {}) | fields


def models() -> Collection[str]:
    """The names of the models.

    Returns:
        The names.

    Example:
        >>> "rebafl_fmnist" in models()
        True
    """
    from fedjax_bal.models import MODELS

    return tuple(MODELS)


def model_parameters(name: str) -> dict[str, Field]:
    """The options of a model that a configuration can set.

    Args:
        name: one of `models()`.

    Returns:
        As for `parameters`.

    Example:
        >>> model_parameters("mlp")["hidden"][1], model_parameters("rebafl_fmnist")
        ((64,), {})
    """
    from fedjax_bal.models import options

    return {
        key: (Annotated[Any, under(Readable(*option.allowed))], option.default) for key, option in options(name).items()
    }


def schemes() -> Mapping[str, Callable[..., Any]]:
    """The partition schemes.

    Returns:
        Functions of rng, labels, the number of clients, and the parameters of the scheme.

    Example:
        >>> "pathological" in schemes()
        True
    """
    from fedjax_bal.data import SCHEMES

    return SCHEMES


def scheme_alias(name: str) -> Any:
    """What another name of a partition scheme stands for.

    Args:
        name: any text.

    Returns:
        The scheme's own name and the parameters implied; the text itself where it is no scheme's name.

    Example:
        >>> scheme_alias("lda").scheme
        'dirichlet'
    """
    from fedjax_bal.data import resolve

    return resolve(name)


def other_names_of_schemes() -> Mapping[str, str]:
    """What papers and other simulators call the partition schemes.

    Returns:
        Another name -> the scheme's own.

    Example:
        >>> other_names_of_schemes()["lda"]
        'dirichlet'
    """
    from fedjax_bal.data import ALIASES

    return {name: alias.scheme for name, alias in ALIASES.items()}


def from_dataset() -> Collection[str]:
    """The parameters of partition schemes that no configuration gives.

    Returns:
        The names.

    Example:
        >>> "labels" in from_dataset()
        True
    """
    from fedjax_bal.data import FROM_DATASET

    return ("rng", "labels", "num_clients", *FROM_DATASET)


def recipes() -> Mapping[str, Callable[..., Any]]:
    """The recipes.

    Returns:
        Functions of the hyperparameters.

    Example:
        >>> "fedavg" in recipes()
        True
    """
    from fedjax_bal.recipes import RECIPES

    return RECIPES


def combine(built: Sequence[Any]) -> Any:
    """Several recipes as one.

    Args:
        built: recipes, in order.

    Returns:
        Their combination.

    Raises:
        ValueError: they don't go together.

    Example:
        >>> combine([recipes()["fedavg"]()]) is not None
        True
    """
    from fedjax_bal.recipes import combine as combine_recipes

    return combine_recipes(*built)


def selectors() -> Mapping[str, Callable[..., Any]]:
    """The selectors.

    Returns:
        Functions of the clients a round, the parameters of the selector, and by keyword what the federation gives.

    Example:
        >>> "mediated" in selectors()
        True
    """
    from fedjax_bal.selection import SELECTORS

    return SELECTORS


def from_federation() -> Collection[str]:
    """The parameters of selectors that no configuration gives.

    Returns:
        The names.

    Example:
        >>> "class_counts" in from_federation()
        True
    """
    from fedjax_bal.selection import FROM_FEDERATION

    return ("clients_per_round", *FROM_FEDERATION)


@functools.cache
def optimizers() -> Collection[str]:
    """The names of the optimizers.

    Returns:
        Names of optax factories.

    Example:
        >>> {"sgd", "adam"} <= set(optimizers())
        True
    """
    from fedjax_bal.optim import optimizer_names

    return tuple(optimizer_names())


def optimizer_function(name: str) -> Callable[..., Any]:
    """The optax factory of a name.

    Args:
        name: one of `optimizers()`.

    Returns:
        The factory.

    Example:
        >>> optimizer_function("sgd").__name__
        'sgd'
    """
    import optax

    return getattr(optax, name)


@functools.cache
def schedules() -> Collection[str]:
    """The names of the learning-rate schedules.

    Returns:
        The names.

    Example:
        >>> {"step", "cosine"} <= set(schedules())
        True
    """
    from fedjax_bal.optim import schedule_names

    return tuple(schedule_names())


def schedule_function(name: str) -> Callable[..., Any]:
    """The function of a schedule.

    Args:
        name: one of `schedules()`.

    Returns:
        A function of its parameters.

    Example:
        >>> sorted(parameters(schedule_function("step")))
        ['every', 'factor']
    """
    from fedjax_bal.optim import schedule_factory

    return schedule_factory(name)


def parameters(function: Callable[..., Any], skip: Collection[str] = ()) -> dict[str, Field]:
    """The parameters of a function that a configuration can set, with what each of them takes.

    What a parameter takes comes from its annotation, or from its default where the annotation says nothing that a
    YAML file could hold. A parameter that neither explains (a function, a dtype) is left out.

    Args:
        function: a recipe, a partition scheme or an optax factory.
        skip: names of parameters that are not for the configuration.

    Returns:
        Annotation and default by name; the default of a momentum is 0 where the function has None.

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
        default = ... if parameter.default is parameter.empty else parameter.default
        if name == "momentum" and default is None:
            default = 0.0
        rule = _RANGES.get(name) or _rule(_annotation(function, parameter), parameter.default)
        if rule is not None:
            found[name] = (Annotated[Any, under(rule)], default)
    return found


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    try:
        return typing.get_type_hints(function).get(parameter.name, parameter.empty)
    except NameError:  # a name imported for type checkers only
        return parameter.empty


def _rule(annotation: Any, default: Any) -> ValueRule | None:
    if isinstance(default, type) and default is not inspect.Parameter.empty:
        return None  # a dtype, say
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if union else (annotation,)
    simple = [_simple_rule(member) for member in (*members, type(default))]
    rules = [rule for rule in simple if rule is not None]
    if not rules:
        return None
    rule = next((rule for rule in rules if isinstance(rule, Real)), rules[0])
    several = next((rule for rule in rules if isinstance(rule, ListOf)), None)
    if several is not None and several is not rule:
        rule = Either(rule, several)
    return OrNull(rule) if default is None or types.NoneType in members else rule


def _simple_rule(annotation: Any) -> ValueRule | None:
    if typing.get_origin(annotation) is Annotated:  # its range is checked where it is declared
        annotation = typing.get_args(annotation)[0]
    simple = {bool: Flag(), int: Whole(), float: Real(), str: Word()}
    if annotation in simple:
        return simple[annotation]
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is typing.Literal and all(isinstance(name, str) for name in arguments):
        return OneOf(arguments)
    if origin in (list, tuple, Sequence) and arguments and _simple_rule(arguments[0]) is not None:
        return ListOf(_simple_rule(arguments[0]))  # type: ignore[arg-type]
    if origin is Mapping and arguments == (float, float):
        return MapOf(Real(), Real())
    if origin is dict and arguments == (int, float):
        return MapOf(Whole(0), Real(0))
    return None
