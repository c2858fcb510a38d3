"""Reads and writes a safe subset of YAML, with limits.

Values are those of YAML 1.2's core schema: `1e-3` is a number, `no` is text, `010` is ten. Anchors, tags, repeated keys
and deep nesting are rejected, so that a file can't expand in memory, hide a value or exhaust the stack.
"""

import os
import re
from collections.abc import Callable
from typing import Any

import yaml

from fedjax_bal.config.errors import ConfigError, received_value
from fedjax_bal.files import read_bytes

LARGEST_YAML = 4_000_000
"""The largest file in bytes, enough for a comparison of thousands of methods."""

_DEEPEST = 20
_LONGEST_NUMBER = 40

_KINDS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    # Types of unquoted scalars: pattern, possible first characters of a text that isn't empty, and conversion.
    "null": (r"~|null|Null|NULL|", "~nN", lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    "int": (r"[-+]?[0-9]+", "-+0123456789", int),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.?(inf|Inf|INF)|\.?(nan|NaN|NAN)",
        "-+.0123456789iInN",
        lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
    ),
}


class _Loader(yaml.SafeLoader):
    """Composes the nodes of the safe subset."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        self.depth += 1
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _at(event, "anchors (&) and aliases (*) are not allowed; write the value out")
        if event.tag is not None:
            raise _at(event, f"the tag {received_value(event.tag)} is not allowed; leave it out")
        if self.depth > _DEEPEST:
            raise _at(event, f"nested deeper than {_DEEPEST} levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _value(node: Any) -> Any:
    """Converts a node to its value; keys stay text as written, even `0.5`."""
    if isinstance(node, yaml.SequenceNode):
        return [_value(item) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        mapping = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _at(key, "received a list or a mapping as a key; keys are text")
            if key.value in mapping:
                raise _at(key, f"duplicate key {received_value(key.value)}")
            mapping[key.value] = _value(value)
        return mapping
    kind = node.tag.rpartition(":")[2]
    if kind in ("int", "float") and len(node.value) > _LONGEST_NUMBER:
        raise _at(node, f"a number of {len(node.value)} characters; at most {_LONGEST_NUMBER} are allowed")
    return _KINDS[kind][2](node.value) if kind in _KINDS else node.value


class _Dumper(yaml.SafeDumper):
    """Quotes text that this reader, or one of YAML 1.1, would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _kind, (_pattern, _first, _) in _KINDS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(rf"^(?:{_pattern})$"), [*_first, ""])


def parse_yaml(text: str, source: str) -> Any:
    """Parses one YAML document.

    Raises:
        ConfigError: the text isn't YAML, or outside the safe subset; the message names line and column.

    Example:
        >>> parse_yaml("{learning_rate: 5e-4, name: no}", "my.yaml")
        {'learning_rate': 0.0005, 'name': 'no'}
        >>> parse_yaml("a: [1", "my.yaml")
        Traceback (most recent call last):
        fedjax_bal.config.errors.ConfigError: my.yaml: line 1, column 6: expected ',' or ']', but got '<stream end>'
    """
    try:
        node = _Loader(text).get_single_node()
        return None if node is None else _value(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        remedy = ": indent with spaces" if "'\\t'" in str(error.problem) else ""
        raise ConfigError(f"{source}: {where}{error.problem or error.context or 'not YAML'}{remedy}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from None


def read_yaml(path: str | os.PathLike[str], source: str) -> Any:
    """Reads YAML from a UTF-8 file of at most 4 MB; raises `ConfigError` on failure."""
    try:
        text = read_bytes(path, LARGEST_YAML).decode("utf-8-sig")
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        reason = "there is no such file" if missing else f"can't be read ({error.strerror or error}); give a YAML file"
        raise ConfigError(f"{source}: {reason}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: not UTF-8 text (byte {error.start}); a configuration is YAML") from None
    return parse_yaml(text, source)


def dump_yaml(value: Any) -> str:
    """Returns a value as YAML, keys in their order; equal values give equal bytes."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=120, allow_unicode=False)


def _at(where: Any, text: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=where.start_mark)
