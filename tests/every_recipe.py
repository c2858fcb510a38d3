"""Each recipe with settings that are quick to check."""

from typing import Any

import table
import toys
from parts import faking

from fedjax_bal import models
from fedjax_bal.recipes import RECIPES, Recipe


def small(name: str) -> tuple[Recipe, dict[str, Any]]:
    """A recipe and the options that the battery needs for it; generators are to be replaced by `faking.simplest`."""
    return RECIPES[name](**table.ACTIVE[name]), SPECIAL[name]() if name in SPECIAL else {}


def larger_images() -> dict[str, Any]:
    """A generator has no images of 1x4 pixels."""
    return {"model": faking.network(), "federation": faking.federation(), "test": faking.test_set()}


def normalised_layers() -> dict[str, Any]:
    """Layers that are called normalisation."""
    return larger_images() | {"model": models.build("tiny_bn", toys.CLASSES, (4, 4, 1))}


def ill_conditioned() -> dict[str, Any]:
    """Ratios or correlations whose terms nearly cancel, so that they enlarge rounding."""
    return {"tolerance": 2e-3}


def adam_on_the_server() -> dict[str, Any]:
    """Adam makes whole steps of the smallest gradients, and so of rounding."""
    return {"tolerance": 1e-4}


def without_statistics() -> dict[str, Any]:
    """A network without batch statistics."""
    return {"model": toys.network(), "federation": toys.federation(), "test": toys.test_set()}


SPECIAL = {
    "cbfl": larger_images,
    "ditto": without_statistics,
    "dp": without_statistics,
    "fedbn": normalised_layers,
    "feddecorr": ill_conditioned,
    "fedic": adam_on_the_server,
    "ratio_loss": ill_conditioned,
}
"""Recipes that the battery's own network or tolerance doesn't suit."""
