"""Merges a file, its bases and the command line into one mapping, and validates it as a configuration.

A base is inherited key by key. Without a file, a run starts from the quickstart; or, if the command line chooses
another data set, from the defaults of the schema, as a file without a base does.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path as File
from typing import Any

from fedjax_bal.config.changes import (
    apply_changes,
    apply_with_paths,
    completed_path,
    expand_short_forms,
    parse_overrides,
    split_axes,
    take_over_entries,
    with_absolute_paths,
    without_former_rates,
)
from fedjax_bal.config.configuration import FOLDER_NAME, Config, check_methods, read_methods, unknown_published
from fedjax_bal.config.problems import (
    COMMAND_LINE,
    ConfigError,
    KeyPath,
    Problem,
    raise_all,
    received_value,
)
from fedjax_bal.config.resolved import paper_setting, plugin_problems, used_plugins
from fedjax_bal.config.schema import DatasetSection
from fedjax_bal.config.sections import check_section, merge_sections
from fedjax_bal.config.yaml_text import read_yaml
from fedjax_bal.validate import suggestion

_NO_PATH = re.compile("^$|[\0\ud800-\udfff]")  # empty, or with characters that no file name can have
_QUICKSTART = "quickstart"
_ANY_NAME = "run"  # of a run without a file


def load_config(
    path: str | os.PathLike[str] | None, overrides: Sequence[str] = (), *, recorded: bool = False, needs: bool = True
) -> Config:
    """Reads, changes and checks a configuration.

    Args:
        path: a YAML file, or the name of a built-in configuration; None for the quickstart.
        overrides: changes from the command line, each `dotted.path=VALUE` with VALUE in YAML; the end of a path is
            enough if it is unambiguous. A mapping changes only the keys that it has. A plain name in `methods` stands
            for the file's method of that name with its settings, else for a recipe. Choosing another optimizer,
            scheme, law or recipe drops the parameters of the previous one. Relative paths start from the working
            directory here, and from the file's folder in a file.
        recorded: the file is a run folder's: take plug-ins' digests from it, regardless of the plug-ins loaded now.
        needs: raise for a method whose requirements aren't met; ignored for a recorded file.

    Returns:
        The configuration.

    Raises:
        ConfigError: the configuration is invalid; the message lists all problems, one a line.

    Example:
        >>> load_config(None, ["training.rounds=3", "seeds=[7]"]).training.rounds
        3
        >>> short = load_config("quickstart", ["rounds=3", "lr=0.1", "methods=[fedavg, rebafl]", "seeds=2"])
        >>> short.training.rounds, [method.name for method in short.methods], short.seeds
        (3, ['fedavg', 'rebafl'], (0, 1))
        >>> load_config(None, ["training.rouns=3"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedjax_bal.config.problems.ConfigError: command line: training.rouns: unknown key; did you mean 'rounds'? ...
    """
    source = source_name(path, overrides)
    sheet = read_sheet(path, overrides)
    if "sweep" in sheet:
        command = f"fedjax-bal sweep {shlex.quote(source)}"
        raise ConfigError(f"{source}: has the key `sweep`, so it is a sweep: use `{command}`")
    changes = take_over_entries(parse_overrides(overrides), sheet)
    data, overridden = apply_with_paths(sheet, changes, COMMAND_LINE)
    data = with_paper_setting(sheet, data)
    plugins = data.get("plugins", {})
    config, problems = _build(data, check_plugins=not recorded)
    raise_all(source, problems, overridden)
    if needs and not recorded:
        check_methods(config, source, overridden)
    return config.model_copy(update={"plugins": plugins}) if recorded else config


def read_sheet(path: str | os.PathLike[str] | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Reads what a configuration states, over its bases, as one mapping without defaults; its keys aren't validated.

    Paths of files become absolute, and short forms are expanded. Raises `ConfigError` if the file can't be read or
    isn't a mapping.

    Args:
        path: a YAML file, or the name of a built-in configuration. None for the quickstart; or, if the overrides choose
            another data set, for nothing but a name.
        overrides: changes from the command line, which are not applied.

    Example:
        >>> read_sheet(None, ["dataset=mnist", "rounds=3"])
        {'name': 'mnist'}
        >>> read_sheet(None, ["rounds=3"])["training"]["rounds"]
        50
    """
    other = _other_dataset(path, overrides)
    if other is not None:
        return {"name": other if FOLDER_NAME.accepts(other) else _ANY_NAME}
    sheet = _read_over_bases(path, ())
    stem = find_config(path).stem
    named = {} if "name" in sheet or not FOLDER_NAME.accepts(stem) else {"name": stem}
    return _merged({}, {**named, **sheet})


def _other_dataset(path: str | os.PathLike[str] | None, overrides: Sequence[str]) -> Any:
    """Returns the name of a data set that the command line chooses in place of the quickstart's; None if it doesn't."""
    if path is not None:
        return None
    single, several = split_axes(overrides)
    axes = [(tuple(key.split(".")), value) for key, values in several.items() for value in values]
    for given, value in [*parse_overrides(single), *axes]:
        if given[0] != "dataset":
            continue
        dataset = apply_changes({}, [(given, value)], COMMAND_LINE)["dataset"]
        name = dataset.get("name") if isinstance(dataset, Mapping) else None
        if name not in (None, DatasetSection.model_fields["name"].default):  # which is the quickstart's
            return name
    return None


def is_sweep(path: str | os.PathLike[str] | None, overrides: Sequence[str]) -> bool:
    """Returns whether a configuration or its changes have the axes of a sweep."""
    return bool(split_axes(overrides)[1]) or "sweep" in read_sheet(path, overrides)


def source_name(path: str | os.PathLike[str] | None, overrides: Sequence[str] = ()) -> str:
    """Returns the name of a configuration in messages; the arguments are those of `read_sheet`."""
    if path is not None:
        return os.fspath(path)
    return "built-in quickstart" if _other_dataset(path, overrides) is None else COMMAND_LINE


def _read_over_bases(path: str | os.PathLike[str] | None, above: tuple[str, ...]) -> dict[str, Any]:
    source = source_name(path)
    file = find_config(path)
    data = read_yaml(file, source)
    if not isinstance(data, Mapping):
        wanted = f"must be a mapping of {', '.join(Config.model_fields)}"
        raise ConfigError(f"{source}: {'is empty' if data is None else f'received {received_value(data)}'}, {wanted}")
    axes = {key: data[key] for key in ("sweep",) if key in data}  # as written: labels of points are made from them
    data = {**expand_short_forms(with_absolute_paths(dict(data), os.curdir if path is None else file.parent)), **axes}
    if "base" not in data:
        return _with_whole_keys({}, data, source)

    base = data.pop("base")
    above = (*above, os.path.realpath(file))
    if not isinstance(base, str) or _NO_PATH.search(base):
        wanted = "must be the path of a configuration, or the name of a built-in one"
        raise ConfigError(f"{source}: base: received {received_value(base)}, {wanted}")
    beside = file.parent / base
    if os.path.realpath(beside) in above:
        raise ConfigError(f"{source}: base: received {received_value(base)}, which is based on this file itself")
    below = _read_over_bases(beside if beside.suffix and base not in builtin_configs() else base, above)
    if "sweep" in below:
        raise ConfigError(f"{source}: base: {base} is a sweep itself; give the configuration that it is based on")
    below.pop("name", None)
    data = _with_whole_keys(below, data, source)
    merged = _merged(below, data)
    axes = data["sweep"] if isinstance(data.get("sweep"), list) else []
    swept = [str(key) for axis in axes if isinstance(axis, Mapping) for key in axis]
    if "paper" in data or any(key.startswith("paper.") for key in swept):
        return merged
    # A file that changes a paper's configuration notes the changed values with the paper's results.
    return dict(with_paper_setting(below, merged))


def _merged(base: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides a base by the stated keys; lists, that of the methods included, are replaced as a whole."""
    methods = {key: value for key, value in stated.items() if key == "methods"}
    others = {key: value for key, value in stated.items() if key != "methods"}
    merged = merge_sections(Config, base, others) | methods  # methods come last, as in a sweep's text
    return dict(without_former_rates(base, merged))


def _with_whole_keys(base: Mapping[str, Any], data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Gives the keys of a file that stand for longer ones, such as rounds for training.rounds, their whole paths."""
    known = (*Config.model_fields, "sweep")
    keys = [key for key in data if isinstance(key, str) and key not in known and all(key.split("."))]
    if not keys:
        return dict(data)
    sections = {key: value for key, value in data.items() if key not in keys}
    short: list[tuple[KeyPath, Any]] = [(tuple(key.split(".")), data[key]) for key in keys]
    chosen = apply_changes(_merged(base, sections), short, source)  # decides which parameters there are
    whole = [(completed_path(path, value, chosen, source), value) for path, value in short]
    return {**apply_changes(sections, whole, source)}


def find_config(path: str | os.PathLike[str] | None) -> File:
    """Finds the file of a configuration by its path or built-in name; None finds the quickstart."""
    name = _QUICKSTART if path is None else os.fspath(path)
    builtin = builtin_configs()
    exists = os.path.lexists(name) and not (name in builtin and os.path.isdir(name))  # a run folder may have that name
    if path is not None and (exists or (File(name).suffix and name not in builtin)):
        return File(name)
    if name not in builtin:
        near = suggestion(name, builtin)
        text = "is neither a file nor a built-in configuration (fedjax-bal list configs)"
        raise ConfigError(f"{received_value(name)}: {text}{near and f'; {near}'}")
    return builtin[name]


def builtin_configs() -> dict[str, File]:
    """Lists the built-in configurations: files by name, the path below `configs` without the suffix."""
    package = File(__file__).parents[1]
    folder = next(folder for folder in (package / "configs", package.parent / "configs") if folder.is_dir())
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in sorted(folder.rglob("*.yaml"))}


def build_config(data: Mapping[str, Any], changes: Sequence[tuple[KeyPath, Any]], source: str) -> Config:
    """Builds a configuration from a mapping and changes, pairs of path and value; messages begin with `source`.

    Raises:
        ConfigError: the configuration is invalid; the message lists all problems, one a line.
    """
    config, problems = _build(apply_changes(data, changes, source))
    raise_all(source, problems)
    return config


def with_paper_setting(
    paper: Mapping[str, Any], data: Mapping[str, Any], changes: Sequence[tuple[KeyPath, Any]] = ()
) -> Mapping[str, Any]:
    """Records under `paper.setting` which values of a paper's configuration another configuration changes.

    Args:
        paper: a paper's configuration or any other, a mapping that isn't validated yet.
        data: a configuration derived from it. If its key `paper` differs, nothing is recorded.
        changes: pairs of path and value, applied to both first.

    Returns:
        `data` with the setting; unchanged if either configuration is invalid, which is reported elsewhere.
    """
    results = data.get("paper")
    if not isinstance(results, Mapping) or results != paper.get("paper") or data == paper:
        return data
    configs = []
    for sheet in (paper, data):
        try:
            complete = apply_changes({"name": "paper", **sheet}, changes, "")
        except ConfigError:
            return data
        configs.append(_build({key: value for key, value in complete.items() if key != "sweep"})[0])
    if None in configs:
        return data
    return {**data, "paper": {**results, "setting": paper_setting(*configs)}}


def _build(data: Mapping[str, Any], *, check_plugins: bool = True) -> tuple[Any, list[Problem]]:
    """Validates a mapping, each value once; returns the configuration, or None and all problems."""
    absent_plugins = plugin_problems(data.get("plugins", {}))
    config, problems = check_section(Config, {key: value for key, value in data.items() if key != "plugins"})
    methods, refusals = read_methods(data.get("methods"), config)
    if config is not None and config.paper is not None and not refusals:  # an invalid method's name is unknown
        refusals = unknown_published(config.paper.accuracy, {method.name for method in methods})
    problems += refusals
    if config is None or problems or (check_plugins and absent_plugins):
        return None, absent_plugins or problems  # a missing plug-in may be the cause of all other problems
    config = config.model_copy(update={"methods": tuple(methods)})
    return config.model_copy(update={"plugins": used_plugins(config)}), []
