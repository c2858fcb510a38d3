"""The base of all sections of a configuration: checked as a whole, immutable, merged key by key."""

import difflib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, create_model, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import InitErrorDetails, PydanticCustomError

from fedjax_bal.annotations import names_of, wanted
from fedjax_bal.config.parameters import documented
from fedjax_bal.config.problems import KeyPath, Problem, dotted_path, nearest_choices, received_value

SYNONYMS = {"lr": "learning_rate", "epochs": "local_epochs", "steps": "local_steps", "wd": "weight_decay"}
"""Keys that others call differently, with what they are called here."""


class Section(BaseModel):
    """A mapping of known keys; frozen, other keys are refused.

    Attributes:
        choice: the key whose value decides which other keys are allowed; None for no such key.
        picked: the value of that key that this class is for; None in the class for all values.
        listed: whether it is an entry of a list.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, protected_namespaces=())

    choice: ClassVar[str | None] = None
    picked: ClassVar[str | None] = None
    listed: ClassVar[bool] = False

    @classmethod
    def chosen(cls, value: Mapping[str, Any]) -> "type[Section] | None":
        """Returns the class that checks a value: this one, or that of the chosen name; None for an unknown name."""
        del value
        return cls

    @classmethod
    def default(cls) -> Self:
        """Builds the section that a configuration without it has."""
        return cls.model_validate({})

    @classmethod
    def common(cls) -> frozenset[str]:
        """The keys that all choices share."""
        return frozenset(cls.model_fields)

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """The meaning of each key, from the docstrings of this class and of those that it extends."""
        return {key: text for kind in reversed(cls.__mro__) for key, text in documented(kind).items()}

    @classmethod
    def child(cls, key: str) -> "type[Section] | None":
        """Returns the section under a key, if the key has one."""
        field = cls.model_fields.get(key)
        below = field.annotation if field else None
        kinds = [below, *get_args(below)]  # a section or None too
        return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


class Variant(Section):
    """A section with a key, `choice`, whose value decides which parameters are allowed beside it.

    A subclass declares the keys that all its choices share, and says which parameters a name adds.

    Example:
        >>> from fedjax_bal.config.client_sections import AvailabilitySection
        >>> AvailabilitySection.model_validate({"name": "bernoulli", "p": 0.5}).parameters
        {'p': 0.5}
    """

    @classmethod
    def names(cls) -> Sequence[str]:
        """The valid choices."""
        raise NotImplementedError

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The fields that a choice adds, as pydantic's `create_model` takes them."""
        raise NotImplementedError

    @classmethod
    def function(cls, name: str) -> Callable[..., Any] | None:
        """The function of a choice, whose docstring explains the parameters; None if there is none."""
        del name
        return None

    @classmethod
    def chosen(cls, value: Mapping[str, Any]) -> type[Section] | None:
        """The class with the parameters of the chosen name."""
        if cls.picked:
            return cls
        name = value.get(str(cls.choice), cls.model_fields[str(cls.choice)].default)
        if name not in cls.names():
            return None
        return _variant(cls, str(name), tuple(cls.parameters_of(str(name)).items()))

    @classmethod
    def common(cls) -> frozenset[str]:
        """The keys that all choices share."""
        declared = next(c for c in cls.__mro__ if issubclass(c, Variant) and c.picked is None)
        return frozenset(declared.model_fields)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the choice, without the keys that all choices share."""
        return {key: getattr(self, key) for key in type(self).model_fields if key not in self.common()}

    @model_validator(mode="wrap")
    @classmethod
    def _as_chosen(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if cls.picked or not isinstance(value, Mapping):
            return handler(value)
        chosen = cls.chosen(value)
        if chosen is None:
            return handler({key: value[key] for key in value if key in cls.common()})
        return chosen.model_validate(value)  # type: ignore[return-value]


@functools.lru_cache(maxsize=256)
def _variant(base: type[Variant], name: str, parameters: tuple[tuple[str, Any], ...]) -> type[Variant]:
    made = create_model(f"{base.__name__}_{name}", __base__=base, **dict(parameters))
    made.picked = name
    return made


def check_section(section: type[Section], value: Any, path: KeyPath = ()) -> tuple[Any, list[Problem]]:
    """Checks a value against a section, and returns the section and no problems, or None and all of them.

    Args:
        section: the section's class.
        value: the value in the file.
        path: its place there.

    Example:
        >>> class Dataset(Section):
        ...     name: str
        >>> check_section(Dataset, {"nme": "mnist", "name": "mnist"}, ("dataset",))[1][0].text
        "unknown key; allowed: name; did you mean 'name'?"
    """
    try:
        return section.model_validate(value), []
    except ValidationError as error:
        found = [_problem(section, value, dict(detail)) for detail in error.errors(include_url=False)]
        return None, [problem._replace(path=(*path, *problem.path)) for problem in dict.fromkeys(found)]


def merge_sections(section: type[Section], base: Any, patch: Any) -> Any:
    """Lays one mapping over another, key by key, both of one section.

    Choosing another name (an optimizer, a partition scheme) drops the parameters of the one before.

    Example:
        >>> from fedjax_bal.config.client_sections import AvailabilitySection
        >>> merge_sections(AvailabilitySection, {"name": "bernoulli", "p": 0.5}, {"name": "always"})
        {'name': 'always'}
    """
    if not isinstance(base, Mapping):
        return base  # wrong where it stands, and told there
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(base)
    if section.choice in patch:
        merged = choose_variant(section, base, patch[section.choice])
    for key, value in patch.items():
        below = section.child(key)
        merged[key] = merge_sections(below, merged[key], value) if below and key in merged else value
    return merged


def without_defaults(section: type[Section], value: Any) -> Any:
    """Leaves out the keys that have their defaults, at every level; a name stays where something of its choice does.

    Args:
        section: the section's class.
        value: its plain value, which may be damaged.

    Example:
        >>> from fedjax_bal.config.client_sections import AvailabilitySection, SelectionSection
        >>> without_defaults(SelectionSection, {"name": "uniform", "clients_per_round": 7})
        {'name': 'uniform', 'clients_per_round': 7}
        >>> without_defaults(AvailabilitySection, {"name": "always"})
        {}
    """
    if not isinstance(value, Mapping):
        return value
    own = section.chosen(value) if section.choice and isinstance(value.get(section.choice), str) else section
    if own is None:
        return dict(value)
    pairs = ((key, _unless_default(own, key, item)) for key, item in value.items())
    kept = {key: item for key, item in pairs if item is not _DEFAULT}
    named = {section.choice: value[section.choice]} if kept and section.choice in value else {}
    return {**named, **kept}


_DEFAULT = object()


def _unless_default(section: type[Section], key: Any, value: Any) -> Any:
    field, below = section.model_fields.get(key), section.child(key)
    if field is None:
        return value
    if not field.is_required() and to_plain(field.get_default(call_default_factory=True)) == value:
        return _DEFAULT
    return value if below is None else without_defaults(below, value) or _DEFAULT


def choose_variant(section: type[Section], value: Mapping[str, Any], name: Any) -> dict[str, Any]:
    """Returns a section's mapping with another name chosen, without the parameters of the one before."""
    key = str(section.choice)
    field = section.model_fields.get(key)
    before = value.get(key, field.default if field else None)
    kept = value if before == name else {k: v for k, v in value.items() if k in section.common()}
    return {**kept, key: name}


def to_plain(value: Any) -> Any:
    """Converts a section to complete mappings, lists and values in the schema's order, which YAML can write."""
    if isinstance(value, Section):
        return {key: to_plain(getattr(value, key)) for key in type(value).model_fields}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _problem(section: type[Section], value: Any, detail: dict[str, Any]) -> Problem:
    """Puts an error of pydantic into words; an error within a value is one of the whole value."""
    place, kind = detail["loc"], detail["type"]
    words = {
        "refused": lambda: detail["msg"],
        "extra_forbidden": lambda: _unknown_key(_section_at(section, value, place[:-1]), place[-1]),
        "missing": lambda: f"missing, must be {_wanted_at(section, value, place)}",
        "model_type": lambda: (
            f"received {received_value(detail['input'])}, must be {_wanted_at(section, value, place)}"
        ),
    }
    if kind in words:
        return Problem(place, words[kind](), unknown=kind == "extra_forbidden")
    key, received = _value_at(section, value, place)
    annotation = _annotation_at(section, value, key)
    names = names_of(annotation)
    if names:
        return Problem(
            key, f"received {received_value(received)}; {nearest_choices(received, names.names(), names.also())}"
        )
    return Problem(key, f"received {received_value(received)}, must be {wanted(annotation, received)}")


def places_of(section: type[Section], value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yields the paths of all keys below a section, with the parameters of the names that a value chooses."""
    value = value if isinstance(value, Mapping) else {}
    here = section.chosen(value) or section
    for key in here.model_fields:
        below = here.child(key)
        yield (*path, key)
        if below is not None and not below.listed:
            yield from places_of(below, value.get(key), (*path, key))


def _unknown_key(owner: type[Section], key: Any) -> str:
    whose = f" for {owner.picked}" if owner.picked else ""
    space = "; YAML needs a space after the colon" if ":" in str(key) else ""
    choices = nearest_choices(key, owner.model_fields)
    hint = "" if "did you mean" in choices else _hint_below(owner, str(key))
    return f"unknown key{whose}; {choices}{hint}{space}"


def _hint_below(owner: type[Section], key: str) -> str:
    """Suggests the keys deeper down that are called like an unknown key, or nearly so."""
    places = list(places_of(owner, {}))
    meant = SYNONYMS.get(key) or next(iter(difflib.get_close_matches(key, [str(p[-1]) for p in places], 1, 0.8)), None)
    found = [repr(dotted_path(place)) for place in places if place[-1] == meant]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _section_at(section: type[Section], value: Any, path: Sequence[Any]) -> type[Section]:
    here = (section.chosen(value) or section) if isinstance(value, Mapping) else section
    below = here.child(str(path[0])) if path else None
    if below is None:
        return here
    return _section_at(below, value.get(path[0]) if isinstance(value, Mapping) else None, path[1:])


def _value_at(section: type[Section], value: Any, path: Sequence[Any]) -> tuple[KeyPath, Any]:
    """The path down to the first key that is no section, and the value of that key."""
    key, *rest = path
    below = _section_at(section, value, ()).child(str(key))
    if below is None or not rest or not isinstance(value[key], Mapping):
        return (key,), value[key]
    within, found = _value_at(below, value[key], rest)
    return (key, *within), found


def _annotation_at(section: type[Section], value: Any, path: Sequence[Any]) -> Any:
    return _section_at(section, value, path[:-1]).model_fields[str(path[-1])].rebuild_annotation()


def _wanted_at(section: type[Section], value: Any, path: Sequence[Any]) -> str:
    owner = _section_at(section, value, path[:-1]) if path else section
    below = owner.child(str(path[-1])) if path else section
    if below is not None and not below.listed:
        return f"a mapping of {', '.join(below.model_fields)}"
    return wanted(_annotation_at(section, value, path))


def refused(place: tuple[str, ...], text: str, value: Any) -> ValidationError:
    """Builds the error that a section's own check raises about the value at a place within the section."""
    kind = PydanticCustomError("refused", "{text}", {"text": text})
    return ValidationError.from_exception_data("", [InitErrorDetails(type=kind, loc=place, input=value)])
