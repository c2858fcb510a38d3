"""Configurations: one YAML file, validated as a whole, for both the command line and Python.

`load_config` reads a file and the command line's changes. A `Config` holds the sections; each of its `methods` holds
the sections with that method's overrides. Importing this module imports pydantic and PyYAML, which the engine doesn't
need.
"""

from fedjax_bal.config.errors import (
    COMMAND_LINE,
    ConfigError,
    KeyPath,
    nearest_choices,
    received_value,
)
from fedjax_bal.config.explain import find_keys, json_schema, short_form
from fedjax_bal.config.identity import (
    AUTO,
    AUTO_FORMS,
    comparison_digest,
    config_digest,
    config_leaves,
    continues,
    differences,
    differing_leaves,
    leaves,
    method_digest,
    resolved_sheet,
    resolved_yaml,
    run_digest,
    setting_leaves,
    with_convolution,
)
from fedjax_bal.config.load import (
    Sheet,
    build_config,
    builtin_configs,
    config_of,
    load_config,
    read_command,
    with_paper_setting,
)
from fedjax_bal.config.merge import (
    PATHS,
    SEED_LISTS,
    completed_path,
    key_paths,
    merge,
    name_in_results,
    parse_overrides,
    with_absolute_paths,
    with_changes,
    with_entries,
)
from fedjax_bal.config.methods import check_methods
from fedjax_bal.config.schema import (
    KEYS_OF_METHODS,
    AuxiliarySection,
    Config,
    MethodConfig,
    ModelSection,
    Sections,
)
from fedjax_bal.config.sections import to_plain, without_defaults
from fedjax_bal.config.yaml_text import dump_yaml, parse_yaml
