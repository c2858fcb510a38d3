"""A JAX-vectorized federated-learning simulator for class imbalance and label skew.

Submodules are imported when they are first used, so that `import fedjax_bal` stays cheap.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fedjax_bal._version import __version__
from fedjax_bal.xla_flags import set_cpu_flags

if TYPE_CHECKING:
    from fedjax_bal import balance, data, models, parts, recipes, selection
    from fedjax_bal.data import over_rows
    from fedjax_bal.engine.host import Result, fine_tune, make_round, simulate
    from fedjax_bal.lab import Method, export_model, load_run, load_weights
    from fedjax_bal.metrics import EarlyStopping
    from fedjax_bal.optim import optimizer
    from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
    from fedjax_bal.plugins import register
    from fedjax_bal.recipes import citation
    from fedjax_bal.report import ComparisonResult, compare
    from fedjax_bal.testing import check_model, check_part, check_recipe

_SUBMODULES = ("balance", "data", "models", "parts", "recipes", "selection")
_NAMES = {
    "ComparisonResult": "report",
    "EarlyStopping": "metrics",
    "Evaluation": "options",
    "Execution": "options",
    "LocalTraining": "options",
    "Method": "lab",
    "Participation": "options",
    "Result": "engine.host",
    "check_model": "testing",
    "check_part": "testing",
    "check_recipe": "testing",
    "citation": "recipes",
    "compare": "report",
    "export_model": "lab",
    "fine_tune": "engine.host",
    "make_round": "engine.host",
    "load_run": "lab",
    "load_weights": "lab",
    "optimizer": "optim",
    "over_rows": "data",
    "register": "plugins",
    "simulate": "engine.host",
}

__all__ = [
    "ComparisonResult",
    "EarlyStopping",
    "Evaluation",
    "Execution",
    "LocalTraining",
    "Method",
    "Participation",
    "Result",
    "__version__",
    "balance",
    "check_model",
    "check_part",
    "check_recipe",
    "citation",
    "compare",
    "data",
    "export_model",
    "fine_tune",
    "load_run",
    "load_weights",
    "make_round",
    "models",
    "optimizer",
    "over_rows",
    "parts",
    "recipes",
    "register",
    "selection",
    "simulate",
]


set_cpu_flags()


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"fedjax_bal.{name}")
    if name in _NAMES:
        # Bound once, so that later look-ups cost nothing.
        value = getattr(importlib.import_module(f"fedjax_bal.{_NAMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fedjax_bal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
