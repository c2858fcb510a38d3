"""What an editor proposes after a module's name."""

import pytest

from fedjax_bal import balance, data, models, parts, recipes, selection


@pytest.mark.parametrize(
    "module", [balance, data, models, parts, recipes, selection], ids=lambda module: module.__name__
)
def test_a_module_lists_its_public_names_alone(module):
    assert dir(module) == sorted(module.__all__) and all(hasattr(module, name) for name in dir(module))
