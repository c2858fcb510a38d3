"""Each recipe with settings that are quick to check."""

from typing import Any

from parts import faking

from fedjax_bal.recipes import RECIPES, Recipe

FITTING = {"fakes": 2, "attention": 1.0, "iterations": 2, "generator_batch": 3, "latent": 2}
SMALLER = {"astraea": {"size": 2}, "cbfl": {"warm_up": 1, "interval": 2, "teacher": "snapshot", **FITTING}}


def small(name: str) -> tuple[Recipe, dict[str, Any]]:
    """A recipe and the options that the battery needs for it; generators are to be replaced by `faking.simplest`."""
    return RECIPES[name](**SMALLER.get(name, {})), larger_images() if name == "cbfl" else {}


def larger_images() -> dict[str, Any]:
    """A generator has no images of 1x4 pixels."""
    return {"model": faking.network(), "federation": faking.federation(), "test": faking.test_set()}
