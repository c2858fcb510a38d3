"""Methods, one file each: the mathematics, the parts, the recipe and the keys of its papers.

`part`, `roles`, `needs` and `combine` are all that the author of a method has to read. A file in this folder is
imported, and its recipes are registered, without being listed anywhere. Users import from `fedjax_bal.recipes` and
`fedjax_bal.parts`.
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
