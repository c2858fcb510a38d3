"""Methods, one file each: the mathematics, the parts, the recipe and the keys of its papers.

To write a method, read `part`, `roles`, `needs` and `combine`; nothing else is needed. Every file in this folder is
imported automatically, which registers its recipes. Users import from `fedjax_bal.recipes` and `fedjax_bal.parts`.
"""

import importlib
import pkgutil
from collections.abc import Callable

from fedjax_bal.methods.combine import METHODS, Recipe
from fedjax_bal.registry import Registry

MODULES = [importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
"""All modules of this folder."""

RECIPES: Registry[Callable[..., Recipe]] = Registry({name: METHODS[name].build for name in sorted(METHODS)})
"""All recipes by name."""
