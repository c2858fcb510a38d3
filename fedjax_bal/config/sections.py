"""Base classes of a configuration's sections: frozen pydantic models, whose further keys may depend on a name."""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, create_model, field_validator, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import InitErrorDetails, PydanticCustomError

from fedjax_bal.annotations import allowed_names, describe_type, parameters, parse_argument_docs
from fedjax_bal.config.errors import KeyPath, Problem, nearest_choices, received_value

_MOST_REPEATED = 10  # values of a list in advice


class Section(BaseModel):
    """A frozen mapping of known keys; other keys are rejected.

    Attributes:
        registry: package and name of the registry with the values of `choice`, imported when needed, since these
            packages import jax.
        choices_kind: what `fedjax-bal list` calls the values of `choice`.
        choice: the key whose value decides which other keys are allowed; None for no such key.
        choice_value: the value of `choice` that this class is for; None for the class for all values.
        listed: whether the section is an entry of a list.
        renewed: keys of all choices whose value is for one choice alone: another choice must come with its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, protected_namespaces=())

    registry: ClassVar[str] = ""
    choices_kind: ClassVar[str] = ""
    choice: ClassVar[str | None] = None
    choice_value: ClassVar[str | None] = None
    listed: ClassVar[bool] = False
    renewed: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def choices(cls) -> Mapping[str, Any]:
        """Returns the values of the key `choice` by name."""
        package, _, name = cls.registry.partition(".")
        return getattr(importlib.import_module(f"fedjax_bal.{package}"), name) if name else {}

    @classmethod
    def completed(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Adds what the values of some keys imply for others, before the section is validated."""
        return value

    @classmethod
    def class_for(cls, value: Mapping[str, Any]) -> "type[Section] | None":
        """Returns the class that validates a value: this one, or that of its choice; None for an unknown choice."""
        del value
        return cls

    @classmethod
    def default(cls) -> Self:
        """Builds the section with its defaults."""
        return cls.model_validate({})

    @classmethod
    def common(cls) -> frozenset[str]:
        """Returns the keys that all choices share: those of the class that a choice's class extends."""
        declared: Any = cls.__base__ if cls.choice_value else cls
        return frozenset(declared.model_fields)

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """Returns the meaning of each key, from the docstrings of this class and its base classes."""
        return {key: text for kind in reversed(cls.__mro__) for key, text in parse_argument_docs(kind).items()}

    @classmethod
    @functools.cache
    def child(cls, key: str) -> "type[Section] | None":
        """Returns the class of the section at a key; None for any other key."""
        field = cls.model_fields.get(key)
        below = field.annotation if field else None
        kinds = [below, *get_args(below)]  # also of `Section | None`
        return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)

    def _check(self) -> Self:
        """Checks values against each other, once each is valid; returns the section, or raises `refused`."""
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _validate(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Any:
        if isinstance(value, Section):
            return value  # checked before
        if not isinstance(value, Mapping):
            raise refused(f"received {received_value(value)}, must be a mapping of {', '.join(cls.model_fields)}")
        value = cls.completed(value)
        kind = cls.class_for(value)
        if kind is None:  # the choice is unknown, and so are its parameters
            kept = (key for key in value if key in cls.common())
            value = {key: value[key] for key in kept if key not in cls.renewed or value[key] is not None}
        elif kind is not cls:
            return kind.model_validate(value)
        try:
            return handler(dict(value))._check()
        except ValidationError as error:
            details = [cls._named(dict(detail)) for detail in error.errors(include_url=False)]
            raise ValidationError.from_exception_data("", details) from None

    @classmethod
    def _named(cls, detail: dict[str, Any]) -> InitErrorDetails:
        """Adds to pydantic's report of a missing or unknown key what the section knows; others are complete."""
        path = detail["loc"]
        key = str(path[0]) if path else ""
        if detail["type"] == "missing":
            return _detail(f"missing{cls._rule(key)}", path)
        if detail["type"] not in ("extra_forbidden", "invalid_key"):
            return _detail(detail["msg"], path, detail["type"])
        of_choice = f" for {cls.choice_value}" if cls.choice_value else ""
        space = "; YAML needs a space after the colon" if ":" in key else ""
        return _detail(f"unknown key{of_choice}; {nearest_choices(key, cls.model_fields)}{space}", path, "unknown")

    @field_validator("*", mode="wrap")
    @classmethod
    def _refuse(cls, value: Any, handler: Callable[[Any], Any], info: Any) -> Any:
        """Says what a key received and what it may be; pydantic would report each member of a union by itself."""
        key = info.field_name
        try:
            return handler(value)
        except ValidationError:
            below = cls.child(key)
            if below is not None and not below.listed:
                raise
        rule = cls._rule(key, value)
        scalars = isinstance(value, list) and all(isinstance(item, str | int | float) for item in value)
        if scalars and 1 < len(value) <= _MOST_REPEATED and "list" not in rule:
            axis = f"{key}={','.join(map(str, value))}"
            rule += f"; values to compare go without brackets on the command line: {axis}"
        if isinstance(value, Mapping) and {"from", "to"} <= value.keys():
            rule += f"; a range is for an axis in a file: sweep: [{{{key}: {{from: ..., to: ..., steps: ...}}}}]"
        text = f"received {received_value(value)}{rule}"
        raise PydanticCustomError("refused", "{text}", {"text": text})

    @classmethod
    def _rule(cls, key: str, value: Any = None) -> str:
        """Says what a key may be: the nearest of its names, or the range of its values."""
        annotation = cls.model_fields[key].rebuild_annotation()
        names = allowed_names(annotation)
        if names is None:
            return f", must be {describe_type(annotation, value)}"
        kind = cls.choices_kind if key == cls.choice else ""
        return f"; {nearest_choices('' if value is None else value, names.names(), names.also(), kind)}"


def refused(text: str, *path: str | int) -> ValidationError:
    """Builds the error of a rejected value at a path within the section that is being validated."""
    return ValidationError.from_exception_data("", [_detail(text, path)])


def _detail(text: str, path: tuple[str | int, ...], kind: Any = "refused") -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError(kind, "{text}", {"text": text}), loc=path, input=None)


class Variant(Section):
    """A section with a key, `choice`, whose value decides which parameters it also has.

    A subclass declares the keys that all its choices share. The class of a choice is made when it is first needed:
    pydantic's unions need all of them at once, but the names are in registries, to which plug-ins add.

    Example:
        >>> from fedjax_bal.config.schema import AvailabilitySection
        >>> AvailabilitySection.model_validate({"name": "bernoulli", "p": 0.5}).parameters
        {'p': 0.5}
    """

    choice: ClassVar[str | None] = "name"

    @classmethod
    def function_of(cls, name: str) -> Callable[..., Any]:
        """Returns the function whose docstring describes the parameters of a choice; by default the choice itself."""
        return cls.choices()[name]

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """Returns the fields that a choice adds, for `create_model`; by default its function's parameters."""
        return parameters(cls.function_of(name))

    @classmethod
    def class_for(cls, value: Mapping[str, Any]) -> type[Section] | None:
        """Returns the class with the parameters of the choice; None for an unknown choice."""
        if cls.choice_value:
            return cls
        name = value.get(str(cls.choice), cls.model_fields[str(cls.choice)].default)
        if not isinstance(name, str) or name not in cls.choices():
            return None
        return variant(cls, name, tuple(cls.parameters_of(name).items()))

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the choice, without the keys that all choices share."""
        return {key: getattr(self, key) for key in type(self).model_fields if key not in self.common()}


@functools.lru_cache(maxsize=256)
def variant(base: type[Section], name: str, parameters: tuple[tuple[str, Any], ...]) -> type[Section]:
    """Creates a section's class with the parameters of a choice."""
    # Cached, since creating a class is slow, and sections are equal only if they have the same class.
    made = create_model(f"{base.__name__}_{name}", __base__=base, **dict(parameters))
    made.choice_value = name
    return made


class OptionsSection(Section):
    """A section with the options of a dataclass as keys: `options_type`, `option_keys` maps its fields to keys."""

    option_keys: ClassVar[Mapping[str, str]] = {}
    options_type: ClassVar[type | None] = None

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """Returns the meaning of each key; an option's comes from the docstring of its dataclass."""
        texts = parse_argument_docs(cls.options_type)
        return {key: texts.get(field, "") for field, key in cls.option_keys.items()} | super().meanings()

    def arguments(self, **others: Any) -> dict[str, Any]:
        """Returns the options by field name, with `others` in place of some."""
        return {field: getattr(self, key) for field, key in self.option_keys.items()} | others


def options_section(
    options: type, names: Mapping[str, str | None] = {}, before: Mapping[str, tuple[str, ...]] = {}
) -> type[OptionsSection]:
    """Creates the base class of a section, with a key for each option of a dataclass.

    Args:
        options: the dataclass.
        names: field -> key, where they differ; None for no key.
        before: option -> the keys before it, which the section itself declares; its other keys come last.
    """
    checked = parameters(options)
    fields: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for field in dataclasses.fields(options):
        key = names.get(field.name, field.name)
        fields |= dict.fromkeys(before.get(field.name, ()), (Any, None))
        if key is not None:
            keys[field.name] = key
            fields[key] = checked.get(field.name, (Any, None))  # YAML can't express it: the section declares the key
    made = create_model(options.__name__, __base__=OptionsSection, **fields)
    made.options_type = options
    made.option_keys = keys
    return made


def check_section(section: type[Section], value: Any, path: KeyPath = ()) -> tuple[Any, list[Problem]]:
    """Validates a value as a section; returns the section and no problems, or None and all problems.

    Args:
        section: the section's class.
        value: the value in the file.
        path: the keys that lead to it in the file.

    Example:
        >>> class Dataset(Section):
        ...     name: str
        >>> check_section(Dataset, {"nme": "mnist", "name": "mnist"}, ("dataset",))[1][0].text
        "unknown key; did you mean 'name'? allowed: name"
    """
    try:
        return section.model_validate(value), []
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems = [Problem((*path, *each["loc"]), each["msg"], unknown=each["type"] == "unknown") for each in details]
        return None, list(dict.fromkeys(problems))


def to_plain(value: Any) -> Any:
    """Converts a section with all its defaults to mappings and lists that YAML can write, in the schema's order."""
    if isinstance(value, Section):
        return {key: to_plain(getattr(value, key)) for key in type(value).model_fields}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, list | tuple) else value


def without_defaults(section: type[Section], value: Any) -> Any:
    """Removes keys that have their defaults, at every level; a choice stays if any other key of its section does.

    Args:
        section: the section's class.
        value: the section as a plain mapping, which may be invalid.

    Example:
        >>> from fedjax_bal.config.schema import AvailabilitySection, SelectionSection
        >>> without_defaults(SelectionSection, {"name": "uniform", "clients_per_round": 7})
        {'name': 'uniform', 'clients_per_round': 7}
        >>> without_defaults(AvailabilitySection, {"name": "always"})
        {}
    """
    chosen = section.class_for(value) if isinstance(value, Mapping) else None
    if chosen is None:
        return value
    kept = {}
    for key, item in value.items():
        field = chosen.model_fields.get(key)
        below = chosen.child(key)
        if field and not field.is_required() and to_plain(field.get_default(call_default_factory=True)) == item:
            continue
        plain = without_defaults(below, item) if below else item
        if plain or not below:
            kept[key] = plain
    return {section.choice: value[section.choice], **kept} if kept and section.choice in value else kept
