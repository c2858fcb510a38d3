"""What a method is made of, and how several are put on top of each other."""

import dataclasses
from typing import Any

import jax

from fedjax_bal.optim import Optimizer
from fedjax_bal.parts import Part, Reduce, parts_with
from fedjax_bal.selection import Choice


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Recipe:
    """A method: its parts, and what it sets of the things that exist once.

    Attributes:
        name: how it is called.
        parts: the parts, in the order in which those of one role compose.
        server_optimizer: the server's optimizer; None leaves it to the setting (by default plain averaging).
        drawing: "epochs" without replacement or "replacement"; None leaves it to the setting.
        selector: which selector chooses the clients; None leaves it to the setting.
        carried: whether the clients of a chain hand on the local optimizer's state; None for no.
    """

    name: str = dataclasses.field(metadata={"static": True})
    parts: tuple[Part, ...] = ()
    server_optimizer: Optimizer | None = None
    drawing: str | None = dataclasses.field(default=None, metadata={"static": True})
    selector: Choice | None = dataclasses.field(default=None, metadata={"static": True})
    carried: bool | None = dataclasses.field(default=None, metadata={"static": True})


def combine(*recipes: Recipe) -> Recipe:
    """Puts recipes on top of each other: all their parts, in order.

    Args:
        *recipes: at least one. What exists once (server optimizer, drawing, selector) comes from the one recipe that
            sets it.

    Returns:
        A recipe named after all of them, joined with "+".

    Raises:
        ValueError: the same part twice, or two recipes that set the same thing differently.

    Example:
        >>> from fedjax_bal.recipes import balanced_softmax, scaffold
        >>> combine(scaffold(), balanced_softmax()).name
        'scaffold+balanced_softmax'
    """
    if not recipes:
        raise ValueError("combine: received no recipe; give at least one")
    owner: dict[str, str] = {}
    for recipe in recipes:
        for part in recipe.parts:
            if part.slot in owner:
                raise ValueError(
                    f"combine: {owner[part.slot]} and {recipe.name} both bring {part.slot}, "
                    "which would then act twice; leave one of them out"
                )
            owner[part.slot] = recipe.name
    reducing = [part.slot for recipe in recipes for part in parts_with(recipe.parts, Reduce)]
    if len(reducing) > 1:
        raise ValueError(
            f"combine: {' and '.join(reducing)} both reduce the updates; there is only one reduction: leave one of "
            "them out"
        )
    return Recipe(
        "+".join(recipe.name for recipe in recipes),
        tuple(part for recipe in recipes for part in recipe.parts),
        server_optimizer=_the_one(recipes, "server_optimizer"),
        drawing=_the_one(recipes, "drawing"),
        selector=_the_one(recipes, "selector"),
        carried=_the_one(recipes, "carried"),
    )


def _the_one(recipes: tuple[Recipe, ...], field: str) -> Any:
    setters = [recipe for recipe in recipes if getattr(recipe, field) is not None]
    for other in setters[1:]:
        if getattr(other, field) != getattr(setters[0], field):
            raise ValueError(
                f"combine: {setters[0].name} and {other.name} set {field} differently; there is only one of it"
            )
    return getattr(setters[0], field) if setters else None
