"""Named assemblies of parts: what a paper calls a method.

A recipe holds no mathematics. `combine` puts several of them on top of each other.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from fedjax_bal.checks import finite_number, one_of, switch, whole_number
from fedjax_bal.optimizers import Optimizer
from fedjax_bal.parts import ControlVariates, FeatureTransfer, Part, PriorCalibration, Proximal


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Recipe:
    """A method: its parts, and what it sets of the things that exist once.

    Attributes:
        name: how it is called.
        parts: the parts, in the order in which those of one role compose.
        server_optimizer: the server's optimizer; None leaves it to the setting (by default plain averaging).
        drawing: "epochs" without replacement or "replacement"; None leaves it to the setting.
    """

    name: str = dataclasses.field(metadata={"static": True})
    parts: tuple[Part, ...] = ()
    server_optimizer: Optimizer | None = None
    drawing: str | None = dataclasses.field(default=None, metadata={"static": True})


def fedavg() -> Recipe:
    """Federated averaging: local SGD, updates averaged by number of samples.

    Example:
        >>> fedavg().parts
        ()

    References:
        McMahan et al., 2017, Algorithm 1.
    """
    return Recipe("fedavg")


def fedprox(mu: float = 0.001) -> Recipe:
    """FedAvg with a proximal term.

    Args:
        mu: weight of the penalty, at least 0.

    Raises:
        ValueError: mu out of range.

    Example:
        >>> fedprox(0.01).parts
        (Proximal(mu=0.01),)

    References:
        Li et al., 2020, Algorithm 2, without its emulation of partial work.
    """
    return Recipe("fedprox", (Proximal(finite_number("fedprox: mu", mu)),))


def scaffold(scaffold_momentum: bool = False) -> Recipe:
    """Control variates against client drift, option II, updates averaged without weights.

    Args:
        scaffold_momentum: allow a local momentum, dividing the drift by the equivalent number of plain steps.

    Example:
        >>> scaffold().parts
        (ControlVariates(with_momentum=False),)

    References:
        Karimireddy et al., 2020, Algorithm 1.
    """
    allowed = switch("scaffold: scaffold_momentum", scaffold_momentum)
    return Recipe("scaffold", (ControlVariates(with_momentum=allowed),))


def balanced_softmax() -> Recipe:
    """FedAvg whose local loss is calibrated with the client's class prior (BSM-FedAvg).

    Example:
        >>> balanced_softmax().parts
        (PriorCalibration(epsilon=0.0),)

    References:
        Ren et al., 2020, eq. 4; in federated learning ReBaFL, eq. 8.
    """
    return Recipe("balanced_softmax", (PriorCalibration(0.0),))


def rebafl(
    epsilon: float = 0.01,
    mu: float = 0.1,
    scale: float = 1.0,
    prototypes: str = "local_override",
    carry: bool = False,
    min_classes: int = 1,
) -> Recipe:
    """Relaxed balanced softmax and feature augmentation from class prototypes.

    Args:
        epsilon: share of the uniform distribution in the class prior, in [0, 1].
        mu: weight of the feature augmentation, at least 0; at 0 its loss has no effect.
        scale: lambda, the factor on a feature's offset from its prototype.
        prototypes: "local_override" or "global_only".
        carry: keep the prototype of a class that nobody delivered.
        min_classes: clients with fewer classes send no prototypes.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> [part.slot for part in rebafl().parts]
        ['PriorCalibration', 'FeatureTransfer']

    References:
        Xu et al., 2022, Algorithm 1.
    """
    epsilon = finite_number("rebafl: epsilon", epsilon, high=1.0)
    transfer = FeatureTransfer(
        mu=finite_number("rebafl: mu", mu),
        epsilon=epsilon,
        scale=finite_number("rebafl: scale", scale),
        prototypes=one_of("rebafl: prototypes", prototypes, ("local_override", "global_only")),
        carry=switch("rebafl: carry", carry),
        min_classes=whole_number("rebafl: min_classes", min_classes),
    )
    return Recipe("rebafl", (PriorCalibration(epsilon), transfer))


def combine(*recipes: Recipe) -> Recipe:
    """Puts recipes on top of each other: all their parts, in order.

    Args:
        *recipes: at least one. What exists once (server optimizer, drawing) comes from the one recipe that sets it.

    Returns:
        A recipe named after all of them, joined with "+".

    Raises:
        ValueError: the same part twice, or two recipes that set the same thing differently.

    Example:
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
    return Recipe(
        "+".join(recipe.name for recipe in recipes),
        tuple(part for recipe in recipes for part in recipe.parts),
        server_optimizer=_the_one(recipes, "server_optimizer"),
        drawing=_the_one(recipes, "drawing"),
    )


def _the_one(recipes: tuple[Recipe, ...], field: str) -> Any:
    setters = [recipe for recipe in recipes if getattr(recipe, field) is not None]
    for other in setters[1:]:
        if getattr(other, field) != getattr(setters[0], field):
            raise ValueError(
                f"combine: {setters[0].name} and {other.name} set {field} differently; there is only one of it"
            )
    return getattr(setters[0], field) if setters else None


RECIPES: dict[str, Callable[..., Recipe]] = {
    "balanced_softmax": balanced_softmax,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "rebafl": rebafl,
    "scaffold": scaffold,
}
