"""Short forms of a configuration, written out: a name in place of a section, a number of seeds, a key without its path.

They are understood where they can mean one thing only; what they stand for is what a run folder records. Relative paths
of files become absolute, too.
"""

import os
from collections.abc import Mapping
from typing import Any

from fedjax_bal.config.configuration import MOST_SEEDS, MethodEntry, UnresolvedConfig
from fedjax_bal.config.problems import ConfigError, KeyPath, dotted_path
from fedjax_bal.config.sections import SYNONYMS, Section, places_of

PATHS = ("availability", "delivery", "speed", "partition")
"""The sections whose key `file` is a path."""


def written_out(value: Any, section: type[Section] | None = UnresolvedConfig, path: KeyPath = ()) -> Any:
    """Writes out the short forms in a configuration, or in the part of it under a path.

    Args:
        value: the configuration or the part, not checked yet; what is no short form stays as it is.
        section: the section's class; None for a value that is no section.
        path: the keys that lead to it.

    Example:
        >>> written_out({"dataset": "CIFAR10", "methods": ["fedavg", "FedProx"], "seeds": 2})
        {'dataset': {'name': 'cifar10'}, 'methods': [{'recipe': 'fedavg'}, {'recipe': 'fedprox'}], 'seeds': [0, 1]}
    """
    if path in (("seeds",), ("partition_seeds",)) and type(value) is int and 0 < value <= MOST_SEEDS:
        return list(range(value))
    if path == ("methods",):
        entries = [value] if isinstance(value, str | Mapping) else value
        return [_section(entry, MethodEntry, path) for entry in entries] if isinstance(entries, list) else value
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
    whole = {key: written_out(item, section.child(str(key)), (*path, key)) for key, item in value.items()}
    return {key: _known_name(item, section) if key == section.choice else item for key, item in whole.items()}


def _known_name(name: Any, section: type[Section]) -> Any:
    """The name that is meant, where case and punctuation are all that differs."""
    names = section.choices()
    if not isinstance(name, str) or name in names:
        return name
    letters = lambda text: "".join(filter(str.isalnum, text.lower()))
    near = [known for known in names if letters(known) == letters(name)]
    return near[0] if len(near) == 1 else name


def section_of(path: KeyPath) -> type[Section] | None:
    """The class of the section at a path, or of the section whose choice the path names."""
    section: type[Section] | None = UnresolvedConfig
    for key in path:
        if section is None or key == section.choice:
            return section
        section = section if section is MethodEntry and str(key).isdigit() else section.child(str(key))
    return section


def completed_path(given: KeyPath, value: Any, data: Any, source: str | None = None) -> KeyPath:
    """Returns the whole path of a key given by its end; a path that ends no known one stays as it is.

    Of the optimizers, the clients' is meant.

    Args:
        given: the path, as a change on the command line or an axis has it.
        value: the value that the key gets; the name of a choice stands for the key of that choice.
        data: the configuration so far; its choices decide which parameters there are.
        source: for messages; without it, a path stays as it is where several keys are called so, maybe until a choice
            is made.

    Raises:
        ConfigError: several keys end like this.

    Example:
        >>> completed_path(("lr",), 0.1, {}), completed_path(("partition",), "iid", {})
        (('training', 'optimizer', 'learning_rate'), ('partition', 'scheme'))
    """
    path = given
    if path[0] not in UnresolvedConfig.model_fields:
        end = (*path[:-1], SYNONYMS.get(str(path[-1]), path[-1]))
        found = [place for place in places_of(UnresolvedConfig, data) if place[-len(end) :] == end]
        found = [place for place in found if "server_optimizer" not in place] or found
        if end == ("seed",):
            found.append(("seeds",))
        if len(found) > 1 and source is not None:
            places = ", ".join(map(dotted_path, found))
            raise ConfigError(
                f"{source}: {dotted_path(path)}: several keys are called so; give the whole path: {places}"
            )
        if len(found) == 1:
            path = found[0]
    section = section_of(path)
    if isinstance(value, str) and section not in (None, MethodEntry) and section.choice not in (None, path[-1]):
        return (*path, str(section.choice))  # partition=iid is partition.scheme=iid
    return path


def with_absolute_paths(value: Any, folder: str | os.PathLike[str], path: KeyPath = ()) -> Any:
    """Makes the paths in a configuration absolute.

    Args:
        value: a configuration, or the part of it under `path`.
        folder: what relative paths are relative to.
        path: the keys that lead to the part.

    Example:
        >>> with_absolute_paths({"delivery": {"name": "trace", "file": "phones.csv"}}, "/traces")
        {'delivery': {'name': 'trace', 'file': '/traces/phones.csv'}}
    """
    if isinstance(value, dict):
        return {key: with_absolute_paths(item, folder, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [with_absolute_paths(item, folder, (*path, place)) for place, item in enumerate(value)]
    keys = [part for key in path if isinstance(key, str) for part in key.split(".")]
    if len(keys) > 1 and keys[-2] in PATHS and keys[-1] == "file" and isinstance(value, str) and value.strip():
        return os.path.normpath(os.path.join(os.path.abspath(folder), value))
    return value
