"""Each recipe with settings that are quick to check."""

from typing import Any

import table
from parts import faking

from fedjax_bal.recipes import RECIPES, Recipe


def small(name: str) -> tuple[Recipe, dict[str, Any]]:
    """A recipe and the options that the battery needs for it; generators are to be replaced by `faking.simplest`."""
    return RECIPES[name](**table.ACTIVE[name]), larger_images() if name == "cbfl" else {}


def larger_images() -> dict[str, Any]:
    """A generator has no images of 1x4 pixels."""
    return {"model": faking.network(), "federation": faking.federation(), "test": faking.test_set()}
