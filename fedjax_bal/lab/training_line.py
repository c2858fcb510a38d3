"""The line `training:`, in which a run says with what its methods train, before it does and on its page."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedjax_bal.config import PATHS, Sections, leaves, merge, without_defaults

_DYNAMICS = ("availability", "delivery", "speed")
_NAMED = ("rounds", "local_epochs", "local_steps", "batch_size", "optimizer", "server_optimizer")
_PLAIN_SERVER = "sgd 1"
_MOST_NAMES = 4
_MOST_VALUES = 6

_Values = dict[str, str]  # the text of one item, by method


def training_line(sheet: Mapping[str, Any], axes: Mapping[str, Sequence[Any]] = {}) -> str:
    """Describes the training of all methods, and what single methods have in place of it.

    Args:
        sheet: a resolved configuration, as a run folder records it; of a sweep that of any point.
        axes: the values of swept keys, by dotted path.

    Returns:
        The line without its label; empty if the sheet isn't whole.

    Example:
        >>> from fedjax_bal.config import load_config, parse_yaml, resolved_yaml
        >>> config = load_config(None, ["methods=fedavg,rebafl", "imbalance_factor=1"])
        >>> training_line(parse_yaml(resolved_yaml(config), ""))
        '50 rounds, 2 epochs, batches of 20, sgd 0.1 (rebafl 0.03); dirichlet alpha=0.3 over 20 clients, 10 a round'
    """
    entries = sheet.get("methods")
    methods = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping):
            changed = {key: entry[key] for key in Sections.model_fields if key in entry}
            shared = {key: sheet[key] for key in Sections.model_fields if key in sheet}
            merged = merge(shared, [((key,), value) for key, value in changed.items()], Sections)
            methods[str(entry.get("label") or entry.get("name"))] = _with_axes(merged, axes, leaves(changed))
    if not methods:
        return ""
    try:
        items = [[_in_words(*item) for item in group] for group in (_local(methods), _federation(methods))]
    except (KeyError, TypeError, AttributeError):  # of a page's configuration that someone has edited
        return ""
    return "; ".join(map(", ".join, items))


def _with_axes(sections: Mapping[str, Any], axes: Mapping[str, Sequence[Any]], set_here: Mapping[str, Any]) -> Any:
    """Returns a method's sections with all values of a swept key in the place of one, unless it sets the key itself."""
    for key, values in axes.items():
        *above, last = key.split(".")
        if key in set_here or not set(above) or not isinstance(_at(sections, above), Mapping):
            continue
        text = "/".join(map(_shown, values[:_MOST_VALUES])) + "/..." * (len(values) > _MOST_VALUES)
        sections = _put(sections, above, {**_at(sections, above), last: text})
    return sections


def _at(tree: Any, path: Sequence[str]) -> Any:
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def _put(tree: Mapping[str, Any], path: Sequence[str], value: Any) -> Any:
    return {**tree, path[0]: _put(tree[path[0]], path[1:], value)} if path else value


def _local(methods: Mapping[str, Any]) -> Iterator[tuple[str, _Values]]:
    """Yields rounds and local training: a label before all values, and the value of each method."""
    training = {name: sections["training"] for name, sections in methods.items()}
    yield "", {name: _counted(each["rounds"], "round") for name, each in training.items()}
    yield "", {name: _duration(each) for name, each in training.items()}
    yield "batches of ", {name: _shown(each["batch_size"]) for name, each in training.items()}
    yield "", {name: _optimizer(each["optimizer"]) for name, each in training.items()}
    yield from _parameters("optimizer", {name: each["optimizer"] for name, each in training.items()})
    server = {name: _optimizer(each["server_optimizer"]) for name, each in training.items()}
    if {*server.values()} != {_PLAIN_SERVER}:
        yield "server ", server
    yield from _parameters("server_optimizer", {name: each["server_optimizer"] for name, each in training.items()})
    others = {name: {key: each[key] for key in each if key not in _NAMED} for name, each in training.items()}
    yield from _parameters("", others)


def _federation(methods: Mapping[str, Any]) -> Iterator[tuple[str, _Values]]:
    """Yields the partition and the cohort in the same form."""
    yield "", {name: _partition(sections["partition"]) for name, sections in methods.items()}
    yield "", {name: _cohort(sections) for name, sections in methods.items()}
    for key, plain in (("selection", "uniform"), *((key, "") for key in _DYNAMICS)):
        chosen = {name: _variant(key, sections[key], ("clients_per_round",)) for name, sections in methods.items()}
        if {*chosen.values()} - {plain, ""}:
            yield f"{key} ", {name: text or _shown(methods[name][key]["name"]) for name, text in chosen.items()}


def _parameters(section: str, values: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, _Values]]:
    """Yields the parameters that have another value than their default in some method."""
    kind: Any = Sections.child("training")
    kind = kind.child(section) if section else kind
    skipped = ("name", "learning_rate")
    changed = {name: leaves(without_defaults(kind, value)) for name, value in values.items()}
    for key in dict.fromkeys(key for each in changed.values() for key in each if key and key not in skipped):
        whole = {name: leaves(value).get(key) for name, value in values.items()}
        yield f"{key.removesuffix('.name')}=", {name: _shown(value) for name, value in whole.items()}


def _variant(key: str, section: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    """Returns the choice of a section with its parameters that aren't at their defaults; empty for the default."""
    kind: Any = Sections.child(key)
    changed = {name: value for name, value in without_defaults(kind, section).items() if name not in without}
    name = changed.pop(kind.choice, "")
    changed = dict(sorted(changed.items(), key=lambda item: item[0] in kind.model_fields))  # those of the choice first
    file = PATHS.get(key)
    texts = (
        f"{key}={os.path.basename(str(value)) if key == file else _shown(value)}" for key, value in changed.items()
    )
    return " ".join([_shown(name), *texts]) if name else ""


def _partition(section: Mapping[str, Any]) -> str:
    clients = section["clients"]
    over = ", each user a client" if clients == "all" else f" over {_counted(clients, 'client')}"
    return _variant("partition", section, ("clients", "seed")) + over


def _cohort(sections: Mapping[str, Any]) -> str:
    most = "at most " * (sections["partition"]["clients"] == "all")  # there may be fewer users
    return f"{most}{sections['selection']['clients_per_round']} a round"


def _duration(training: Mapping[str, Any]) -> str:
    steps = training.get("local_steps")
    return _counted(training["local_epochs"], "epoch") if steps is None else _counted(steps, "local step")


def _optimizer(section: Mapping[str, Any]) -> str:
    return f"{section['name']} {_shown(section['learning_rate'])}"


def _counted(number: Any, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    return f"[{', '.join(map(_shown, value))}]" if isinstance(value, list) else str(value)


def _in_words(label: str, values: _Values) -> str:
    """Puts the most frequent value first, and in brackets the methods with others: `sgd 0.1 (rebafl 0.03)`."""
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    common = max(groups, key=lambda value: len(groups[value]))
    choice = "" if common[:1].isdigit() else f"{common.partition(' ')[0]} "  # an optimizer or a scheme, said once
    others = []
    for value, names in groups.items():
        if value != common:
            more = len(names) - _MOST_NAMES if len(names) > _MOST_NAMES + 1 else 0
            *first, last = [*names[: len(names) - more], *([f"{more} more"] if more else [])]
            listed = f"{', '.join(first)} and {last}" if first else last
            others.append(f"{listed} {value.removeprefix(choice)}")
    brackets = f" ({'; '.join(others)})" if others else ""
    return f"{label}{common}{brackets}"
