"""Reads a file and the command line into a checked configuration."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path as File
from typing import Any

from fedjax_bal.config.bases import Layers, left_out
from fedjax_bal.config.configuration import FOLDER_NAME, Config, MethodEntry, UnresolvedConfig
from fedjax_bal.config.methods import check_methods, read_methods, unknown_published
from fedjax_bal.config.problems import (
    COMMAND_LINE,
    ConfigError,
    KeyPath,
    Problem,
    dotted_path,
    nearest_choices,
    raise_all,
    received_value,
)
from fedjax_bal.config.resolved import paper_setting, plugin_problems, used_plugins
from fedjax_bal.config.schema import Sections
from fedjax_bal.config.sections import Section, check_section, choose_variant, merge_sections
from fedjax_bal.config.short_forms import completed_path, section_of, with_absolute_paths, written_out
from fedjax_bal.config.yaml_text import parse_yaml, read_yaml

_LONGEST_PATH = 20
_MOST_BASES = 20
_NO_PATH = re.compile("^$|[\0\ud800-\udfff]")  # nothing, or what no file's name can hold


def load_config(
    path: str | os.PathLike[str] | None, overrides: Sequence[str] = (), *, recorded: bool = False, needs: bool = True
) -> Config:
    """Reads, changes and checks a configuration.

    Args:
        path: a YAML file, or the name of a built-in configuration; None for the quickstart.
        overrides: changes from the command line, each `dotted.path=VALUE` with VALUE in YAML; the end of a path is
            enough where no other key ends like it. A mapping changes the keys that it has, and the others stay.
            Choosing another optimizer, scheme, law or recipe drops the parameters of the one before. A relative path
            counts from the working directory here, and in a file from its folder.
        recorded: take the digests of plug-ins from the file, that of a run folder, whatever is loaded now.
        needs: whether a method that lacks what it needs is refused, unless the file is a recorded one.

    Returns:
        The configuration.

    Raises:
        ConfigError: something is wrong; its text has all the problems, one a line.

    Example:
        >>> load_config(None, ["training.rounds=3", "seeds=[7]"]).training.rounds
        3
        >>> short = load_config("quickstart", ["rounds=3", "lr=0.1", "methods=[fedavg, rebafl]", "seeds=2"])
        >>> short.training.rounds, [method.name for method in short.methods], short.seeds
        (3, ['fedavg', 'rebafl'], (0, 1))
        >>> load_config(None, ["training.rouns=3"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedjax_bal.config.problems.ConfigError: command line: training.rouns: unknown key; allowed: ...
    """
    return load_over_base(path, overrides, recorded=recorded, needs=needs)[0]


def load_over_base(
    path: str | os.PathLike[str] | None, overrides: Sequence[str] = (), *, recorded: bool = False, needs: bool = True
) -> tuple[Config, list[str]]:
    """Does what `load_config` does, and lists, as KEY=VALUE, what of the base was left out for other data.

    Example:
        >>> load_over_base(None, ["partition=iid", "methods=[fedavg]"])[1]
        ['partition.imbalance_factor=50', 'auxiliary.per_class=10']
    """
    source, layers, changes = source_name(path), read_layers(path), parse_overrides(overrides)
    if "sweep" in layers.merged:
        command = f"fedjax-bal sweep {shlex.quote(source)}"
        raise ConfigError(f"{source}: has the key `sweep`, so it is a sweep: use `{command}`")
    stale = layers.stale(apply_changes(layers.merged, changes, COMMAND_LINE))
    sheet = layers.without(stale).merged
    data, overridden = _overridden(sheet, changes, COMMAND_LINE)
    data = with_paper_setting(sheet, data)
    plugins = data.get("plugins", {})
    config, problems = _build(data, check_plugins=not recorded)
    raise_all(source, problems, overridden)
    if needs and not recorded:
        check_methods(config, source, overridden)
    if recorded:
        config = config.model_copy(update={"plugins": plugins})
    return config, left_out(layers.base, stale, data, config)


def read_layers(path: str | os.PathLike[str] | None) -> Layers:
    """Reads a configuration whose keys aren't checked yet, and its base; a built-in one is the base of the changes.

    Paths of files in it become absolute, and short forms are written out. Raises `ConfigError` if it can't be read or
    holds something else.

    Args:
        path: a YAML file, or the name of a built-in configuration; None for the quickstart.
    """
    layers, file = _read_over_base(path, ()), find_config(path)
    if "name" not in layers.stated and FOLDER_NAME.accepts(file.stem):
        layers = layers._replace(stated={"name": file.stem, **layers.stated})
    builtin = os.path.realpath(file) in map(os.path.realpath, builtin_configs().values())
    return Layers(layers.settled, {}) if builtin else layers


def source_name(path: str | os.PathLike[str] | None) -> str:
    """The name of a configuration in messages."""
    return "built-in quickstart" if path is None else os.fspath(path)


def _read_over_base(path: str | os.PathLike[str] | None, above: tuple[str, ...]) -> Layers:
    source, file = source_name(path), find_config(path)
    data = read_yaml(file, source)
    if not isinstance(data, Mapping):
        wanted = f"must be a mapping of {', '.join(UnresolvedConfig.model_fields)}"
        raise ConfigError(f"{source}: {'is empty' if data is None else f'received {received_value(data)}'}, {wanted}")
    axes = {key: data[key] for key in ("sweep",) if key in data}  # as they are: labels of points are made of them
    data = {**written_out(with_absolute_paths(dict(data), os.curdir if path is None else file.parent)), **axes}
    if "base" not in data:
        return Layers({}, data)

    base, above = data.pop("base"), (*above, os.path.realpath(file))
    if not isinstance(base, str) or _NO_PATH.search(base):
        wanted = "must be the path of a configuration, or the name of a built-in one"
        raise ConfigError(f"{source}: base: received {received_value(base)}, {wanted}")
    beside = file.parent / base
    if os.path.realpath(beside) in above:
        raise ConfigError(f"{source}: base: received {received_value(base)}, which is based on this file itself")
    if len(above) > _MOST_BASES:
        wanted = f"must be based on at most {_MOST_BASES} others, one behind the other"
        raise ConfigError(f"{above[0]}: base: received a chain that goes on at {source}, {wanted}")
    below = _read_over_base(beside if beside.suffix and base not in builtin_configs() else base, above).settled
    if "sweep" in below:
        raise ConfigError(f"{source}: base: {base} is a sweep itself; give the configuration that it is based on")
    layers = Layers({key: value for key, value in below.items() if key != "name"}, data)
    axes = data["sweep"] if isinstance(data.get("sweep"), list) else []
    swept = [str(key) for axis in axes if isinstance(axis, Mapping) for key in axis]
    noted = with_paper_setting(layers.base, layers.settled).get("paper")
    if noted is None or "paper" in data or any(key.startswith("paper.") for key in swept):
        return layers
    return layers._replace(base={**layers.base, "paper": noted})  # not as stated: other data make it stale


def find_config(path: str | os.PathLike[str] | None) -> File:
    """The file of a configuration: the one at a path, or a built-in one of that name; None is the quickstart."""
    name, found = "quickstart" if path is None else os.fspath(path), builtin_configs()
    there = os.path.lexists(name) and not (name in found and os.path.isdir(name))  # a run's folder may be called so
    if path is not None and (there or (File(name).suffix and name not in found)):
        return File(name)
    if name not in found:
        near = nearest_choices(name, found).partition("; ")[2]
        text = "is neither a file nor a built-in configuration (fedjax-bal list configs)"
        raise ConfigError(f"{received_value(name)}: {text}{near and f'; {near}'}")
    return found[name]


def builtin_configs() -> dict[str, File]:
    """The built-in configurations: file by name, its path below `configs` without the ending."""
    package = File(__file__).parents[1]
    folder = next(place for place in (package / "configs", package.parent / "configs") if place.is_dir())
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in sorted(folder.rglob("*.yaml"))}


def build_config(data: Mapping[str, Any], changes: Sequence[tuple[KeyPath, Any]], source: str) -> Config:
    """Builds a configuration from a mapping and changes of paths to values; messages begin with `source`.

    Raises:
        ConfigError: something is wrong; its text has all the problems, one a line.
    """
    config, problems = _build(apply_changes(data, changes, source))
    raise_all(source, problems)
    return config


def apply_changes(data: Mapping[str, Any], changes: Sequence[tuple[KeyPath, Any]], source: str) -> Mapping[str, Any]:
    """Returns a mapping with changes of paths to values made, not checked yet; raises `ConfigError` for a bad path.

    Example:
        >>> apply_changes({"training": {"rounds": 3}}, [(("training", "rounds"), 5)], "mine")
        {'training': {'rounds': 5}}
    """
    return _overridden(data, changes, source)[0]


def with_paper_setting(
    paper: Mapping[str, Any], own: Mapping[str, Any], changes: Sequence[tuple[KeyPath, Any]] = ()
) -> Mapping[str, Any]:
    """Notes in a configuration which values of a paper's configuration it changes, under `paper.setting`.

    Args:
        paper: the paper's, or any; its mapping, not checked yet.
        own: what was made of it. With a key `paper` of its own it is a paper's itself, and nothing is noted.
        changes: of paths to values, that complete both.

    Returns:
        The second one, as it is if one of them isn't valid, which is said elsewhere.
    """
    results = own.get("paper")
    if not isinstance(results, Mapping) or results != paper.get("paper") or own == paper:
        return own
    try:
        both = (apply_changes({"name": "paper", **sheet}, changes, "") for sheet in (paper, own))
        (theirs, _), (ours, _) = (_build({k: v for k, v in sheet.items() if k != "sweep"}) for sheet in both)
    except ConfigError:
        return own
    return {**own, "paper": {**results, "setting": paper_setting(theirs, ours)}} if theirs and ours else own


def parse_overrides(overrides: Sequence[str]) -> list[tuple[KeyPath, Any]]:
    """Reads changes from the command line, each `dotted.path=VALUE` with VALUE in YAML, as paths and values.

    Raises:
        ConfigError: one of them is not of that form.
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
            remedy = "write a file that has them, and `base:` if need be, and use `fedjax-bal sweep FILE`"
            raise ConfigError(f"{where}: the axes of a sweep are read from its file alone; {remedy}")
        changes.append((path, with_absolute_paths(parse_yaml(value, where), os.curdir, path)))
    return changes


def _build(data: Mapping[str, Any], *, check_plugins: bool = True) -> tuple[Any, list[Problem]]:
    of_plugins = plugin_problems(data.get("plugins", {}))
    data = {key: value for key, value in data.items() if key != "plugins"}
    sheet, problems = check_section(UnresolvedConfig, data)
    entries = data.get("methods")
    base = {key: value for key, value in data.items() if key in Sections.model_fields}
    methods, found = read_methods(entries if isinstance(entries, list) else [], base)
    problems += found
    if sheet is not None and sheet.paper is not None and not found:  # a method that is wrong has no name
        problems += unknown_published(sheet.paper.accuracy, {method.name for method in methods})
    if sheet is not None and sheet.partition_seeds is not None and len(sheet.partition_seeds) != len(sheet.seeds):
        text = f"received {len(sheet.partition_seeds)} seeds, must be as many as the {len(sheet.seeds)} of `seeds`"
        problems.append(Problem(("partition_seeds",), text))
    if sheet is None or problems or (check_plugins and of_plugins):
        return None, of_plugins or problems  # whatever else is wrong may be because a plug-in is missing
    values: dict[str, Any] = {**dict(sheet), "methods": tuple(methods)}
    config = Config(**values)
    return config.model_copy(update={"plugins": used_plugins(config)}), []


def _overridden(
    data: Any, changes: Sequence[tuple[KeyPath, Any]], source: str
) -> tuple[Mapping[str, Any], list[KeyPath]]:
    """The mapping with the changes made, and their whole paths."""
    # A choice drops parameters, so that it has to come before those that are given along with it; but it stays behind
    # other choices, and behind what replaces or changes the section as a whole.
    ordered: list[tuple[KeyPath, bool, tuple[KeyPath, Any]]] = []
    for given, value in changes:
        path, place = completed_path(given, value, data), len(ordered)
        section = section_of(path)
        chooses = section is not None and path[-1] == section.choice
        while chooses and place:
            before, chose, _ = ordered[place - 1]
            if chose or path[: len(before)] == before:
                break
            place -= 1
        ordered.insert(place, (path, chooses, (given, value)))

    paths = []
    for _, _, (given, value) in ordered:
        path = completed_path(given, value, data, source)
        data = _assign(data, UnresolvedConfig, path, written_out(value, section_of(path), path), source)
        paths.append(path)
    return data, paths


def _assign(
    node: Any, section: type[Section] | None, path: KeyPath, value: Any, source: str, above: KeyPath = ()
) -> Any:
    if not path:
        if section is None or section is MethodEntry or not isinstance(node, Mapping):
            return value
        return merge_sections(section, node, value)
    key, rest, here = str(path[0]), path[1:], (*above, path[0])
    where = f"{source}: {dotted_path((*above, *path))}"
    if isinstance(node, list):
        if not (key.isascii() and key.isdigit() and len(key) < 9 and int(key) < len(node)):
            allowed = f"0 to {len(node) - 1}" if node else "none, the list is empty"
            rule = f"as a position in {dotted_path(above)}; allowed: {allowed}"
            raise ConfigError(f"{where}: received {received_value(key)} {rule}")
        place, below = int(key), section if section is MethodEntry else None
        return [*node[:place], _assign(node[place], below, rest, value, source, here), *node[place + 1 :]]
    if node is not None and not isinstance(node, Mapping):
        raise ConfigError(f"{where}: {dotted_path(above)} is {received_value(node)}, which has no keys")
    node = node or {}
    if section is not None and key == section.choice and not rest:
        return choose_variant(section, node, value)
    below = section.child(key) if section else None
    return {**node, key: _assign(node.get(key), below, rest, value, source, here)}
