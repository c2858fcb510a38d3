"""The identity of a configuration: its text, its digest, its plug-ins, and its differences from another one."""

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from fedjax_bal.analyses import ANALYSES
from fedjax_bal.config.changes import PATHS, SEED_LISTS
from fedjax_bal.config.configuration import Config, MethodConfig
from fedjax_bal.config.problems import Problem, dotted_path, received_value
from fedjax_bal.config.schema import Sections
from fedjax_bal.config.sections import to_plain
from fedjax_bal.config.yaml_text import dump_yaml
from fedjax_bal.metrics import METRICS
from fedjax_bal.registry import PLUGINS

_SELDOM = ("partition_seeds", "plugins", "files")  # left out of the resolved YAML if they are empty
# Keys that don't affect accuracies.
_NO_SETTING = ("name", "label", "paper", "plugins", "files", "execution", "evaluation.target_accuracy")
_PRECISION = "execution.precision"
AUTO, AUTO_FORMS = "auto", ("builtin", "fast")
"""The value of `model.convolution` that a run replaces, and the possible replacements."""


def resolved_yaml(config: Config) -> str:
    """Writes the complete configuration as YAML, every default included.

    `load_config` reads it back to an equal configuration; equal configurations give equal bytes.
    """
    return dump_yaml(resolved_sheet(config))


def with_convolution(config: Config, form: str, of: str = AUTO) -> Config:
    """Replaces the convolution form "auto", or another one, in a configuration and in its methods' overrides.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> config = load_config(None, ["methods=[fedavg, {recipe: fedprox, model: {convolution: fast}}]"])
        >>> chosen = with_convolution(config, "builtin")
        >>> [method.model.convolution for method in chosen.methods]
        ['builtin', 'fast']
    """
    methods = []
    for method in config.methods:
        model = method.overrides.get("model", {})
        if model.get("convolution") == of:
            overrides = method.overrides | {"model": model | {"convolution": form}}
            method = method.model_copy(update={"overrides": overrides})
        methods.append(_with_form(method, form, of))
    return _with_form(config, form, of).model_copy(update={"methods": tuple(methods)})


def _with_form(sections: Any, form: str, of: str) -> Any:
    if sections.model.convolution != of:
        return sections
    return sections.model_copy(update={"model": sections.model.model_copy(update={"convolution": form})})


def config_digest(config: Config) -> str:
    """Returns the SHA-256 of the resolved YAML in hexadecimal."""
    return _digest(resolved_sheet(config))


def run_digest(config: Config) -> str:
    """Returns the digest of what any of a comparison's runs depends on."""
    return _digest([comparison_digest(config), *(method_digest(config, index) for index in range(len(config.methods)))])


def comparison_digest(config: Config) -> str:
    """Returns the digest of what the methods have in common: all but labels, rounds, seeds and the methods themselves.

    It includes the name of a file but not its path, so that a folder with a configuration, its files and its runs can
    be moved.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> config, longer = load_config(None), load_config(None, ["training.rounds=60", "seeds=[0, 1, 2, 3]"])
        >>> comparison_digest(longer) == comparison_digest(config)
        True
    """
    sheet = resolved_sheet(config)
    for key in (*SEED_LISTS, "files", "methods", "paper"):
        sheet.pop(key, None)
    return _digest(_without_rounds_and_paths(sheet))


def method_digest(config: Config, index: int) -> str:
    """Returns the digest of what one method depends on, in the same way: its recipes and its settings."""
    method = config.methods[index]
    recipes = [{"name": recipe.name, **to_plain(recipe.hyperparameters)} for recipe in method.recipes]
    sections = {key: to_plain(getattr(method, key)) for key in Sections.model_fields}
    return _digest({"name": method.name, "recipes": recipes, **_without_rounds_and_paths(sections)})


def _without_rounds_and_paths(sheet: dict[str, Any]) -> dict[str, Any]:
    sheet["training"].pop("rounds", None)
    for key, file in PATHS.items():
        if (path := sheet.get(key, {}).get(file)) is not None:
            sheet[key] = sheet[key] | {file: os.path.basename(path)}
    return sheet


def continues(config: Config, earlier: Config) -> bool:
    """Returns whether a configuration equals an earlier one, or only adds rounds, seeds or methods to it.

    No round depends on the number of rounds, so the earlier runs are the beginning of the new ones. New seeds must
    follow the old ones, since attacks and pictures use the first seed.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> short = load_config(None, ["training.rounds=10", "seeds=[0]"])
        >>> long = load_config(None, ["training.rounds=20", "seeds=[0, 1]"])
        >>> continues(long, short), continues(short, long)
        (True, False)
    """
    if comparison_digest(config) != comparison_digest(earlier):
        return False
    for key in SEED_LISTS:
        seeds = getattr(config, key)
        before = getattr(earlier, key)
        if seeds != before and (seeds is None or before is None or seeds[: len(before)] != before):
            return False
    places = {method.name: place for place, method in enumerate(config.methods)}
    return all(
        method.name in places
        and method_digest(config, places[method.name]) == method_digest(earlier, index)
        and config.methods[places[method.name]].training.rounds >= method.training.rounds
        for index, method in enumerate(earlier.methods)
    )


def _digest(sheet: Any) -> str:
    return hashlib.sha256(dump_yaml(sheet).encode()).hexdigest()


def differences(here: Config, asked: Config) -> list[str]:
    """Lists the keys in which the configuration of a run folder and the requested one differ.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> differences(load_config(None, ["training.rounds=40"]), load_config(None, ["training.rounds=60"]))
        ['training.rounds: 40 here, 60 asked for']
    """
    ours, theirs = (config_leaves(config.model_copy(update={"files": {}})) for config in (here, asked))
    return [
        f"{path}: {ours.get(path, 'absent')} here, {theirs.get(path, 'absent')} asked for"
        for path in dict.fromkeys([*ours, *theirs])
        if ours.get(path) != theirs.get(path)
    ]


def config_leaves(config: Config) -> dict[str, str]:
    """Returns the values of a configuration as text, by dotted path."""
    return {path: received_value(value) for path, value in leaves(resolved_sheet(config)).items()}


def setting_leaves(sheet: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that accuracies can depend on, by dotted path: the shared ones, then those of each method.

    Example:
        >>> setting_leaves({"name": "mine", "seeds": [0], "methods": [{"name": "slow", "training": {"rounds": 9}}]})
        {'seeds': [0], 'slow: seeds': [0], 'slow: training.rounds': 9}
    """
    methods = sheet.get("methods")
    shared = _counted({key: value for key, value in sheet.items() if key != "methods"})
    setting = dict(shared)
    for entry in methods if isinstance(methods, list) else ():
        if isinstance(entry, Mapping):
            setting |= {f"{entry.get('name')}: {key}": value for key, value in (shared | _counted(entry)).items()}
    return setting


def _counted(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the leaves that accuracies can depend on."""
    starts = tuple(f"{key}." for key in _NO_SETTING)
    return {key: value for key, value in leaves(tree).items() if key == _PRECISION or not f"{key}.".startswith(starts)}


def paper_setting(paper: Config, config: Config) -> dict[str, Any]:
    """Returns the values of a paper's configuration that a configuration derived from it changes."""
    noted = paper.paper.setting if paper.paper else {}
    ours = setting_leaves(_plain_config(config))

    # A value that the paper's configuration notes for a key also holds for the methods that don't override the key.
    leaves_of_paper = setting_leaves(_plain_config(paper))
    theirs = dict(leaves_of_paper)
    for key, value in leaves_of_paper.items():
        shared = key.rpartition(": ")[2]
        if leaves_of_paper.get(shared) == value and shared in noted:
            theirs[key] = noted[shared]
    theirs |= noted

    # A key that only one of them has is skipped: it belongs to a choice, such as a network's name, that both have.
    changed = {key: value for key, value in theirs.items() if key in ours and ours[key] != value}
    for key in list(changed):
        shared = key.rpartition(": ")[2]
        if shared != key and shared in changed and ours[shared] == ours[key]:  # already listed for all methods
            del changed[key]
    return changed


def resolved_sheet(config: Config) -> dict[str, Any]:
    """Returns the configuration as mappings and lists, as a run folder records it: no `model.weights` for none."""
    sheet = _plain_config(config)
    if sheet["model"]["weights"] is None:
        del sheet["model"]["weights"]
    return sheet


def _plain_config(config: Config) -> dict[str, Any]:
    sheet = {key: to_plain(getattr(config, key)) for key in Config.model_fields}
    if config.paper and not config.paper.setting:
        del sheet["paper"]["setting"]
    order = ["name", *(key for key in sheet if key not in {"name", "methods", *SEED_LISTS}), "methods", *SEED_LISTS]
    sheet = {key: sheet[key] for key in order if sheet[key] or key not in _SELDOM}
    methods = []
    for method in config.methods:
        items = [{"name": spec.name, **to_plain(spec.hyperparameters)} for spec in method.recipes]
        alone = {"recipe": items[0].pop("name"), **items[0]} if len(items) == 1 else {"recipe": items}
        label = {"label": method.label} if method.label else {}
        methods.append({"name": method.name, **label, **alone, **to_plain(method.overrides)})
    return sheet | {"methods": methods}


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> dict[str, Any]:
    """Flattens nested mappings and lists of mappings to values by dotted path."""
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        return {dotted_path(path): value}
    return {key: leaf for name, below in value.items() for key, leaf in leaves(below, (*path, name)).items()}


def used_plugins(config: Config) -> dict[str, str]:
    """Returns the digests of the plug-ins that a configuration uses, and of those with metrics, by name."""
    used: set[Any] = {*METRICS.plugins()}
    for method in config.methods if PLUGINS else ():
        recipes: Any = MethodConfig.choices()
        used |= {recipes.plugin(recipe.name) for recipe in method.recipes}
        used |= {ANALYSES.plugin(name) for name in method.evaluation.analyses}
        for section in (method.dataset, method.partition, method.model, method.selection):
            registry: Any = section.choices()
            used.add(registry.plugin(getattr(section, str(section.choice))))
    return {plugin.name: plugin.digest for plugin in sorted(used - {None})}


def plugin_problems(recorded: Any) -> list[Problem]:
    """Finds differences between the plug-ins that a run has recorded and those that are loaded."""
    if not isinstance(recorded, Mapping):
        text = (
            "a configuration never loads code: leave the key out, and name the file with --plugin on the command line"
        )
        return [Problem(("plugins",), f"received {received_value(recorded)}; {text}")]
    problems = []
    for name, digest in recorded.items():
        loaded = PLUGINS.get(name)
        if loaded is None:
            text = "but no plug-in of this name is loaded; give it with --plugin, or import it in Python"
        elif loaded.digest != digest:
            text = (
                f"but the source that is loaded has the digest {loaded.digest}; load the one with which this was "
                "written, or leave the key plugins out"
            )
        else:
            continue
        problems.append(Problem(("plugins", str(name)), f"received {received_value(digest)}, {text}"))
    return problems
