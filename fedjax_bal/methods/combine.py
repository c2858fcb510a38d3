"""Recipes: how a method declares its recipe, how its values are checked, and how several recipes are combined."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, cast, overload

import jax
import numpy as np

from fedjax_bal.annotations import BelowOne as BelowOne
from fedjax_bal.annotations import Count as Count
from fedjax_bal.annotations import CountOrZero as CountOrZero
from fedjax_bal.annotations import NonNegative as NonNegative
from fedjax_bal.annotations import Positive as Positive
from fedjax_bal.annotations import PositiveShare as PositiveShare
from fedjax_bal.annotations import Share as Share
from fedjax_bal.annotations import check, validator_type
from fedjax_bal.methods.roles import Criterion, Part, Reduce, Shift, parts_with
from fedjax_bal.optim import AnyOptimizer
from fedjax_bal.selection import Choice
from fedjax_bal.validate import finite_number, one_of

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])

_SINGLE = {
    Criterion: "replace the cross-entropy; a run has only one criterion",
    Reduce: "reduce the updates; a run has only one reduction",
    Shift: "choose where a gradient is taken; a run has only one such place",
}
"""The roles that at most one part of a recipe may play, each with the rest of an error message."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Recipe:
    """A method: its parts, and settings of which a run has only one.

    Attributes:
        name: its name.
        parts: the parts, in the order in which those of one role compose.
        server_optimizer: the server's optimizer; None keeps the run's setting (by default plain averaging).
        drawing: "epochs" without replacement or "replacement"; None keeps the run's setting.
        selector: the selector that chooses the clients; None keeps the run's setting.
        carried: whether the clients of a chain pass on the local optimizer's state; None means no.
    """

    name: str = dataclasses.field(metadata={"static": True})
    parts: tuple[Part, ...] = ()
    server_optimizer: AnyOptimizer | None = None
    drawing: str | None = dataclasses.field(default=None, metadata={"static": True})
    selector: Choice | None = dataclasses.field(default=None, metadata={"static": True})
    carried: bool | None = dataclasses.field(default=None, metadata={"static": True})


FAMILIES = {
    "absence": "Methods that correct for clients that are often absent",
    "averaging": "Federated averaging with other weights or server optimizers, or with a proximal term",
    "drift": "Methods against client drift",
    "flatness": "Methods that look for flat minima: gradients at shifted parameters, or averages of models",
    "generators": "Methods that train a generator of images or of features for the clients",
    "heads": "Methods that treat the classifier separately from the rest of the network",
    "long_tail": "Losses from centralised long-tailed learning; also weights that follow training, calibrated "
    "teachers, new labels, and views of an image that teach each other",
    "losses": "Methods that change the local loss, mostly to protect classes that a client lacks",
    "personal": "Personalised methods, which give every client its own model, and purely local training",
    "robust": "Robust and private averages, and faulty clients to test them with",
    "sampling": "Methods that change how a client draws its samples, and the images that it draws",
    "selection": "Methods that choose the clients that train, their groups and their order",
}
"""Headings under which lists show the recipes."""


class Method(NamedTuple):
    """A recipe of the package, with its heading and citations for lists.

    Attributes:
        build: the function that builds it.
        family: a key of `FAMILIES`.
        papers: the keys of its papers in `papers.bib`.
    """

    build: Callable[..., Recipe]
    family: str
    papers: tuple[str, ...]


METHODS: dict[str, Method] = {}
"""The recipes of this package by name, filled by the decorator `recipe`."""


def family_of(name: str) -> str:
    """Returns the heading under which lists show a recipe."""
    return FAMILIES[METHODS[name].family] if name in METHODS else "Your recipes"


def recipe(family: str, *papers: str) -> Callable[[F], F]:
    """Registers a function as the recipe of its name, and checks its arguments against their annotations.

    The function itself checks parameters that are annotated as plain `int`, `float` or `str`.

    Args:
        family: a key of `FAMILIES`.
        *papers: the keys of its papers in `papers.bib`.
    """

    def declare(function: F) -> F:
        parameters = inspect.signature(function).parameters
        kinds = {
            name: validator_type(parameter.annotation)
            for name, parameter in parameters.items()
            if parameter.annotation not in (int, float, str)
        }

        def read(name: str, value: Any) -> Any:
            kind = kinds.get(name)
            if kind is None:
                return value
            value = value.item() if isinstance(value, np.generic) else value
            return check(f"{function.__name__}: {name}", kind, value)

        @functools.wraps(function)
        def build(*args: Any, **kwargs: Any) -> Recipe:
            values = (*map(read, parameters, args), *args[len(parameters) :])  # surplus arguments: Python's own error
            return function(*values, **{name: read(name, value) for name, value in kwargs.items()})

        METHODS[function.__name__] = Method(build, family, papers)
        return cast(F, build)

    return declare


class RecipeWithVariants(Protocol[P]):
    """A recipe with readings of its paper: it takes hyperparameters, or a reading and changes to it."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Recipe: ...

    @overload
    def __call__(self, *args: Any, variant: str, **kwargs: Any) -> Recipe: ...


def variants(**named: Mapping[str, Any]) -> Callable[[Callable[P, Recipe]], RecipeWithVariants[P]]:
    """Gives a recipe the keyword `variant`, which selects a reading of its paper: values that replace the defaults.

    Explicit arguments override the reading. The readings are in the recipe's attribute `variants`.

    Example:
        >>> from fedjax_bal.recipes import rebafl
        >>> rebafl(variant="code", mu=0.2) == rebafl(mu=0.2, prototypes="global_only", min_classes=2)
        True
    """

    def declare(recipe: Callable[..., Recipe]) -> Any:
        @functools.wraps(recipe)
        def build(*args: Any, variant: str | None = None, **kwargs: Any) -> Recipe:
            if variant is None:
                return recipe(*args, **kwargs)
            given = inspect.signature(recipe).bind_partial(*args, **kwargs).arguments
            return recipe(**with_variant(build, {**given, "variant": variant}))

        build.variants = named  # type: ignore[attr-defined]
        return build

    return declare


def with_variant(recipe: Callable[..., Recipe], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replaces `variant` in the values by the reading that it names; changes nothing for a recipe without readings.

    Raises:
        ValueError: the recipe has no such reading.

    Example:
        >>> from fedjax_bal.recipes import fedrs
        >>> with_variant(fedrs, {"variant": "code", "alpha": 0.9})
        {'mode': 'soft', 'alpha': 0.9}
    """
    known = getattr(recipe, "variants", {})
    if not known or "variant" not in values:
        return values
    rest = {key: value for key, value in values.items() if key != "variant"}
    return {**known[one_of(f"{recipe.__name__}: variant", values["variant"], known)], **rest}


def positive(name: str, value: float, reason: str = "") -> float:
    """Returns a finite number above 0; raises `ValueError`, with a reason, otherwise."""
    if finite_number(name, value) == 0:
        raise ValueError(f"{name}: received 0, must be above 0{reason}")
    return float(value)


def combine(*recipes: Recipe) -> Recipe:
    """Combines several recipes into one, with their parts in order.

    Args:
        *recipes: at least one. A setting of which a run has only one (server optimizer, drawing, selector) comes from
            the recipe that sets it.

    Returns:
        A recipe whose name joins theirs with "+".

    Raises:
        ValueError: an argument isn't a recipe, a part occurs twice, two parts play a role that only one may play
            (Criterion, Shift, Reduce), or two recipes set the same setting differently.

    Example:
        >>> from fedjax_bal.recipes import balanced_softmax, scaffold
        >>> combine(scaffold(), balanced_softmax()).name
        'scaffold+balanced_softmax'
    """
    if not recipes:
        raise ValueError("combine: received no recipe; give at least one")
    owner: dict[str, str] = {}
    for recipe in recipes:
        if not isinstance(recipe, Recipe):
            raise ValueError(f"recipe: received {recipe!r:.80}, must be what a recipe's function returns: fedavg()")
        for part in recipe.parts:
            if part.slot in owner:
                raise ValueError(
                    f"combine: {owner[part.slot]} and {recipe.name} both bring {part.slot}, "
                    "which would then act twice; leave one of them out"
                )
            owner[part.slot] = recipe.name
    parts = tuple(part for recipe in recipes for part in recipe.parts)
    for role, reason in _SINGLE.items():
        playing = [part.slot for part in parts_with(parts, role)]
        if len(playing) > 1:
            raise ValueError(f"combine: {' and '.join(playing)} both {reason}: leave one of them out")
    return Recipe(
        "+".join(recipe.name for recipe in recipes),
        parts,
        server_optimizer=_single_setting(recipes, "server_optimizer"),
        drawing=_single_setting(recipes, "drawing"),
        selector=_single_setting(recipes, "selector"),
        carried=_single_setting(recipes, "carried"),
    )


def _single_setting(recipes: tuple[Recipe, ...], field: str) -> Any:
    setters = [recipe for recipe in recipes if getattr(recipe, field) is not None]
    for other in setters[1:]:
        if getattr(other, field) != getattr(setters[0], field):
            raise ValueError(f"combine: {setters[0].name} and {other.name} set {field} differently; a run has only one")
    return getattr(setters[0], field) if setters else None
