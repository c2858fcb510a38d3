"""The line `training:`, before training and on the page: how methods train, and which differ from the others."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from fedjax_bal.config import Sections, leaves, merge, without_defaults
from fedjax_bal.validate import is_number

_MOST_NAMES = 4
_MOST_VALUES = 8
_OPTIMIZER = "training.optimizer."
_SERVER = "training.server_optimizer."
_PLACED = ("training.rounds", "training.local_", "training.batch_size", _OPTIMIZER, _SERVER)


def training_line(sheet: Mapping[str, Any], axes: Mapping[str, Sequence[Any]] = {}) -> str:
    """Describes rounds, epochs or steps, batch size, the optimizer and all other keys of `training` that are set.

    Args:
        sheet: a resolved configuration, as a run folder records it; of a sweep that of any point.
        axes: the values of swept keys, by dotted path.

    Returns:
        The line without its label; empty if the sheet isn't whole.

    Example:
        >>> from fedjax_bal.config import load_config, resolved_sheet
        >>> training_line(resolved_sheet(load_config(None, ["methods=fedavg,rebafl", "imbalance_factor=1"])))
        '50 rounds, 2 epochs, batches of 20, sgd 0.1 (rebafl 0.03)'
    """
    methods: dict[str, list[str]] = {}
    try:
        for index, entry in enumerate(sheet["methods"]):
            overrides = {"training": entry.get("training", {})}
            merged = merge({"training": sheet["training"]}, [(("training",), overrides["training"])], Sections)
            values = {key: _shown(value) for key, value in leaves(merged).items()}
            stated = set(leaves(without_defaults(Sections, merged)))
            for key, swept in axes.items():
                of_method = key.removeprefix(f"methods.{index}.")
                if of_method in values and (of_method != key or key not in leaves(overrides)):
                    values[of_method] = _listed(swept)
                    stated.add(of_method)
            methods[entry.get("label") or entry["name"]] = [
                _counted(values["training.rounds"], "round"),
                _counted(values["training.local_epochs"], "epoch")
                if values.get("training.local_steps", "none") == "none"
                else _counted(values["training.local_steps"], "local step"),
                values["training.batch_size"],
                ", ".join([_optimizer(_OPTIMIZER, values, stated), *_others(values, stated)]),
            ]
    except (KeyError, TypeError, AttributeError):  # of a comparison from Python, or edited
        return ""
    columns = zip(*methods.values(), strict=True)
    texts = [_with_exceptions(dict(zip(methods, column, strict=True))) for column in columns]
    return "{}, {}, batches of {}, {}".format(*texts) if texts else ""


def _optimizer(section: str, values: Mapping[str, str], stated: Collection[str]) -> str:
    """Returns an optimizer's name and rate, and its other keys that are stated: `sgd 0.1, momentum 0.9`."""
    options = {key.removeprefix(section): value for key, value in values.items() if key.startswith(section)}
    texts = [f"{options.pop('name')} {options.pop('learning_rate')}"]
    for key, value in options.items():
        if f"{section}{key}" in stated:
            texts.append(f"{key.removesuffix('.name')} {value}")
    return ", ".join(texts)


def _others(values: Mapping[str, str], stated: Collection[str]) -> Iterator[str]:
    """Yields the keys that are stated and have no place of their own in the line: `drop_last true`."""
    for key, value in values.items():
        if key in stated and key.startswith("training.") and not key.startswith(_PLACED):
            yield f"{key.removeprefix('training.')} {value}"
    if any(key.startswith(_SERVER) for key in stated):
        yield f"server {_optimizer(_SERVER, values, stated)}"


def _with_exceptions(values: Mapping[str, str]) -> str:
    """Returns the most frequent value, and in brackets the methods with others: `sgd 0.1 (rebafl 0.03)`."""
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    common = max(groups, key=lambda value: len(groups[value]))
    optimizer = f"{common.partition(' ')[0]} "
    exceptions = []
    for value, names in groups.items():
        if value != common:
            some = [*names[:_MOST_NAMES], "..."] if len(names) > _MOST_NAMES else names
            exceptions.append(f"{', '.join(some)} {value.removeprefix(optimizer)}")
    return f"{common} ({'; '.join(exceptions)})" if exceptions else common


def _counted(number: str, noun: str) -> str:
    return f"{number} {noun}" if number == "1" else f"{number} {noun}s"


def _listed(values: Sequence[Any]) -> str:
    if len(values) > _MOST_VALUES and all(map(is_number, values)):
        return f"{_shown(min(values))} to {_shown(max(values))}"
    return "/".join(map(_shown, values))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
