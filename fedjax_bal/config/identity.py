"""The identity of a configuration: its text, its digest, its plug-ins, and its differences from another one."""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from fedjax_bal.analyses import ANALYSES
from fedjax_bal.config.errors import Problem, dotted_path, received_value
from fedjax_bal.config.merge import PATHS, SEED_LISTS
from fedjax_bal.config.schema import Config, MethodConfig, Sections
from fedjax_bal.config.sections import to_plain
from fedjax_bal.config.yaml_text import dump_yaml
from fedjax_bal.metrics import METRICS
from fedjax_bal.registry import PLUGINS, Plugin

_SELDOM = ("partition_seeds", "plugins")  # left out of the resolved YAML if they are empty
# Keys that don't affect accuracies.
_NO_SETTING = ("name", "label", "paper", "plugins", "execution", "evaluation.target_accuracy")
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
    """Returns the SHA-256 of the resolved YAML, in hexadecimal: that of a run folder's config.yaml."""
    return hashlib.sha256(resolved_yaml(config).encode()).hexdigest()


def comparison_digest(config: Config) -> str:
    """Returns the digest of what all runs of a comparison share: neither methods nor labels, rounds and seeds.

    No round depends on the number of rounds or on a paper's results, and no run on the other methods and seeds. Of a
    file it includes the name but not the path, so that a folder with a configuration, its files and its runs can be
    moved; the fingerprint of the data stands for their content. A plug-in that methods use belongs to them.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> config, longer = load_config(None), load_config(None, ["rounds=60", "seeds=4", "methods=moon"])
        >>> comparison_digest(longer) == comparison_digest(config)
        True
    """
    sheet = resolved_sheet(config)
    for key in ("methods", *SEED_LISTS, "paper"):
        sheet.pop(key, None)
    of_methods = {plugin.name for method in config.methods for plugin in _plugins_of(method)}
    sheet["plugins"] = {name: digest for name, digest in config.plugins.items() if name not in of_methods}
    return _digest(_movable(sheet))


def method_digest(config: Config, index: int) -> str:
    """Returns the digest of one method: its name, recipes, plug-ins, and its complete sections but for the rounds.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> one, two = load_config(None, ["methods=fedavg,moon"]), load_config(None, ["methods=moon", "rounds=9"])
        >>> method_digest(one, 1) == method_digest(two, 0) != method_digest(one, 0)
        True
    """
    method = config.methods[index]
    sections = {key: to_plain(getattr(method, key)) for key in Sections.model_fields}
    named = {"name": method.name, "recipes": to_plain(method.recipes)}
    plugins = {plugin.name: config.plugins.get(plugin.name) for plugin in _plugins_of(method)}
    return _digest({**named, "plugins": plugins, **_movable(sections)})


def run_digest(config: Config) -> str:
    """Returns the digest of a comparison with its methods, for the files that have one digest."""
    return _digest([comparison_digest(config), *(method_digest(config, index) for index in range(len(config.methods)))])


def _movable(sheet: Mapping[str, Any]) -> dict[str, Any]:
    """Returns sections without the number of rounds, and with the names of files in place of their paths."""
    training = {key: value for key, value in sheet["training"].items() if key != "rounds"}
    sheet = {**sheet, "training": training}
    for key, file in PATHS.items():
        path = sheet[key].get(file)
        if path is not None:
            sheet[key] = {**sheet[key], file: os.path.basename(path)}
    return sheet


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def continues(config: Config, earlier: Config) -> bool:
    """Returns whether a configuration equals an earlier one, or only adds rounds, seeds or methods to it.

    The earlier methods are all there, under their names and with the same settings, in any order. New seeds must follow
    the old ones, since pictures and analyses use the first seed.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> short = load_config(None, ["rounds=10", "seeds=[0]", "methods=fedavg"])
        >>> long = load_config(None, ["rounds=20", "seeds=[0, 1]", "methods=moon,fedavg"])
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
    places = {method.name: index for index, method in enumerate(config.methods)}
    for index, before in enumerate(earlier.methods):
        place = places.get(before.name)
        if place is None or method_digest(config, place) != method_digest(earlier, index):
            return False
        if config.methods[place].training.rounds < before.training.rounds:
            return False
    return True


def differences(here: Config, asked: Config) -> list[str]:
    """Lists the keys in which the configuration of a run folder and the requested one differ; of methods by name.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> differences(load_config(None, ["training.rounds=40"]), load_config(None, ["training.rounds=60"]))
        ['training.rounds: 40 here, 60 asked for']
    """
    ours, theirs = (resolved_sheet(config) for config in (here, asked))
    for sheet in (ours, theirs):
        sheet["methods"] = {entry["name"]: entry for entry in sheet["methods"]}
    for name in theirs["methods"].keys() - ours["methods"].keys():
        del theirs["methods"][name]  # a method that is added isn't in the way
    return differing_leaves(ours, theirs)


def differing_leaves(here: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Lists the values in which a folder's file and what is asked for differ, by dotted path."""
    ours, theirs = ({path: received_value(value) for path, value in leaves(sheet).items()} for sheet in (here, asked))
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
    theirs = setting_leaves(_plain_config(paper))
    ours = setting_leaves(_plain_config(config))
    noted = paper.paper.setting if paper.paper else {}  # of a run folder's file, which may have changed some already

    changed = {}
    for key, value in {**theirs, **noted}.items():
        shared = key.rpartition(": ")[2]
        # A key that only one of them has belongs to a choice, such as a network's name, that both have; and a value
        # that a method shares with all others is listed once.
        if key not in ours or ours[key] == value:
            continue
        if shared == key or any(tree.get(key) != tree.get(shared) for tree in (theirs, ours)):
            changed[key] = value
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
        items = [to_plain(spec) for spec in method.recipes]
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
    used = METRICS.plugins().union(*map(_plugins_of, config.methods))
    return {plugin.name: plugin.digest for plugin in sorted(used)}


def _plugins_of(method: MethodConfig) -> set[Plugin]:
    """Returns the plug-ins of a method's recipes, data set, partition, model, selector and analyses."""
    used = {ANALYSES.plugin(name) for name in method.evaluation.analyses}
    named = (method.dataset, method.partition, method.model, method.selection, *method.recipes) if PLUGINS else ()
    for section in named:
        registry: Any = section.choices()
        used.add(registry.plugin(getattr(section, str(section.choice))))
    return {plugin for plugin in used if plugin is not None}


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
