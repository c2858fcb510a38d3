"""Reads a command (a file over its bases, and the command line) and checks it as one configuration.

A base is inherited key by key. Without a file, a run starts from the quickstart; or, if the command line chooses
another data set, from the defaults of the schema, as a file without a base does.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path as File
from typing import Any, NamedTuple

from fedjax_bal.config.errors import COMMAND_LINE, ConfigError, Problem, raise_all, received_value
from fedjax_bal.config.explain import meant_key
from fedjax_bal.config.identity import paper_setting, plugin_problems, used_plugins
from fedjax_bal.config.merge import (
    Change,
    merge,
    name_in_results,
    parse_overrides,
    refuse_repeated,
    with_changes,
    with_entries,
)
from fedjax_bal.config.methods import check_methods, read_methods
from fedjax_bal.config.schema import FOLDER_NAME, Config, DatasetSection
from fedjax_bal.config.sections import check_section
from fedjax_bal.config.yaml_text import read_yaml
from fedjax_bal.validate import suggestion

_NO_PATH = re.compile("^$|[\0\ud800-\udfff]")  # empty, or with characters that no file name can have
_QUICKSTART = "quickstart"
_ANY_NAME = "run"  # of a run without a file


class Sheet(NamedTuple):
    """A command's configuration, read once and not yet validated.

    Attributes:
        source: the name of the file in messages.
        stated: what the file states over its bases, without defaults; short forms are expanded, paths absolute.
        changes: changes from the command line, which aren't applied.
        file_axes: the file's list of axes, as it is written there; None for none.
        line_axes: the command line's axes: values by key.
        paper: the part of `stated` below the changes of a paper's configuration: the file or base that has the paper's
            results, over its bases; None without results.
    """

    source: str
    stated: dict[str, Any]
    changes: list[Change]
    file_axes: Any = None
    line_axes: Mapping[str, list[Any]] = {}
    paper: Mapping[str, Any] | None = None

    @property
    def is_sweep(self) -> bool:
        """True if the command has axes, so that it trains several points."""
        return self.file_axes is not None or bool(self.line_axes)


def read_command(path: str | os.PathLike[str] | None, overrides: Sequence[str] = ()) -> Sheet:
    """Reads a configuration's file with its bases, and parses the command line's changes and axes.

    Args:
        path: a YAML file, or the name of a built-in configuration. None for the quickstart; or, if the overrides choose
            another data set, for nothing but a name.
        overrides: changes from the command line, each `dotted.path=VALUE` with VALUE in YAML, and axes,
            `dotted.path=VALUE,VALUE`.

    Raises:
        ConfigError: the file can't be read or isn't a mapping, or an override doesn't have its form.

    Example:
        >>> read_command(None, ["dataset=mnist", "rounds=3"]).stated
        {'name': 'mnist'}
        >>> read_command(None, ["rounds=3", "lr=0.1,0.2"]).is_sweep
        True
    """
    changes, axes = parse_overrides(overrides)
    if path is None:
        swept = [(tuple(key.split(".")), value) for key, values in axes.items() for value in values]
        other = _other_dataset([*changes, *swept])
        if other is not None:
            name = other if FOLDER_NAME.accepts(other) else _ANY_NAME
            return Sheet(COMMAND_LINE, {"name": name}, changes, line_axes=axes)
    sheet = _read_file(path, ())
    stem = find_config(path).stem
    if "name" not in sheet.stated and FOLDER_NAME.accepts(stem):
        sheet = sheet._replace(stated={"name": stem, **sheet.stated})
    return sheet._replace(changes=changes, line_axes=axes)


def _other_dataset(changes: Sequence[Change]) -> str | None:
    """Returns the name of a data set that the command line chooses in place of the quickstart's; None if it doesn't."""
    for path, value in changes:
        if path[0] == "dataset":
            dataset = merge({}, [(path, value)], source=COMMAND_LINE).get("dataset")
            name = dataset.get("name") if isinstance(dataset, Mapping) else None
            if name not in (None, DatasetSection.model_fields["name"].default):  # which is the quickstart's
                return name
    return None


def _read_file(path: str | os.PathLike[str] | None, above: tuple[str, ...]) -> Sheet:
    source = "built-in quickstart" if path is None else os.fspath(path)
    file = find_config(path)
    data = read_yaml(file, source)
    if not isinstance(data, Mapping):
        wanted = f"must be a mapping of {', '.join(Config.model_fields)}"
        raise ConfigError(f"{source}: {'is empty' if data is None else f'received {received_value(data)}'}, {wanted}")
    data = dict(data)
    axes = data.pop("sweep", None)
    below = Sheet(source, {}, [])
    if "base" in data:
        base = data.pop("base")
        above = (*above, os.path.realpath(file))
        if not isinstance(base, str) or _NO_PATH.search(base):
            wanted = "must be the path of a configuration, or the name of a built-in one"
            raise ConfigError(f"{source}: base: received {received_value(base)}, {wanted}")
        beside = file.parent / base
        if os.path.realpath(beside) in above:
            raise ConfigError(f"{source}: base: received {received_value(base)}, which is based on this file itself")
        below = _read_file(beside if beside.suffix and base not in builtin_configs() else base, above)
        if below.file_axes is not None:
            raise ConfigError(f"{source}: base: {base} is a sweep itself; give the configuration that it is based on")
        below.stated.pop("name", None)

    changes = []
    for key, value in data.items():
        short = key not in Config.model_fields and all(key.split("."))
        changes.append((tuple(key.split(".")) if short else (key,), value))
    stated, paths = with_changes(below.stated, changes, source, file.parent)
    refuse_repeated(paths, data.values(), source)
    swept = [key for axis in axes if isinstance(axis, Mapping) for key in axis] if isinstance(axes, list) else []
    own = "paper" in data or any(str(key).startswith("paper.") for key in swept)
    return Sheet(source, stated, [], axes, paper=stated if own else below.paper)


def find_config(path: str | os.PathLike[str] | None) -> File:
    """Finds the file of a configuration by its path or built-in name; None finds the quickstart."""
    name = _QUICKSTART if path is None else os.fspath(path)
    builtin = builtin_configs()
    if name.endswith((".csv", ".npz")):
        form = DatasetSection.forms_of(name)[0]
        raise ConfigError(f"{name}: these are data and not a configuration; load them by 'dataset={form}'")
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
        fedjax_bal.config.errors.ConfigError: command line: training.rouns: unknown key; did you mean 'rounds'? ...
    """
    return config_of(read_command(path, overrides), recorded=recorded, needs=needs)


def config_of(sheet: Sheet, *, recorded: bool = False, needs: bool = True) -> Config:
    """Checks a command as one configuration; takes the arguments of `load_config` and raises its errors."""
    source = sheet.source
    if sheet.file_axes is not None:
        command = f"fedjax-bal sweep {shlex.quote(source)}"
        raise ConfigError(f"{source}: has the key `sweep`, so it is a sweep: use `{command}`")
    for key, values in sheet.line_axes.items():
        rule = "which are an axis of a sweep; give one of them"
        raise ConfigError(f"{COMMAND_LINE}: {key}: received {', '.join(map(received_value, values))}, {rule}")
    data, overridden = with_changes(sheet.stated, with_entries(sheet.changes, sheet.stated), COMMAND_LINE)
    config, problems = _check(data, check_plugins=not recorded)
    raise_all(source, problems, overridden)
    config = with_paper_setting(config, sheet.paper, data)
    if recorded:
        return config.model_copy(update={"plugins": data.get("plugins", {})})
    if needs:
        check_methods(config, source, overridden)
    return config


def build_config(data: Mapping[str, Any], changes: Sequence[Change], source: str) -> Config:
    """Builds a configuration from a mapping and changes; messages begin with `source`.

    Raises:
        ConfigError: the configuration is invalid; the message lists all problems, one a line.
    """
    config, problems = _check(with_changes(data, changes, source)[0])
    raise_all(source, problems)
    return config


def with_paper_setting(
    config: Config, paper: Mapping[str, Any] | None, data: Mapping[str, Any], changes: Sequence[Change] = ()
) -> Config:
    """Records under `paper.setting` which values of a paper's configuration a configuration changes.

    Args:
        config: the configuration.
        paper: the paper's configuration, which isn't validated yet; None for none.
        data: what `config` was made of; if it is `paper` but for the name, or has other results, nothing is recorded.
        changes: changes that were applied to `data`, and belong to the paper's configuration, too: a sweep's point.
    """
    if paper is None or config.paper is None or data.get("paper") != paper["paper"]:
        return config
    paper = {**paper, "name": config.name}
    if paper == {**data, "name": config.name}:
        return config
    # A method that isn't trained may need a plug-in that isn't loaded.
    trained = {method.name for method in config.methods}
    paper["methods"] = [entry for entry in paper["methods"] if name_in_results(entry) in trained] or paper["methods"]
    theirs, problems = _check(with_changes(paper, changes, "")[0])
    raise_all("the paper's configuration", problems)
    setting = paper_setting(theirs, config)
    return config.model_copy(update={"paper": config.paper.model_copy(update={"setting": setting})})


def _check(data: Mapping[str, Any], *, check_plugins: bool = True) -> tuple[Any, list[Problem]]:
    """Validates a mapping, each value once; returns the configuration, or None and all problems."""
    absent_plugins = plugin_problems(data.get("plugins", {}))
    config, problems = check_section(Config, {key: value for key, value in data.items() if key != "plugins"})
    problems = [_with_meant_key(problem, data) for problem in problems]
    methods, refusals = read_methods(data.get("methods"), config)
    problems += refusals
    if config is None or problems or (check_plugins and absent_plugins):
        return None, absent_plugins or problems  # a missing plug-in may be the cause of all other problems
    config = config.model_copy(update={"methods": tuple(methods)})
    return config.model_copy(update={"plugins": used_plugins(config)}), []


def _with_meant_key(problem: Problem, data: Mapping[str, Any]) -> Problem:
    hint = meant_key(problem.path, data) if problem.unknown else ""
    unknown, allowed, names = problem.text.partition("allowed: ")
    return problem._replace(text=f"{unknown.partition(';')[0]}; {hint} {allowed}{names}") if hint else problem
