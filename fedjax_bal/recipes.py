"""Named assemblies of parts: what a paper calls a method.

A recipe holds no mathematics. A hyperparameter out of range raises a `ValueError` that names it and says what is
allowed. `combine` puts several recipes together.
"""

import sys

from fedjax_bal.methods import RECIPES
from fedjax_bal.methods.citations import citation, cite, short_citation
from fedjax_bal.methods.combine import Recipe, combine, family_of, with_variant

_TOOLS = (Recipe, citation, cite, combine, family_of, short_citation, with_variant)
_NAMES = sorted(["RECIPES", *(tool.__name__ for tool in _TOOLS), *RECIPES])
# The recipes are names of this module; for editors and type checkers they stand in the stub, recipes.pyi.
vars(sys.modules[__name__]).update(RECIPES, __all__=_NAMES, __dir__=lambda: _NAMES)
