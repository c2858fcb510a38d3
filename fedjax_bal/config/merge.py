"""Merges defaults, bases, a file, the command line and a method's overrides, leaf by leaf; expands short forms.

All of them are the same: changes, each a path of keys and a value. `merge` applies them. In place of a whole value, a
file and the command line may give a name for a section, a number of seeds, or a key without its path.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedjax_bal.config.errors import COMMAND_LINE, ConfigError, KeyPath, dotted_path, received_value
from fedjax_bal.config.schema import MOST_SEEDS, Config, MethodConfig
from fedjax_bal.config.sections import Section
from fedjax_bal.config.yaml_text import parse_yaml

Change = tuple[KeyPath, Any]

PATHS = {"availability": "file", "delivery": "file", "speed": "file", "partition": "file", "model": "weights"}
"""Section -> its key that is the path of a file."""
SYNONYMS = {"lr": "learning_rate", "epochs": "local_epochs", "steps": "local_steps", "wd": "weight_decay"}
"""Names of keys in other libraries -> their names here."""
SEED_LISTS = ("seeds", "partition_seeds")
"""The keys whose value is a list of seeds, or their number."""
_LISTS = ("methods", *SEED_LISTS)
_LONGEST_PATH = 20


def merge(base: Any, changes: Iterable[Change], section: type[Section] = Config, source: str = "") -> Any:
    """Returns a section with changes, key by key; lists are replaced as a whole, and nothing is validated.

    Choosing another name (an optimizer, a scheme, a recipe) drops the parameters of the previous one. So whole sections
    and choices come first, and keep the single keys that are given along with them, in any order.

    Args:
        base: the section as a mapping, whose values may be mappings or validated sections.
        changes: paths within the section, and values.
        section: the section's class.
        source: the beginning of messages about paths that lead nowhere.

    Example:
        >>> partition = {"scheme": "dirichlet", "alpha": 0.3, "clients": 50}
        >>> merge({"partition": partition}, [(("partition", "alpha"), 2), (("partition", "scheme"), "log_normal")])
        {'partition': {'scheme': 'log_normal', 'clients': 50, 'alpha': 2}}
    """
    for given, value in sorted(changes, key=lambda change: _rank(section, change[0])):
        for path, item in _leaves(section, given, value):
            base = _put(base, section, path, item, source, ())
    return base


def _rank(section: type[Section], path: KeyPath) -> int:
    """Lists of methods come first, then whole sections and choices, then single keys."""
    if path == ("methods",):
        return 0
    return 1 if section_at(section, path) is not None else 2


def _leaves(section: type[Section], path: KeyPath, value: Any) -> Iterator[Change]:
    """Expands the short forms in a change, and yields a change of a whole section key by key."""
    path = _at_choice(section, path, value)
    kind = section_at(section, path)
    if path == ("methods",):
        entries = [value] if isinstance(value, str | Mapping) else value
        yield path, [_entry(entry) for entry in entries] if isinstance(entries, list) else value
    elif len(path) == 1 and path[0] in SEED_LISTS and type(value) is int and 0 < value <= MOST_SEEDS:
        yield path, list(range(value))
    elif kind is not None and path[-1] == kind.choice:
        yield path, known_name(value, kind)
    elif kind is not None and isinstance(value, Mapping):
        for key in sorted(value, key=lambda key: key != kind.choice):  # the choice first: it drops parameters
            yield from _leaves(section, (*path, key), value[key])
    else:
        yield path, value


def _at_choice(section: type[Section], path: KeyPath, value: Any) -> KeyPath:
    """Extends the path of a section by its choice if the value is a name: partition=iid is partition.scheme=iid."""
    kind = section_at(section, path)
    if isinstance(value, str) and kind is not None and kind.choice not in (None, path[-1]) and path != ("methods",):
        return (*path, str(kind.choice))
    return path


def _entry(entry: Any) -> Any:
    """Expands the short forms in an entry of `methods`."""
    if isinstance(entry, str):
        entry = {"recipe": entry}
    if not isinstance(entry, Mapping):
        return entry
    return merge({}, [((key,), value) for key, value in entry.items()], MethodConfig)


def _put(node: Any, section: type[Section] | None, path: KeyPath, value: Any, source: str, above: KeyPath) -> Any:
    if not path:
        return value
    key, *rest = map(str, path)
    here = (*above, key)
    if isinstance(node, list):
        if not (key.isascii() and key.isdigit() and len(key) < 9 and int(key) < len(node)):
            allowed = f"0 to {len(node) - 1}" if node else "none, the list is empty"
            rule = f"as a position in {dotted_path(above)}; allowed: {allowed}"
            raise ConfigError(f"{source}: {dotted_path((*above, *path))}: received {received_value(key)} {rule}")
        items = list(node)
        items[int(key)] = _put(items[int(key)], section, tuple(rest), value, source, here)
        return items
    if node is not None and not isinstance(node, Mapping | Section):
        where = f"{source}: {dotted_path((*above, *path))}: {dotted_path(above)}"
        raise ConfigError(f"{where} is {received_value(node)}, which has no keys")
    node = dict(node or {})
    if section is not None and key == section.choice and not rest:
        field = section.model_fields.get(key)
        if node.get(key, field.default if field else None) != value:
            kept = {name: item for name, item in node.items() if name in section.common()}
            node = {**kept, key: value, **dict.fromkeys(section.renewed)}
    below = section.child(key) if section else None
    return {**node, key: _put(node.get(key), below, tuple(rest), value, source, here)}


def section_at(section: type[Section], path: KeyPath) -> type[Section] | None:
    """Returns the class of the section at a path; the path of a choice gives the section that contains it."""
    kind: type[Section] | None = section
    for key in path:
        if kind is None or key == kind.choice:
            return kind
        kind = kind if kind.listed and str(key).isdigit() else kind.child(str(key))
    return kind


def known_name(name: Any, section: type[Section]) -> Any:
    """Returns the only known name that differs from `name` in case and punctuation alone; else `name` itself."""
    if not isinstance(name, str) or name in section.choices():
        return name
    letters = lambda text: "".join(filter(str.isalnum, text.lower()))
    near = [known for known in section.choices() if letters(known) == letters(name)]
    return near[0] if len(near) == 1 else name


def key_paths(section: type[Section], value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yields the paths of all keys below a section, including the parameters of the choices that a value makes."""
    value = value if isinstance(value, Mapping) else {}
    here = section.class_for(value) or section
    for key in here.model_fields:
        below = here.child(key)
        yield (*path, key)
        if below is not None and not below.listed:
            yield from key_paths(below, value.get(key), (*path, key))


def with_changes(
    data: Mapping[str, Any], changes: Sequence[Change], source: str, folder: str | os.PathLike[str] = os.curdir
) -> tuple[dict[str, Any], list[KeyPath]]:
    """Applies changes whose paths may be short; returns the new mapping, and the complete paths of the changes.

    Paths of files among the values are relative to `folder`, and become absolute.

    Raises:
        ConfigError: a path is ambiguous or leads nowhere.

    Example:
        >>> with_changes({"training": {"rounds": 3}}, [(("rounds",), 5), (("model",), "mlp")], "mine")
        ({'training': {'rounds': 5}, 'model': {'name': 'mlp'}}, [('training', 'rounds'), ('model', 'name')])
    """
    # Choices decide which parameters there are, and so which key a short one means.
    first = [(completed_path(path, value, data), value) for path, value in changes]
    chosen = merge(data, [change for change in first if _rank(Config, change[0]) < 2], source=source)
    paths = [completed_path(path, value, chosen, source) for path, value in changes]
    values = [with_absolute_paths(value, folder, path) for path, (_, value) in zip(paths, changes, strict=True)]
    return merge(data, zip(paths, values, strict=True), source=source), paths


def refuse_repeated(paths: Sequence[KeyPath], values: Iterable[Any], source: str) -> None:
    """Raises `ConfigError` for a key that a file gives twice, such as `rounds` beside `training: {rounds: 5}`."""
    keys = Counter(key for path, value in zip(paths, values, strict=True) for key, _ in _leaves(Config, path, value))
    twice = next((key for key, times in keys.items() if times > 1), None)
    if twice is not None:
        raise ConfigError(f"{source}: {dotted_path(twice)}: given twice, once by a short name; give it once")


def completed_path(given: KeyPath, value: Any, data: Any, source: str | None = None) -> KeyPath:
    """Completes the path of a key from the end of it; returns the path unchanged if no known key has this end.

    An option of optimizers means the clients' optimizer, and `clients=20` is a number of clients, not the column of a
    data set.

    Args:
        given: the path, from the command line, a file or an axis of a sweep.
        value: the key's new value; a name for a whole section sets the section's choice.
        data: the configuration so far; its choices decide which parameters exist.
        source: for messages; without it, an ambiguous path is returned unchanged, since a later choice may resolve it.

    Raises:
        ConfigError: the path is ambiguous.

    Example:
        >>> completed_path(("lr",), 0.1, {}), completed_path(("partition",), "iid", {})
        (('training', 'optimizer', 'learning_rate'), ('partition', 'scheme'))
    """
    if given[0] in Config.model_fields:
        return _at_choice(Config, given, value)
    end = (*given[:-1], SYNONYMS.get(str(given[-1]), given[-1]))
    meant = [known for known in key_paths(Config, data) if known[-len(end) :] == end]
    meant = [known for known in meant if "server_optimizer" not in known] or meant
    if end == ("clients",):
        meant = [known for known in meant if known[0] != "dataset"]
    if end == ("seed",):
        meant.append(("seeds",))
    if len(meant) > 1 and source is not None:
        paths = ", ".join(map(dotted_path, meant))
        seeds = f"; seeds=[{value}] is the seed of training" if end == ("seed",) else ""
        raise ConfigError(f"{source}: {dotted_path(given)}: ambiguous key; give the full path: {paths}{seeds}")
    return _at_choice(Config, meant[0], value) if len(meant) == 1 else given


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
    if isinstance(value, dict):
        return {key: with_absolute_paths(item, folder, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [with_absolute_paths(item, folder, (*path, index)) for index, item in enumerate(value)]
    keys = [part for key in path if isinstance(key, str) for part in key.split(".")]
    is_path = len(keys) > 1 and keys[-1] == PATHS.get(keys[-2])
    if is_path and isinstance(value, str) and value.strip():
        return os.path.normpath(os.path.join(os.path.abspath(folder), value))
    return value


def parse_overrides(overrides: Sequence[str]) -> tuple[list[Change], dict[str, list[Any]]]:
    """Parses the command line's changes, `dotted.path=VALUE` with VALUE in YAML, and axes, `dotted.path=VALUE,VALUE`.

    Brackets, braces and quotes keep a value that contains commas together. Methods and seeds may be listed without
    brackets; several of them are no axis.

    Returns:
        The changes, and the values of the axes by key.

    Raises:
        ConfigError: one doesn't have that form.

    Example:
        >>> parse_overrides(["rounds=5", "methods=fedavg,rebafl", "lr=0.01,0.1", "hidden=[64, 64]"])
        ([(('rounds',), 5), (('methods',), ['fedavg', 'rebafl']), (('hidden',), [64, 64])], {'lr': [0.01, 0.1]})
    """
    changes: list[Change] = []
    axes: dict[str, list[Any]] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        path = tuple(key.split("."))
        if not equals or not all(path) or len(path) > _LONGEST_PATH:
            example = "must be dotted.path=VALUE, for instance training.rounds=30"
            raise ConfigError(f"{COMMAND_LINE}: received {received_value(text)}, {example}")
        where = f"{COMMAND_LINE}: {dotted_path(path)}"
        if path[0] == "sweep":
            raise ConfigError(f"{where}: write an axis of a sweep as KEY=VALUE,VALUE, for instance lr=0.01,0.1")
        try:
            listed = parse_yaml(f"[{value}]", "")
        except ConfigError:
            listed = []  # the message below is about the value as it was given
        several = len(listed) > 1
        if several and key not in _LISTS:
            if key in axes:
                raise ConfigError(f"{COMMAND_LINE}: {key}: received two axes; give all its values in one")
            axes[key] = listed
        else:
            changes.append((path, listed if several else parse_yaml(value, where)))
    return changes, axes


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


def with_entries(changes: Sequence[Change], data: Mapping[str, Any]) -> list[Change]:
    """Replaces plain names in changes of `methods` by a configuration's entries of these names, with their settings.

    A name without an entry stays, and is a recipe's; a mapping with a recipe never stands for an entry.

    Example:
        >>> base = {"methods": [{"recipe": "fedavg"}, {"recipe": "rebafl", "mu": 0.2}]}
        >>> with_entries([(("methods",), ["rebafl", "moon", {"recipe": "fedavg"}])], base)
        [(('methods',), [{'recipe': 'rebafl', 'mu': 0.2}, 'moon', {'recipe': 'fedavg'}])]
    """
    entries: dict[str, list[Any]] = {}
    methods = data.get("methods")
    for entry in methods if isinstance(methods, list) else ():
        if isinstance(entry, Mapping) and "recipe" in entry:
            entries.setdefault(name_in_results(entry), []).append(entry)

    def entry_of(name: Any) -> Any:
        if not isinstance(name, str):
            return name
        known = entries.get(name) or entries.get(known_name(name, MethodConfig), [])
        return known[0] if len(known) == 1 else name

    replaced: list[Change] = []
    for path, value in changes:
        if path == ("methods",) and isinstance(value, str | list):
            value = [entry_of(name) for name in ([value] if isinstance(value, str) else value)]
        replaced.append((path, value))
    return replaced
