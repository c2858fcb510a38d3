"""Short forms of a configuration, written out: a name in place of a section, a number of seeds, a key without its path.

They are understood where they can mean one thing only; what they stand for is what a run folder records.
"""

from collections.abc import Mapping
from typing import Any

from fedjax_bal.config.configuration import MOST_SEEDS, MethodEntry, UnresolvedConfig
from fedjax_bal.config.problems import ConfigError, KeyPath, dotted_path
from fedjax_bal.config.sections import SYNONYMS, Section, places_of


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
    near = [known for known in names if _letters(known) == _letters(name)]
    return near[0] if len(near) == 1 else name


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def full_path(path: KeyPath, data: Any, source: str) -> KeyPath:
    """Completes the path of a key that was given by its end alone.

    Of the optimizers, the clients' is meant. A path that is complete, or that ends no known one, stays as it is.

    Args:
        path: a path as given, `rounds` or `lr` for instance.
        data: the configuration so far; its choices decide which parameters there are.
        source: for messages.

    Raises:
        ConfigError: several keys end like this.

    Example:
        >>> full_path(("rounds",), {}, "mine"), full_path(("lr",), {}, "mine")
        (('training', 'rounds'), ('training', 'optimizer', 'learning_rate'))
    """
    if path[0] in UnresolvedConfig.model_fields:
        return path
    end = (*path[:-1], SYNONYMS.get(str(path[-1]), path[-1]))
    found = [place for place in places_of(UnresolvedConfig, data) if place[-len(end) :] == end]
    found = [place for place in found if "server_optimizer" not in place] or found
    if end == ("seed",):
        found.append(("seeds",))
    if len(found) > 1:
        places = ", ".join(map(dotted_path, found))
        raise ConfigError(f"{source}: {dotted_path(path)}: several keys are called so; give the whole path: {places}")
    return found[0] if found else path
