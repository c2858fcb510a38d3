"""Configurations: one YAML file, validated as a whole, for both the command line and Python.

`load_config` reads a file and the command line's changes. A `Config` holds the sections; each of its `methods` holds
the sections with that method's overrides. Importing this module imports pydantic and PyYAML, which the engine doesn't
need.
"""

from fedjax_bal.config.changes import (
    PATHS,
    SEED_LISTS,
    apply_changes,
    completed_path,
    name_in_results,
    parse_overrides,
    split_axes,
    take_over_entries,
    with_absolute_paths,
)
from fedjax_bal.config.configuration import KEYS_OF_METHODS, Config, MethodConfig, check_methods
from fedjax_bal.config.load import (
    build_config,
    builtin_configs,
    is_sweep,
    load_config,
    read_sheet,
    source_name,
    with_paper_setting,
)
from fedjax_bal.config.problems import (
    COMMAND_LINE,
    ConfigError,
    KeyPath,
    nearest_choices,
    raise_all,
    received_value,
)
from fedjax_bal.config.reference import find_keys, json_schema, short_form
from fedjax_bal.config.resolved import (
    AUTO,
    AUTO_FORMS,
    comparison_digest,
    config_digest,
    config_leaves,
    continues,
    differences,
    leaves,
    method_digest,
    resolved_sheet,
    resolved_yaml,
    run_digest,
    setting_leaves,
    with_convolution,
)
from fedjax_bal.config.schema import AuxiliarySection, DatasetSection, ModelSection, Sections
from fedjax_bal.config.sections import check_section, merge_sections, to_plain, without_defaults
from fedjax_bal.config.yaml_text import LARGEST_YAML, dump_yaml, parse_yaml, read_yaml
