"""Problems of a configuration and their messages: the key, the value received, the values allowed."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_bal.validate import NO_OTHERS, suggestion

KeyPath = tuple[str | int, ...]

COMMAND_LINE = "command line"
_LONGEST_VALUE = 60
_MOST_LISTED = 12  # names in a message
_FROM_PLUGINS = ("recipes", "models", "selectors", "partitions", "datasets", "metrics", "analyses")


class ConfigError(ValueError):
    """Raised for an invalid configuration; the message has one problem a line, each with its source and key."""


class Problem(NamedTuple):
    """One problem of a configuration.

    Attributes:
        path: the keys that lead to it, outermost first.
        text: the value received and the values allowed.
        unknown: whether the last key of the path is not one of the schema's.
    """

    path: KeyPath
    text: str
    unknown: bool = False


def received_value(value: Any) -> str:
    """Formats a value for a message: as in YAML, on one line, shortened.

    Example:
        >>> received_value("fashin_mnist"), received_value(None), received_value(True), received_value({"a": 1})
        ("'fashin_mnist'", 'null', 'true', 'a mapping')
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a mapping" if value else "an empty mapping"
    text = ascii(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def nearest_choices(value: Any, allowed: Iterable[str], also: Mapping[str, str] = NO_OTHERS, kind: str = "") -> str:
    """Suggests the names nearest to the received one, and lists the allowed ones.

    Args:
        value: the name received.
        allowed: the valid names.
        also: aliases, and the names that they stand for.
        kind: what `fedjax-bal list` calls the names, which it lists if there are many.

    Example:
        >>> nearest_choices("mnst", ["mnist", "cifar10"])
        "did you mean 'mnist'? allowed: cifar10, mnist"
        >>> nearest_choices("LAD", ["dirichlet"], {"lda": "dirichlet"})
        "did you mean 'lda' (dirichlet)? allowed: dirichlet"
        >>> nearest_choices("mine", map(str, range(70)), kind="recipes")
        "a plug-in's needs --plugin FILE_OR_MODULE; `fedjax-bal list recipes` lists the others"
    """
    names = sorted(allowed)
    near = suggestion(value, names, also)
    listed = not kind or len(names) <= _MOST_LISTED
    own = "a plug-in's needs --plugin FILE_OR_MODULE" if kind in _FROM_PLUGINS and value and not near else ""
    if listed:
        texts = [f"{near} allowed: {', '.join(names) or 'nothing'}".strip(), own]
    else:
        command = f"`fedjax-bal list {kind}` lists {'the others' if own else 'all of them'}"
        texts = [f"{near} {command}"] if near else [own, command]
    return "; ".join(filter(None, texts))


def dotted_path(path: Sequence[str | int]) -> str:
    """Formats keys and positions as `training.optimizer.momentum`; unusual keys are quoted.

    Example:
        >>> dotted_path(("methods", 1, "mu")), dotted_path(("a b",))
        ('methods.1.mu', "'a b'")
    """
    plain = re.compile(rf"[A-Za-z0-9_-]{{1,{_LONGEST_VALUE}}}")
    return ".".join(key if plain.fullmatch(key) else received_value(key) for key in map(str, path))


def raise_all(source: str, problems: Iterable[Problem], overridden: Sequence[KeyPath] = ()) -> None:
    """Raises one `ConfigError` that lists all problems; does nothing if there are none.

    Args:
        source: the name of the file.
        problems: the problems.
        overridden: paths that the command line set; their problems name the command line as their source.
    """
    lines = []
    given = [tuple(map(str, path)) for path in overridden]
    for problem in problems:
        path = tuple(map(str, problem.path))
        said = any(path[: len(keys)] == keys or (problem.unknown and keys[: len(path)] == path) for keys in given)
        where = [COMMAND_LINE if said else source, dotted_path(path), problem.text]
        lines.append(": ".join(filter(None, where)))
    if lines:
        raise ConfigError("\n".join(dict.fromkeys(lines)))
