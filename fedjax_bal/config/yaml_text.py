"""Reads and writes the safe, plain part of YAML, with limits.

The language is the core of YAML 1.2: `1e-3` is a number, `no` is a text, `010` is ten. Anchors, tags, repeated keys
and deep nesting are refused, so that a file can't grow, hide a value or exhaust the stack.
"""

import os
import re
from collections.abc import Hashable
from typing import Any

import yaml

from fedjax_bal.config.problems import ConfigError, received_value
from fedjax_bal.files import open_file

LARGEST_YAML = 4_000_000
"""Bytes of a file, enough for a comparison of thousands of methods."""

_DEEPEST = 20
_LONGEST_NUMBER = 40
_MOST_VALUES = 200_000  # which take half a minute and half a gigabyte to read

_NUMBERS = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.?(inf|Inf|INF)|\.?(nan|NaN|NAN)",
        list("-+.0123456789iInN"),
    ),
)


class _Loader(yaml.SafeLoader):
    """Reads the plain part of YAML."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012
    depth = 0
    values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _at(event, "anchors (&) and aliases (*) are not allowed; write the value out")
        if event.tag is not None:
            raise _at(event, f"the tag {received_value(event.tag)} is not allowed; leave it out")
        if self.depth >= _DEEPEST:
            raise _at(event, f"nested deeper than {_DEEPEST} levels")
        self.values += 1
        if self.values > _MOST_VALUES:
            raise _at(event, f"holds more than {_MOST_VALUES} keys and values; a configuration is a short text")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if isinstance(name, int | float) and not isinstance(name, bool):
                key.tag = "tag:yaml.org,2002:str"  # a number as a key is the text that it is written as
                self.constructed_objects.pop(key, None)
                name = key.value
            if not isinstance(name, str):
                raise _at(key, f"received {received_value(name)} as a key; keys are text")
            if name in lines:
                raise _at(key, f"the key {received_value(name)} stands twice; it is already on line {lines[name]}")
            lines[name] = key.start_mark.line + 1
        return super().construct_mapping(node, deep=deep)

    def construct_number(self, node: Any) -> float | int:
        text = self.construct_scalar(node)
        if len(text) > _LONGEST_NUMBER:
            raise _at(node, f"a number of {len(text)} characters; at most {_LONGEST_NUMBER} are allowed")
        as_float = node.tag.endswith("float")
        return float(text.replace(".inf", "inf").replace(".nan", "nan").lower()) if as_float else int(text)


class _Dumper(yaml.SafeDumper):
    """Quotes text wherever this reader, or one of YAML 1.1, would take it for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in _NUMBERS:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)
    _Dumper.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_number)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_number)


def parse_yaml(text: str, source: str) -> Any:
    """Reads one YAML document from a text.

    Raises:
        ConfigError: not YAML, or outside its plain part; says the line and the column.

    Example:
        >>> parse_yaml("{learning_rate: 5e-4, name: no}", "my.yaml")
        {'learning_rate': 0.0005, 'name': 'no'}
        >>> parse_yaml("a: [1", "my.yaml")
        Traceback (most recent call last):
        fedjax_bal.config.problems.ConfigError: my.yaml: line 1, column 6: expected ',' or ']', but got '<stream end>'
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{source}: line {line}: holds the character {error.character!a}, not allowed") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        remedy = ": indent with spaces" if "'\\t'" in str(error.problem) else ""
        raise ConfigError(f"{source}: {place}{error.problem or error.context or 'not YAML'}{remedy}") from None
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{source}: not YAML: {error}") from None


def read_yaml(path: str | os.PathLike[str], source: str) -> Any:
    """Reads YAML from a UTF-8 file of at most 4 MB; raises `ConfigError` if it can't."""
    try:
        with open_file(path) as file:
            content = file.read(LARGEST_YAML + 1)
    except FileNotFoundError:
        raise ConfigError(f"{source}: there is no such file") from None
    except OSError as error:
        reason = error.strerror or str(error)
        told = reason if reason.startswith("is ") else f"can't be read: {reason}"
        raise ConfigError(f"{source}: {told}; give a YAML file") from None
    if len(content) > LARGEST_YAML:
        raise ConfigError(f"{source}: larger than 4 MB; a configuration is a short text")
    try:
        return parse_yaml(content.decode("utf-8-sig"), source)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: not UTF-8 text (byte {error.start}); a configuration is YAML") from None


def dump_yaml(value: Any) -> str:
    """Writes YAML with keys in their order; the same value gives the same bytes."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=120, allow_unicode=False)


def _at(where: Any, text: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=where.start_mark)
