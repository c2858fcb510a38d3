"""Merges a file, its bases and the command line into one mapping, and validates it as a configuration.

A partition, rows held by the server, a target accuracy and a paper's results describe the data of the configuration
that states them. If the user chooses another data set or partition, those of the base are left out: they would silently
thin out the new data, or mean nothing.
"""

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path as File
from typing import Any, NamedTuple

from fedjax_bal.config.changes import (
    apply_changes,
    apply_with_paths,
    completed_path,
    expand_short_forms,
    name_in_results,
    parse_overrides,
    split_axes,
    take_over_entries,
    with_absolute_paths,
)
from fedjax_bal.config.configuration import FOLDER_NAME, Config, check_methods, read_methods, unknown_published
from fedjax_bal.config.problems import (
    COMMAND_LINE,
    ConfigError,
    KeyPath,
    Problem,
    dotted_path,
    raise_all,
    received_value,
)
from fedjax_bal.config.resolved import leaves, paper_setting, plugin_problems, used_plugins
from fedjax_bal.config.schema import ALL_CLIENTS, Sections
from fedjax_bal.config.sections import Section, check_section, merge_sections, to_plain
from fedjax_bal.config.yaml_text import read_yaml
from fedjax_bal.validate import suggestion

_NO_PATH = re.compile("^$|[\0\ud800-\udfff]")  # empty, or with characters that no file name can have
_LONG_TAIL: tuple[KeyPath, ...] = tuple(
    ("partition", key) for key in ("imbalance_factor", "imbalance_profile", "imbalance_order")
)
_OF_DATA: tuple[KeyPath, ...] = (
    ("partition",),
    ("auxiliary",),
    ("selection", "clients_per_round"),
    ("training", "early_stopping"),
    *(("evaluation", key) for key in ("target_accuracy", "shots", "validation", "client_test")),
    ("paper",),
)
_NAMES = ("name", "label", "recipe")
_BY_CLIENT = ("availability", "delivery", "speed")


class Layers(NamedTuple):
    """A configuration in two layers, not validated yet.

    Attributes:
        base: the file that the key `base` names, or a whole built-in configuration.
        stated: the user's file, which overrides the base.
    """

    base: Mapping[str, Any]
    stated: Mapping[str, Any]

    @property
    def merged(self) -> dict[str, Any]:
        """The base overridden by the stated keys; lists, that of the methods included, are replaced as a whole."""
        methods = {key: value for key, value in self.stated.items() if key == "methods"}
        others = {key: value for key, value in self.stated.items() if key != "methods"}
        return merge_sections(Config, self.base, others) | methods  # methods come last, as in a sweep's text

    @property
    def settled(self) -> dict[str, Any]:
        """The base without its stale keys, overridden by the stated keys."""
        return self.without(self.stale(self.merged)).merged

    def without(self, paths: Iterable[KeyPath]) -> "Layers":
        """Returns the layers without some keys of the base and of its methods; stated keys stay."""
        base = dict(self.base)
        for path in paths:
            base = _without(base, path)
            if isinstance(base.get("methods"), list):
                base["methods"] = [_without(entry, path) for entry in base["methods"]]
        return Layers(base, self.stated)

    def stale(self, chosen: Mapping[str, Any]) -> list[KeyPath]:
        """Returns the keys of the base that don't fit the data set and the partition chosen in `chosen`."""
        if _another("dataset", self.base, chosen):
            files = [(key,) for key in _BY_CLIENT if "file" in _mapping(self.base.get(key))]
            stale = [*_OF_DATA, *files]  # such a file describes the base's clients
        elif _another("partition", self.base, chosen):
            by_owner = _variant("partition", chosen).model_fields["clients"].default == ALL_CLIENTS
            stale = [*_LONG_TAIL, *([("partition", "clients")] if by_owner else []), ("auxiliary",), ("paper",)]
        else:
            return []

        # Rows that the server holds stay if a method needs them.
        from fedjax_bal.parts import SERVER_ROWS

        methods, _ = read_methods(chosen.get("methods"), None)
        parts = [part for method in methods for part in method.recipe.parts]
        if any(SERVER_ROWS in part.needs for part in parts):
            stale.remove(("auxiliary",))
        return stale


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
    return load_over_base(path, overrides, recorded=recorded, needs=needs)[0]


def load_over_base(
    path: str | os.PathLike[str] | None, overrides: Sequence[str] = (), *, recorded: bool = False, needs: bool = True
) -> tuple[Config, list[str]]:
    """Loads a configuration as `load_config` does, and lists, as KEY=VALUE, the base's keys left out for other data.

    Example:
        >>> load_over_base(None, ["partition=iid", "methods=[fedavg]"])[1]
        ['partition.imbalance_factor=50', 'auxiliary.per_class=10']
    """
    source = source_name(path)
    layers = read_layers(path)
    changes = parse_overrides(overrides)
    if "sweep" in layers.merged:
        command = f"fedjax-bal sweep {shlex.quote(source)}"
        raise ConfigError(f"{source}: has the key `sweep`, so it is a sweep: use `{command}`")
    stale = layers.stale(apply_changes(layers.merged, take_over_entries(changes, layers.merged), COMMAND_LINE))
    sheet = layers.without(stale).merged
    data, overridden = apply_with_paths(sheet, take_over_entries(changes, sheet), COMMAND_LINE)
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
    """Reads a configuration and its base without validating the keys; a built-in configuration is all base.

    Paths of files become absolute, and short forms are expanded. Raises `ConfigError` if the file can't be read or
    isn't a mapping.

    Args:
        path: a YAML file, or the name of a built-in configuration; None for the quickstart.
    """
    layers = _read_over_base(path, ())
    file = find_config(path)
    if "name" not in layers.stated and FOLDER_NAME.accepts(file.stem):
        layers = layers._replace(stated={"name": file.stem, **layers.stated})
    builtin = os.path.realpath(file) in map(os.path.realpath, builtin_configs().values())
    return Layers(layers.settled, {}) if builtin else layers


def is_sweep(path: str | os.PathLike[str] | None, overrides: Sequence[str]) -> bool:
    """Returns whether a configuration or its changes have the axes of a sweep."""
    return bool(split_axes(overrides)[1]) or "sweep" in read_layers(path).merged


def source_name(path: str | os.PathLike[str] | None) -> str:
    """Returns the name of a configuration in messages."""
    return "built-in quickstart" if path is None else os.fspath(path)


def _read_over_base(path: str | os.PathLike[str] | None, above: tuple[str, ...]) -> Layers:
    source = source_name(path)
    file = find_config(path)
    data = read_yaml(file, source)
    if not isinstance(data, Mapping):
        wanted = f"must be a mapping of {', '.join(Config.model_fields)}"
        raise ConfigError(f"{source}: {'is empty' if data is None else f'received {received_value(data)}'}, {wanted}")
    axes = {key: data[key] for key in ("sweep",) if key in data}  # as written: labels of points are made from them
    data = {**expand_short_forms(with_absolute_paths(dict(data), os.curdir if path is None else file.parent)), **axes}
    if "base" not in data:
        return Layers({}, _with_whole_keys({}, data, source))

    base = data.pop("base")
    above = (*above, os.path.realpath(file))
    if not isinstance(base, str) or _NO_PATH.search(base):
        wanted = "must be the path of a configuration, or the name of a built-in one"
        raise ConfigError(f"{source}: base: received {received_value(base)}, {wanted}")
    beside = file.parent / base
    if os.path.realpath(beside) in above:
        raise ConfigError(f"{source}: base: received {received_value(base)}, which is based on this file itself")
    below = _read_over_base(beside if beside.suffix and base not in builtin_configs() else base, above).settled
    if "sweep" in below:
        raise ConfigError(f"{source}: base: {base} is a sweep itself; give the configuration that it is based on")
    below = {key: value for key, value in below.items() if key != "name"}
    data = _with_whole_keys(below, data, source)
    layers = Layers(below, data)
    axes = data["sweep"] if isinstance(data.get("sweep"), list) else []
    swept = [str(key) for axis in axes if isinstance(axis, Mapping) for key in axis]
    # A file that changes a paper's configuration notes the changed values with the paper's results.
    noted = with_paper_setting(layers.base, layers.settled).get("paper")
    if noted is None or "paper" in data or any(key.startswith("paper.") for key in swept):
        return layers
    return layers._replace(base={**layers.base, "paper": noted})  # in the base, so that choosing other data drops it


def _with_whole_keys(base: Mapping[str, Any], data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Gives the keys of a file that stand for longer ones, such as rounds for training.rounds, their whole paths."""
    known = (*Config.model_fields, "sweep")
    keys = [key for key in data if isinstance(key, str) and key not in known and all(key.split("."))]
    if not keys:
        return dict(data)
    sections = {key: value for key, value in data.items() if key not in keys}
    short: list[tuple[KeyPath, Any]] = [(tuple(key.split(".")), data[key]) for key in keys]
    chosen = apply_changes(Layers(base, sections).merged, short, source)  # decides which parameters there are
    whole = [(completed_path(path, value, chosen, source), value) for path, value in short]
    return {**apply_changes(sections, whole, source)}


def find_config(path: str | os.PathLike[str] | None) -> File:
    """Finds the file of a configuration by its path or built-in name; None finds the quickstart."""
    name = "quickstart" if path is None else os.fspath(path)
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


def left_out(base: Mapping[str, Any], paths: Iterable[KeyPath], data: Mapping[str, Any], config: Config) -> list[str]:
    """Lists, as KEY=VALUE, the keys that were left out of a base and would have changed the configuration.

    Args:
        base: the base.
        paths: the keys left out of it.
        data: the configuration read without these keys; if it has one of them, the user stated it.
        config: the same, validated and complete.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> base = {"partition": {"imbalance_factor": 50, "clients": 30, "seed": 0}}
        >>> left_out(base, [("partition",)], {"partition": {"clients": 20}}, load_config("absent_clients"))
        ['partition.imbalance_factor=50']
    """
    dropped = tuple(f"{dotted_path(path)}." for path in paths)
    stated = leaves(data)
    used = leaves(to_plain(config))
    listed = []
    for key, value in leaves({key: value for key, value in base.items() if key != "paper"}).items():
        if f"{key}.".startswith(dropped) and key not in stated and used.get(key, value) != value:
            listed.append(f"{key}={received_value(value)}")
    return listed + ["paper"] * ("paper." in dropped and base.get("paper") is not None and "paper" not in data)


def kept_by_methods(
    config: Config, path: str | os.PathLike[str] | None, overrides: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Compares the methods' own settings with changes of a base, and with the settings of the base's methods.

    Args:
        config: the configuration.
        path: its file, or the name of a built-in one, which changes nothing.
        overrides: its changes from the command line.

    Returns:
        Two lists of METHOD KEY=VALUE: keys that are changed for all methods, but not for one that has its own value;
        and settings of the base's methods that are lost because the file lists these methods by their plain names.

    Example:
        >>> kept_by_methods(load_config(None, ["lr=0.2", "methods=[fedavg, rebafl]"]), None, ["lr=0.2"])
        (['rebafl learning_rate=0.03'], [])
    """
    base, stated = read_layers(path)
    shared = to_plain(config)
    changed = {} if "methods" in stated else leaves({key: stated[key] for key in stated if key != "sweep"})
    for given, value in parse_overrides(overrides):
        changed |= leaves(value, completed_path(given, value, shared))
    of_base, of_file = map(_entries_by_name, (base.get("methods"), stated.get("methods")))

    kept = []
    lost = []
    in_words = lambda method, key, value: f"{method.name} {key.rpartition('.')[2]}={received_value(value)}"
    for method in config.methods:
        own = leaves(method.overrides)
        kept += [in_words(method, key, own[key]) for key, value in changed.items() if own.get(key, value) != value]
        if [*of_file.get(method.name, ())] == ["recipe"]:
            entry = {key: value for key, value in of_base.get(method.name, {}).items() if key not in _NAMES}
            used = leaves(to_plain(method)) | method.recipes[0].hyperparameters
            lost += [in_words(method, key, value) for key, value in leaves(entry).items() if used.get(key) != value]
    return kept, lost


def _entries_by_name(methods: Any) -> dict[str, Mapping[str, Any]]:
    entries = methods if isinstance(methods, list) else []
    return {name_in_results(entry): entry for entry in entries if isinstance(entry, Mapping)}


def _another(section: str, base: Mapping[str, Any], chosen: Mapping[str, Any]) -> bool:
    """Returns whether a section's choice differs from the base's; False if either is unknown: it is rejected later."""
    before = _variant(section, base).choice_value
    now = _variant(section, chosen).choice_value
    return None not in (before, now) and before != now


def _variant(section: str, data: Mapping[str, Any]) -> type[Section]:
    """Returns a section's class with the parameters of its choice; without parameters for an unknown choice."""
    kind: Any = Sections.child(section)
    return kind.class_for(_mapping(data.get(section))) or kind


def _without(value: Any, path: KeyPath) -> Any:
    key, *rest = path
    if not isinstance(value, Mapping) or key not in value:
        return value
    if rest:
        return {**value, key: _without(value[key], tuple(rest))}
    return {name: item for name, item in value.items() if name != key}


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}
