"""Configurations: one YAML file, checked as a whole, the same for the command line and for Python.

`load_config` reads a file and the command line's changes; a `Config` holds the sections, and `Config.for_method` gives
what one method runs with. Importing this module imports pydantic and PyYAML, which the engine does without.
"""

from fedjax_bal.config.configuration import Config, Method, MethodConfig, RecipeSpec
from fedjax_bal.config.load import load_config
from fedjax_bal.config.problems import ConfigError
from fedjax_bal.config.resolved import differences, digest, is_resolved, resolved_yaml

__all__ = [
    "Config",
    "ConfigError",
    "Method",
    "MethodConfig",
    "RecipeSpec",
    "differences",
    "digest",
    "is_resolved",
    "load_config",
    "resolved_yaml",
]
