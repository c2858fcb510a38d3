"""Expands the short forms of a configuration, and applies changes of single keys.

A name in place of a section, a number of seeds, or a key without its path is accepted where it is unambiguous, in files
as on the command line. A run folder records the expanded form. Relative paths of files become absolute.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_bal.config.configuration import MOST_SEEDS, Config, MethodConfig
from fedjax_bal.config.problems import COMMAND_LINE, ConfigError, KeyPath, dotted_path, received_value
from fedjax_bal.config.sections import SYNONYMS, Section, choose_variant, key_paths, merge_sections
from fedjax_bal.config.yaml_text import parse_yaml

PATHS = {"availability": "file", "delivery": "file", "speed": "file", "partition": "file", "model": "weights"}
"""Section -> its key that is the path of a file."""
_LONGEST_PATH = 20
SEED_LISTS = ("seeds", "partition_seeds")
"""The keys whose value is a list of seeds, or their number."""
_LISTS = ("methods", *SEED_LISTS)


def expand_short_forms(value: Any, section: type[Section] | None = Config, path: KeyPath = ()) -> Any:
    """Expands the short forms in a configuration, or in the part of it at a path.

    Args:
        value: the configuration or the part, not validated yet; everything but short forms is unchanged.
        section: the section's class; None for a value that isn't a section.
        path: the keys that lead to the part.

    Example:
        >>> expand_short_forms({"dataset": "CIFAR10", "methods": ["fedavg", "FedProx"], "seeds": 2})
        {'dataset': {'name': 'cifar10'}, 'methods': [{'recipe': 'fedavg'}, {'recipe': 'fedprox'}], 'seeds': [0, 1]}
    """
    if len(path) == 1 and path[0] in SEED_LISTS and type(value) is int and 0 < value <= MOST_SEEDS:
        return list(range(value))
    if path == ("methods",):
        entries = [value] if isinstance(value, str | Mapping) else value
        return [_section(entry, MethodConfig, path) for entry in entries] if isinstance(entries, list) else value
    if section is None:
        return value
    if path and section.choice == path[-1]:
        return _known_name(value, section)
    return _section(value, section, path)


def _section(value: Any, section: type[Section], path: KeyPath) -> Any:
    if isinstance(value, str) and section.choice:
        value = {section.choice: value}
    if not isinstance(value, Mapping):
        return value
    whole = {key: expand_short_forms(item, section.child(str(key)), (*path, key)) for key, item in value.items()}
    if section.choice in whole:
        whole[section.choice] = _known_name(whole[section.choice], section)
    return whole


def _known_name(name: Any, section: type[Section]) -> Any:
    """Returns the only known name that differs from `name` in case and punctuation alone; else `name` itself."""
    if not isinstance(name, str) or name in section.choices():
        return name
    near = [known for known in section.choices() if _letters(known) == _letters(name)]
    return near[0] if len(near) == 1 else name


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def section_of(path: KeyPath) -> type[Section] | None:
    """Returns the class of the section at a path; the path of a choice gives the section that contains it."""
    section: type[Section] | None = Config
    for key in path:
        if section is None or key == section.choice:
            return section
        section = section if section is MethodConfig and str(key).isdigit() else section.child(str(key))
    return section


def completed_path(given: KeyPath, value: Any, data: Any, source: str | None = None) -> KeyPath:
    """Completes the path of a key from the end of it; returns the path unchanged if no known key has this end.

    An option of optimizers means the clients' optimizer, and one that a data set shares with another section the
    latter's: `clients=20` is a number of clients, not a column.

    Args:
        given: the path, from the command line or an axis of a sweep.
        value: the key's new value; a name for a whole section sets the section's choice.
        data: the configuration so far; its choices decide which parameters exist.
        source: for messages; without it, an ambiguous path is returned unchanged, since a later choice may resolve it.

    Raises:
        ConfigError: the path is ambiguous.

    Example:
        >>> completed_path(("lr",), 0.1, {}), completed_path(("partition",), "iid", {})
        (('training', 'optimizer', 'learning_rate'), ('partition', 'scheme'))
    """
    path = given
    if path[0] not in Config.model_fields:
        end = (*path[:-1], SYNONYMS.get(str(path[-1]), path[-1]))
        meant = [known for known in key_paths(Config, data) if known[-len(end) :] == end]
        meant = [known for known in meant if "server_optimizer" not in known] or meant
        meant = [known for known in meant if known[0] != "dataset"] or meant
        if end == ("seed",):
            meant.append(("seeds",))
        if len(meant) > 1 and source is not None:
            paths = ", ".join(map(dotted_path, meant))
            seeds = f"; seeds=[{value}] is the seed of training" if end == ("seed",) else ""
            raise ConfigError(f"{source}: {dotted_path(path)}: ambiguous key; give the full path: {paths}{seeds}")
        if len(meant) == 1:
            path = meant[0]
    section = section_of(path)
    if isinstance(value, str) and section not in (None, MethodConfig) and section.choice not in (None, path[-1]):
        return (*path, str(section.choice))  # partition=iid is partition.scheme=iid
    return path


def with_absolute_paths(value: Any, folder: str | os.PathLike[str], path: KeyPath = ()) -> Any:
    """Makes the paths in a configuration absolute.

    Args:
        value: a configuration, or the part of it under `path`.
        folder: the folder that relative paths start from.
        path: the keys that lead to the part.

    Example:
        >>> with_absolute_paths({"delivery": {"name": "trace", "file": "phones.csv"}}, "/traces")
        {'delivery': {'name': 'trace', 'file': '/traces/phones.csv'}}
    """
    if isinstance(value, dict) and path == ("files",):
        return {os.path.normpath(os.path.join(os.path.abspath(folder), key)): item for key, item in value.items()}
    if isinstance(value, dict):
        return {key: with_absolute_paths(item, folder, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [with_absolute_paths(item, folder, (*path, index)) for index, item in enumerate(value)]
    keys = [part for key in path if isinstance(key, str) for part in key.split(".")]
    is_path = keys == ["weights"] or (len(keys) > 1 and keys[-1] == PATHS.get(keys[-2]))
    if is_path and isinstance(value, str) and value.strip():
        return os.path.normpath(os.path.join(os.path.abspath(folder), value))
    return value


def split_axes(overrides: Sequence[str]) -> tuple[list[str], dict[str, list[Any]]]:
    """Separates the axes of a sweep, KEY=VALUE,VALUE, from changes of single values.

    Brackets, braces and quotes keep a value that contains commas together. Several methods or seeds are no axis.

    Returns:
        The changes, and the values of the axes by key.

    Example:
        >>> split_axes(["lr=0.01,0.1", "rounds=5", "hidden=[64, 64]", "seeds=3,4"])
        (['rounds=5', 'hidden=[64, 64]', 'seeds=3,4'], {'lr': [0.01, 0.1]})
    """
    changes: list[str] = []
    axes: dict[str, list[Any]] = {}
    for text in overrides:
        key, _, value = text.partition("=")
        values = _listed(value)
        if len(values) < 2 or key in (*_LISTS, "sweep"):
            changes.append(text)
        elif axes.setdefault(key, values) is not values:
            raise ConfigError(f"{COMMAND_LINE}: {key}: received two axes; give all its values in one")
    return changes, axes


def _listed(value: str) -> list[Any]:
    """Returns the values between the commas of a text; none if it isn't YAML."""
    try:
        values = parse_yaml(f"[{value}]", "")
    except ConfigError:
        return []
    return values if isinstance(values, list) else []


def parse_overrides(overrides: Sequence[str]) -> list[tuple[KeyPath, Any]]:
    """Parses the command line's changes, each `dotted.path=VALUE` with VALUE in YAML, to paths and values.

    Methods and seeds may be listed without brackets.

    Raises:
        ConfigError: a change doesn't have that form.

    Example:
        >>> parse_overrides(["training.rounds=5", "methods=fedavg,rebafl"])
        [(('training', 'rounds'), 5), (('methods',), ['fedavg', 'rebafl'])]
    """
    changes = []
    for text in overrides:
        key, equals, value = text.partition("=")
        path = tuple(key.split("."))
        if not equals or not all(path) or len(path) > _LONGEST_PATH:
            example = "must be dotted.path=VALUE, for instance training.rounds=30"
            raise ConfigError(f"{COMMAND_LINE}: received {received_value(text)}, {example}")
        where = f"{COMMAND_LINE}: {dotted_path(path)}"
        if path[0] == "sweep":
            raise ConfigError(f"{where}: write an axis of a sweep as KEY=VALUE,VALUE, for instance lr=0.01,0.1")
        values = _listed(value) if key in _LISTS else []
        parsed = values if len(values) > 1 else parse_yaml(value, where)
        changes.append((path, with_absolute_paths(parsed, os.curdir, path)))
    return changes


def name_in_results(entry: Any) -> str:
    """Returns the name in results of the method in an entry of `methods`, before the entry is validated.

    Example:
        >>> name_in_results({"recipe": ["fedavg", {"name": "iwds", "schedule": "fixed"}]})
        'fedavg+iwds'
    """
    if not isinstance(entry, Mapping):
        return str(entry)
    if "recipe" not in entry or entry.get("name"):
        return str(entry.get("name"))
    recipe = entry["recipe"]
    return "+".join(map(name_in_results, recipe)) if isinstance(recipe, list) else str(recipe)


def take_over_entries(changes: Sequence[tuple[KeyPath, Any]], data: Mapping[str, Any]) -> list[tuple[KeyPath, Any]]:
    """Replaces plain names in changes of `methods` by a configuration's entries of these names, with their settings.

    A name without an entry stays, and is a recipe's; a mapping with a recipe never stands for an entry.

    Example:
        >>> base = {"methods": [{"recipe": "fedavg"}, {"recipe": "rebafl", "mu": 0.2}]}
        >>> take_over_entries([(("methods",), ["rebafl", "moon", {"recipe": "fedavg"}])], base)
        [(('methods',), [{'recipe': 'rebafl', 'mu': 0.2}, 'moon', {'recipe': 'fedavg'}])]
    """
    by_name: dict[Any, list[Any]] = {}
    methods = data.get("methods")
    for entry in methods if isinstance(methods, list) else ():
        if isinstance(entry, Mapping) and "recipe" in entry:
            by_name.setdefault(name_in_results(entry), []).append(entry)

    def entry_of(name: Any) -> Any:
        if not isinstance(name, str):
            return name
        found = by_name.get(name) or by_name.get(_known_name(name, MethodConfig), [])
        return found[0] if len(found) == 1 else name

    replaced = []
    for path, value in changes:
        if path == ("methods",) and isinstance(value, str | list):
            value = [entry_of(name) for name in ([value] if isinstance(value, str) else value)]
        replaced.append((path, value))
    return replaced


def apply_changes(data: Mapping[str, Any], changes: Sequence[tuple[KeyPath, Any]], source: str) -> Mapping[str, Any]:
    """Applies changes, pairs of path and value, without validating the result; raises `ConfigError` for a bad path.

    Example:
        >>> apply_changes({"training": {"rounds": 3}}, [(("training", "rounds"), 5)], "mine")
        {'training': {'rounds': 5}}
    """
    return apply_with_paths(data, changes, source)[0]


def apply_with_paths(
    data: Any, changes: Sequence[tuple[KeyPath, Any]], source: str
) -> tuple[Mapping[str, Any], list[KeyPath]]:
    """Applies changes; returns the new mapping, and the complete paths of the changes."""
    # A choice drops the parameters of the previous one, so it goes before the parameters that are given with it, but
    # after other choices and after changes of the section as a whole.
    ordered: list[tuple[KeyPath, bool, tuple[KeyPath, Any]]] = []
    for change in changes:
        path = completed_path(*change, data)
        section = section_of(path)
        chooses = section is not None and path[-1] == section.choice
        position = len(ordered)
        while chooses and position:
            before, chose, _ = ordered[position - 1]
            if chose or path[: len(before)] == before:
                break
            position -= 1
        ordered.insert(position, (path, chooses, change))

    before = data
    paths = []
    for _, _, (given, value) in ordered:
        path = completed_path(given, value, data, source)
        data = _assign(data, Config, path, expand_short_forms(value, section_of(path), path), source)
        paths.append(path)
    return without_former_rates(before, data), paths


def without_former_rates(before: Mapping[str, Any], after: Mapping[str, Any]) -> Mapping[str, Any]:
    """Drops rates of single methods for an optimizer in place of which another one has been chosen for all methods.

    Args:
        before: a configuration.
        after: the same with changes. A method that isn't in `before` has been stated along with them.

    Example:
        >>> entry = {"recipe": "rebafl", "training": {"optimizer": {"learning_rate": 0.03}}}
        >>> changed = {"training": {"optimizer": {"name": "adam", "learning_rate": 0.001}}, "methods": [entry]}
        >>> without_former_rates({"methods": [entry]}, changed)["methods"][0]["training"]
        {'optimizer': {}}
    """
    methods = after.get("methods")
    earlier = before.get("methods")
    if not isinstance(methods, list) or not isinstance(earlier, list):
        return after
    for key in ("optimizer", "server_optimizer"):
        then, now = (_at(data, "training", key) for data in (before, after))
        if now.get("name", then.get("name", "sgd")) == then.get("name", "sgd"):
            continue
        for place, entry in enumerate(methods):
            its = _at(entry, "training", key)
            if entry in earlier and "learning_rate" in its and "name" not in its:
                others = {name: value for name, value in its.items() if name != "learning_rate"}
                training = {**entry["training"], key: others}
                methods = [*methods[:place], {**entry, "training": training}, *methods[place + 1 :]]
    return {**after, "methods": methods}


def _at(data: Any, *path: str) -> Mapping[str, Any]:
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data if isinstance(data, Mapping) else {}


def _assign(
    node: Any, section: type[Section] | None, path: KeyPath, value: Any, source: str, above: KeyPath = ()
) -> Any:
    if not path:
        if section is None or section is MethodConfig or not isinstance(node, Mapping):
            return value
        return merge_sections(section, node, value)
    key, *rest = map(str, path)
    here = (*above, key)
    where = f"{source}: {dotted_path((*above, *path))}"
    if isinstance(node, list):
        if not (key.isascii() and key.isdigit() and len(key) < 9 and int(key) < len(node)):
            allowed = f"0 to {len(node) - 1}" if node else "none, the list is empty"
            rule = f"as a position in {dotted_path(above)}; allowed: {allowed}"
            raise ConfigError(f"{where}: received {received_value(key)} {rule}")
        below = section if section is MethodConfig else None
        items = list(node)
        items[int(key)] = _assign(items[int(key)], below, tuple(rest), value, source, here)
        return items
    if node is not None and not isinstance(node, Mapping):
        raise ConfigError(f"{where}: {dotted_path(above)} is {received_value(node)}, which has no keys")
    node = node or {}
    if section is not None and key == section.choice and not rest:
        return choose_variant(section, node, value)
    below = section.child(key) if section else None
    return {**node, key: _assign(node.get(key), below, tuple(rest), value, source, here)}
