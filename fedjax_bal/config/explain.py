"""The reference of all keys of a configuration, derived from the sections that validate them."""

import difflib
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from pydantic import TypeAdapter

from fedjax_bal.annotations import describe_type, parameters, parse_argument_docs
from fedjax_bal.config.errors import KeyPath, dotted_path, received_value
from fedjax_bal.config.merge import SEED_LISTS, SYNONYMS, completed_path, name_in_results, section_at
from fedjax_bal.config.schema import MOST_SEEDS, Config, RecipeSection
from fedjax_bal.config.sections import Section, Variant, to_plain
from fedjax_bal.validate import suggestion

_BOUNDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
_MOST_MEANT = 4
_OTHER_WORDS = {
    **dict.fromkeys(("num_clients", "n_clients"), "partition.clients"),
    **dict.fromkeys(("batch", "bs"), "training.batch_size"),
    **dict.fromkeys(("num_rounds", "n_rounds"), "training.rounds"),
    **dict.fromkeys(("dirichlet", "lda"), "partition=dirichlet alpha=0.1"),
    **dict.fromkeys(("iid", "natural"), "partition=iid or partition=natural"),
    **dict.fromkeys(("frac", "fraction", "participation", "client_fraction"), "selection.clients_per_round"),
    **dict.fromkeys(("algorithm", "algorithms", "recipe", "recipes"), "methods"),
    "plugin": "the option --plugin FILE",
    "out": "the option --out FOLDER",
    "data_dir": "the option --data-dir FOLDER",
}
"""Keys that users try, and no other rule finds -> what they mean."""


class KeyReference(NamedTuple):
    """The entry of one key in the reference.

    Attributes:
        path: the key's dotted path.
        choices: the choices that have this parameter (`dirichlet`); empty for a key that always exists.
        meaning: the docstring's description; empty without one.
        allowed: the allowed values, in words that complete "must be".
        default: the default as messages show it; empty for a required key.
    """

    path: str
    choices: tuple[str, ...]
    meaning: str
    allowed: str
    default: str


def key_references(section: type[Section] = Config, path: KeyPath = ()) -> Iterator[KeyReference]:
    """Yields the reference of every key, section by section; parameters of choices follow the keys of their section.

    Example:
        >>> next(key for key in key_references() if key.path == "availability.p").choices
        ('bernoulli', 'periodic')
    """
    meanings = section.meanings()
    for key, field in section.model_fields.items():
        child = section.child(key)
        below = None if child is None or child.listed else child
        allowed = (
            f"a mapping of {', '.join(below.model_fields)}" if below else describe_type(field.rebuild_annotation())
        )
        allowed = f"one of the names of {key}.{below.choice}, or {allowed}" if below and below.choice else allowed
        default = "" if below or field.is_required() else _shown(field.get_default(call_default_factory=True))
        meaning = meanings.get(key) or (inspect.getdoc(below) or "" if below else "").partition("\n")[0]
        yield KeyReference(dotted_path((*path, key)), (), meaning, allowed, default)
        if below is not None:
            yield from key_references(below, (*path, key))
    if not issubclass(section, Variant):
        return
    # The parameters of all choices; a parameter that several choices share is one entry.
    same: dict[tuple[str, str, str, str], list[str]] = {}
    for name in section.choices():
        own = meanings | parse_argument_docs(section.function_of(name))
        for key, (annotation, default) in section.parameters_of(name).items():
            shown = "" if default is ... else _shown(default)
            same.setdefault((key, own.get(key, ""), describe_type(annotation), shown), []).append(name)
    for (key, meaning, allowed, default), names in same.items():
        yield KeyReference(dotted_path((*path, key)), tuple(names), meaning, allowed, default)


def short_form(entry: KeyReference) -> str:
    """Returns the end of a key's path that stands for it, on the command line and in a file; or else the whole path.

    Parameters of choices that aren't the default have their whole paths.

    Example:
        >>> [short_form(next(iter(find_keys(key)))) for key in ("rounds", "lr", "alpha", "server_optimizer.name")]
        ['rounds', 'lr', 'alpha', 'server_optimizer.name']
    """
    path = tuple(entry.path.split("."))
    ends = [path[place:] for place in range(len(path) - 1, 0, -1)]
    synonyms = [(synonym,) for synonym, name in SYNONYMS.items() if name == path[-1]]
    return ".".join(next((end for end in (*synonyms, *ends) if completed_path(end, None, {}) == path), path))


def _shown(default: Any) -> str:
    return received_value(to_plain(default))  # as a list of YAML, not a tuple


def find_keys(key: str) -> list[KeyReference]:
    """Finds a key's reference, by its path or the end of it, and those of the keys directly below; `all` finds all.

    Raises:
        ValueError: there is no such key.

    Example:
        >>> [(key.path, key.default) for key in find_keys("rounds")]
        [('training.rounds', '50')]
    """
    *above, last = key.split(".")
    end = ".".join([*above, SYNONYMS.get(last, last)])
    known = list(key_references())
    if key == "all":
        return known
    matches = [entry for entry in known if f".{entry.path}".endswith(f".{end}")]
    if not matches:
        section = "".join(f"{name}." for name in above)
        hint = _did_you_mean(_nearest(last, [entry for entry in known if section in entry.path] or known))
        hint = hint or "`fedjax-bal config explain all` lists them, `fedjax-bal list recipes NAME` a recipe's arguments"
        raise ValueError(f"config explain: {received_value(key)} is not a key; {hint}")
    sections = {match.path for match in matches if any(entry.path.startswith(f"{match.path}.") for entry in known)}
    return [entry for entry in known if entry in matches or entry.path.rpartition(".")[0] in sections]


def meant_key(path: KeyPath, data: Any) -> str:
    """Suggests what an unknown key means if it belongs to another section, to a method, or to another choice than made.

    Args:
        path: the unknown key's path.
        data: the configuration.

    Example:
        >>> meant_key(("hidden",), {"model": {"name": "tiny_bn"}, "hidden": 5})
        'model.name tiny_bn has no hidden; model=mlp hidden=5 chooses one that has it;'
        >>> meant_key(("training", "lr"), {})
        "did you mean 'optimizer.learning_rate' or 'server_optimizer.learning_rate'?"
    """
    *above, key = map(str, path)
    if not above and key in _OTHER_WORDS:
        return f"did you mean {_OTHER_WORDS[key]}?"
    of_method = "" if above else _hyperparameter(key, data)
    if of_method:
        return of_method
    section = section_at(Config, tuple(above))
    if section is None or suggestion(key, section.model_fields):
        return ""  # the section suggests its own keys
    below = "".join(f"{name}." for name in above)
    inside = [entry for entry in key_references() if entry.path.startswith(below)]
    near = _nearest(key, [entry for entry in inside if "." in entry.path.removeprefix(below)])
    if near and near[0].choices and near[0].path.endswith(f".{key}"):
        return _other_choice(near[0].path, data, _at(data, path))
    return _did_you_mean(near, below)


def _hyperparameter(key: str, data: Any) -> str:
    """Says how a hyperparameter of some of the methods is given, if a key is one; otherwise returns an empty text."""
    methods = data.get("methods")
    recipes = RecipeSection.choices()
    texts = []
    for index, name in enumerate(map(name_in_results, methods if isinstance(methods, list) else ())):
        if name in recipes and key in parameters(recipes[name]):
            change = f"methods.{index}.{key}={received_value(data.get(key))}"
            texts.append(f"a hyperparameter of {name}: {change};")
    return " ".join(texts)


def _nearest(name: str, entries: Sequence[KeyReference]) -> list[KeyReference]:
    """Returns the entries of the keys with this name or synonym, or else of those with the nearest one."""
    by_name: dict[str, list[KeyReference]] = {}
    for entry in entries:
        by_name.setdefault(entry.path.rpartition(".")[2], []).append(entry)
    by_name |= {synonym: by_name[key] for synonym, key in SYNONYMS.items() if key in by_name}
    near = [name] if name in by_name else difflib.get_close_matches(name.lower(), by_name, 1, 0.75)
    return by_name[near[0]] if near else []


def _did_you_mean(entries: Iterable[KeyReference], below: str = "") -> str:
    paths = list(dict.fromkeys(repr(entry.path.removeprefix(below)) for entry in entries))
    return f"did you mean {' or '.join(paths)}?" if 0 < len(paths) <= _MOST_MEANT else ""


def _other_choice(path: str, data: Any, value: Any) -> str:
    """Says which choice would have a parameter, such as partition=dirichlet for alpha."""
    *above, key = path.split(".")
    section: Any = section_at(Config, tuple(above))
    chosen = _at(data, (*above, section.choice))
    having = [name for name in section.choices() if key in section.parameters_of(name)]
    default = section.class_for({}).choice_value
    place = ".".join(above)
    change = f"{place}={default if default in having else having[0]} {key}={received_value(value)}"
    return f"{place}.{section.choice} {chosen} has no {key}; {change} chooses one that has it;"


def _at(data: Any, path: Iterable[str | int]) -> Any:
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a configuration, for editors: keys, types and names, without constraints between keys.

    Example:
        >>> json_schema()["properties"]["training"]["properties"]["rounds"]["minimum"]
        1
    """
    whole = _schema(Config)
    entry = [{"type": "string"}, {"type": "object", "required": ["recipe"]}]
    special = {
        "base": {"type": "string", "description": "the configuration that this one changes"},
        "sweep": {"type": "array", "items": {"type": "object"}, "description": "the axes of a sweep"},
        "methods": _any_of([*entry, {"type": "array", "items": _any_of(entry)}]),
    }
    count = {"type": "integer", "minimum": 1, "maximum": MOST_SEEDS}
    special |= {key: {"anyOf": [whole["properties"][key], count]} for key in SEED_LISTS}
    # Short forms, and paths with dots; as patterns, so that editors don't propose all of them.
    ends = sorted({entry.path.rpartition(".")[2] for entry in key_references()} | SYNONYMS.keys())
    short = {"patternProperties": {rf"^({'|'.join(ends)})$": {}, r"^\w+(\.\w+)+$": {}}}
    heading = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "fedjax_bal configuration"}
    return {**heading, **whole, **short, "properties": {**whole["properties"], **special}}


def _schema(section: type[Section]) -> dict[str, Any]:
    meanings = section.meanings()
    properties: dict[str, Any] = {}
    for key, field in section.model_fields.items():
        below = section.child(key)
        if below is not None and below.listed:
            properties[key] = {}
            continue
        kind = _schema(below) if below else _type_schema(field.rebuild_annotation())
        if below is not None and type(None) in get_args(field.annotation):
            kind = _any_of([kind, {"type": "null"}])
        properties[key] = kind | ({"description": meanings[key]} if meanings.get(key) else {})
    if issubclass(section, Variant):  # choices may have parameters of the same name but different types
        parameters: dict[str, list[Any]] = {}
        for name in section.choices():
            for key, (annotation, _) in section.parameters_of(name).items():
                parameters.setdefault(key, []).append(_type_schema(annotation))
        properties |= {key: _any_of(kinds) for key, kinds in parameters.items()}
    whole = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"anyOf": [{"type": "string"}, whole]} if section.choice else whole


def _any_of(kinds: Iterable[Any]) -> dict[str, Any]:
    distinct = [json.loads(text) for text in dict.fromkeys(json.dumps(kind, sort_keys=True) for kind in kinds)]
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def _type_schema(annotation: Any) -> Any:
    return _with_bounds(TypeAdapter(annotation).json_schema())


def _with_bounds(schema: Any) -> Any:
    """Renames bounds: pydantic uses names that JSON Schema lacks where a value is converted before it is checked.

    Mappings may be empty, since the axes of a sweep may fill them.
    """
    if isinstance(schema, dict):
        kept = ((key, value) for key, value in schema.items() if key != "minProperties")
        return {_BOUNDS.get(key, key): _with_bounds(value) for key, value in kept}
    return [_with_bounds(item) for item in schema] if isinstance(schema, list) else schema
