"""Reads a file and the command line into a checked configuration."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path as File
from typing import Any

from fedjax_bal.config.anchors import with_absolute_paths
from fedjax_bal.config.configuration import Config, MethodEntry, UnresolvedConfig
from fedjax_bal.config.methods import read_methods
from fedjax_bal.config.problems import (
    ConfigError,
    KeyPath,
    Problem,
    dotted_path,
    nearest_choices,
    raise_all,
    received_value,
)
from fedjax_bal.config.provenance import plugin_problems, used_plugins
from fedjax_bal.config.schema import Sections
from fedjax_bal.config.sections import Section, check_section, choose_variant
from fedjax_bal.config.yaml_text import parse_yaml, read_yaml

_COMMAND_LINE = "command line"
_LONGEST_PATH = 20


def load_config(
    path: str | os.PathLike[str] | None, overrides: Sequence[str] = (), *, recorded: bool = False
) -> Config:
    """Reads, changes and checks a configuration.

    Args:
        path: a YAML file; None for the built-in quickstart.
        overrides: changes from the command line, each `dotted.path=VALUE` with VALUE in YAML. Choosing another
            optimizer, scheme, law or recipe drops the parameters of the one before. A relative path counts from the
            working directory here, and in a file from its folder.
        recorded: take the digests of plug-ins from the file, that of a run folder, whatever is loaded now.

    Returns:
        The configuration.

    Raises:
        ConfigError: something is wrong; its text has all the problems, one a line.

    Example:
        >>> load_config(None, ["training.rounds=3", "seeds=[7]"]).training.rounds
        3
        >>> load_config(None, ["training.rouns=3"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedjax_bal.config.problems.ConfigError: command line: training.rouns: unknown key; allowed: ...
    """
    source = "built-in quickstart" if path is None else os.fspath(path)
    sheet = read_mapping(path)
    of_sweep = next((key for key in ("sweep", "base") if key in sheet), None)
    if of_sweep:
        raise ConfigError(f"{source}: has the key `{of_sweep}`, so it is a sweep: use `fedjax-bal sweep {source}`")
    data, overridden = _overridden(sheet, [_parse_override(text) for text in overrides])
    plugins = data.get("plugins", {})
    config, problems = _build(data, check_plugins=not recorded)
    raise_all(source, problems, overridden)
    return config.model_copy(update={"plugins": plugins}) if recorded else config


def read_mapping(path: str | os.PathLike[str] | None) -> Mapping[str, Any]:
    """Reads a YAML file, or the built-in quickstart for None, as a mapping whose keys aren't checked yet.

    Paths of files in it become absolute. Raises `ConfigError` if it can't be read or holds something else.
    """
    source = "built-in quickstart" if path is None else os.fspath(path)
    data = read_yaml(_quickstart() if path is None else path, source)
    if not isinstance(data, Mapping):
        wanted = f"must be a mapping of {', '.join(UnresolvedConfig.model_fields)}"
        raise ConfigError(f"{source}: {'is empty' if data is None else f'received {received_value(data)}'}, {wanted}")
    return with_absolute_paths(dict(data), os.curdir if path is None else os.path.dirname(source))


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
    try:
        return _overridden(data, changes)[0]
    except ConfigError as error:
        raise ConfigError(str(error).replace(_COMMAND_LINE, source)) from None


def parse_overrides(overrides: Sequence[str]) -> list[tuple[KeyPath, Any]]:
    """Reads changes from the command line, each `dotted.path=VALUE` with VALUE in YAML, as paths and values.

    Raises:
        ConfigError: one of them is not of that form.
    """
    return [_parse_override(text) for text in overrides]


def _quickstart() -> File:
    package = File(__file__).parents[1]
    installed = package / "configs" / "quickstart.yaml"
    return installed if installed.exists() else package.parent / "configs" / "quickstart.yaml"


def _build(data: Mapping[str, Any], *, check_plugins: bool = True) -> tuple[Any, list[Problem]]:
    of_plugins = plugin_problems(data.get("plugins", {}))
    data = {key: value for key, value in data.items() if key != "plugins"}
    sheet, problems = check_section(UnresolvedConfig, data)
    entries = data.get("methods")
    base = {key: value for key, value in data.items() if key in Sections.model_fields}
    methods, found = read_methods(entries if isinstance(entries, list) else [], base)
    problems += found
    if sheet is not None and sheet.paper is not None:
        named = {method.name for method in methods}
        unknown = [name for name in sheet.paper.accuracy if name not in named]
        place = ("paper", "accuracy")
        problems += [
            Problem((*place, name), f"there is no method of this name; {nearest_choices(name, named)}")
            for name in unknown
        ]
    if sheet is not None and sheet.partition_seeds is not None and len(sheet.partition_seeds) != len(sheet.seeds):
        text = f"received {len(sheet.partition_seeds)} seeds, must be as many as the {len(sheet.seeds)} of `seeds`"
        problems.append(Problem(("partition_seeds",), text))
    if problems or (check_plugins and of_plugins):
        return None, of_plugins or problems  # whatever else is wrong may be because a plug-in is missing
    shared = {key: getattr(sheet, key) for key in UnresolvedConfig.model_fields if key != "methods"}
    config = Config(methods=tuple(methods), **shared)
    return config.model_copy(update={"plugins": used_plugins(config)}), []


def _overridden(data: Any, parsed: Sequence[tuple[KeyPath, Any]]) -> tuple[Any, list[KeyPath]]:
    for path, value in _choices_first(parsed):
        data = _assign(data, UnresolvedConfig, path, value, ())
    return data, [path for path, _ in parsed]


def _choices_first(parsed: Sequence[tuple[KeyPath, Any]]) -> list[tuple[KeyPath, Any]]:
    # A choice drops parameters, so that it has to come before those that are given along with it.
    ordered: list[tuple[KeyPath, Any]] = []
    for path, value in parsed:
        place = len(ordered)
        if path[-1] in ("name", "scheme", "recipe"):
            while place and ordered[place - 1][0] != path and ordered[place - 1][0][:-1] == path[:-1]:
                place -= 1
        ordered.insert(place, (path, value))
    return ordered


def _parse_override(text: str) -> tuple[KeyPath, Any]:
    key, equals, value = text.partition("=")
    path = tuple(key.split("."))
    if not equals or not all(path) or len(path) > _LONGEST_PATH:
        example = "must be dotted.path=VALUE, for instance training.rounds=30"
        raise ConfigError(f"{_COMMAND_LINE}: received {received_value(text)}, {example}")
    return path, with_absolute_paths(parse_yaml(value, f"{_COMMAND_LINE}: {dotted_path(path)}"), os.curdir, path)


def _assign(node: Any, section: type[Section] | None, path: KeyPath, value: Any, above: KeyPath) -> Any:
    if not path:
        return value
    key, rest, here = str(path[0]), path[1:], (*above, path[0])
    if isinstance(node, list):
        return _assign_item(node, section, path, value, above)
    if node is not None and not isinstance(node, Mapping):
        raise ConfigError(
            f"{_COMMAND_LINE}: {dotted_path((*above, *path))}: "
            f"{dotted_path(above)} is {received_value(node)}, which has no keys"
        )
    node = node or {}
    if section is not None and key == section.choice and not rest:
        return choose_variant(section, node, value)
    below = section.child(key) if section else None
    return {**node, key: _assign(node.get(key), below, rest, value, here)}


def _assign_item(
    node: list[Any], section: type[Section] | None, path: KeyPath, value: Any, above: KeyPath
) -> list[Any]:
    key = str(path[0])
    if not (key.isascii() and key.isdigit() and len(key) < 9 and int(key) < len(node)):
        allowed = f"0 to {len(node) - 1}" if node else "none, the list is empty"
        raise ConfigError(
            f"{_COMMAND_LINE}: {dotted_path((*above, *path))}: "
            f"received {received_value(key)} as a position in {dotted_path(above)}; "
            f"allowed: {allowed}"
        )
    index = int(key)
    item = _assign(node[index], section if section is MethodEntry else None, path[1:], value, (*above, key))
    return [*node[:index], item, *node[index + 1 :]]
