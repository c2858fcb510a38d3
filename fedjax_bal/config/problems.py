"""What is said about a configuration that can't be used: where, what was received, what is allowed."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

KeyPath = tuple[str | int, ...]

_LONGEST_VALUE = 60
NO_OTHERS: Mapping[str, str] = MappingProxyType({})


class ConfigError(ValueError):
    """A configuration that can't be used; its text has one problem a line, each with its source and key.

    Example:
        >>> raise ConfigError("my.yaml: training.rounds: received 0, must be an integer of at least 1")
        Traceback (most recent call last):
        fedjax_bal.config.problems.ConfigError: my.yaml: training.rounds: received 0, must be an integer of at least 1
    """


class Problem(NamedTuple):
    """One thing that is wrong.

    Attributes:
        path: the keys that lead to it, outermost first.
        text: what was received and what is allowed.
        unknown: whether the last key of the path is one that the schema doesn't have.
    """

    path: KeyPath
    text: str
    unknown: bool = False


def received_value(value: Any) -> str:
    """A value as a message shows it: in YAML's words, on one line, not long.

    Args:
        value: anything that a YAML file can hold.

    Returns:
        The text.

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


def nearest_choices(value: Any, allowed: Iterable[str], also: Mapping[str, str] = NO_OTHERS) -> str:
    """The allowed names, with the nearest one where the received name looks like a slip or is the beginning of some.

    Args:
        value: what was received.
        allowed: the valid names.
        also: other names that are understood, with what they stand for.

    Returns:
        `allowed: a, b; did you mean 'a'?`

    Example:
        >>> nearest_choices("mnst", ["mnist", "cifar10"])
        "allowed: cifar10, mnist; did you mean 'mnist'?"
        >>> nearest_choices("LAD", ["dirichlet"], {"lda": "dirichlet"})
        "allowed: dirichlet; did you mean 'lda' (dirichlet)?"
    """
    names = sorted(allowed)
    longer = [name for name in names if name.startswith(f"{value}_")]
    near = longer or difflib.get_close_matches(str(value), names, 1)
    if not near:
        near = difflib.get_close_matches(str(value).lower(), also, 1)
    hint = f"; did you mean {' or '.join(_meant(name, also) for name in near)}?" if near else ""
    return f"allowed: {', '.join(names) or 'nothing'}{hint}"


def _meant(name: str, also: Mapping[str, str]) -> str:
    return f"{name!r} ({also[name]})" if name in also else repr(name)


def dotted_path(path: Sequence[str | int]) -> str:
    """A path as text: `training.optimizer.momentum`.

    Args:
        path: keys and list positions.

    Returns:
        The keys joined by dots, odd ones in quotes.

    Example:
        >>> dotted_path(("methods", 1, "mu")), dotted_path(("a b",))
        ('methods.1.mu', "'a b'")
    """
    return ".".join(_shown(str(key)) for key in path)


def raise_all(source: str, problems: Iterable[Problem], overridden: Sequence[KeyPath] = ()) -> None:
    """Raises one error that tells every problem, or does nothing where there is none.

    Args:
        source: the name of the file.
        problems: what was found.
        overridden: paths that the command line set; a problem at one of them is told as the command line's.

    Raises:
        ConfigError: there is a problem.

    Example:
        >>> raise_all("my.yaml", [])
        >>> raise_all("my.yaml", [Problem(("seeds",), "missing")])
        Traceback (most recent call last):
        fedjax_bal.config.problems.ConfigError: my.yaml: seeds: missing
    """
    lines = [": ".join(filter(None, (_source(p, source, overridden), dotted_path(p.path), p.text))) for p in problems]
    if lines:
        raise ConfigError("\n".join(dict.fromkeys(lines)))


def _source(problem: Problem, source: str, overridden: Sequence[KeyPath]) -> str:
    path = tuple(map(str, problem.path))
    for override in overridden:
        keys = tuple(map(str, override))
        if path[: len(keys)] == keys or (problem.unknown and keys[: len(path)] == path):
            return "command line"
    return source


def _shown(key: str) -> str:
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return received_value(key) if not plain or len(key) > _LONGEST_VALUE else key
