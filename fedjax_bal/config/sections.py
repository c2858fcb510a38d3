"""Base classes of configuration sections: validated as a whole, immutable, merged key by key."""

import dataclasses
import difflib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, LiteralString, Self, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, create_model, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import InitErrorDetails, PydanticCustomError

from fedjax_bal.annotations import allowed_names, describe, parameters, parse_argument_docs
from fedjax_bal.config.problems import KeyPath, Problem, dotted_path, nearest_choices, received_value
from fedjax_bal.validate import suggestion

SYNONYMS = {"lr": "learning_rate", "epochs": "local_epochs", "steps": "local_steps", "wd": "weight_decay"}
"""Names of keys in other libraries -> their names here."""
_MEANT = {
    **dict.fromkeys(("num_clients", "n_clients"), "partition.clients"),
    **dict.fromkeys(("batch", "bs"), "training.batch_size"),
    **dict.fromkeys(("num_rounds", "n_rounds"), "training.rounds"),
    **dict.fromkeys(("dirichlet", "lda"), "partition=dirichlet alpha=0.1"),
    **dict.fromkeys(("iid", "natural"), "partition=iid or partition=natural"),
    "plugin": "the option --plugin FILE",
}
"""Keys that users try, and no other rule finds -> what they mean."""
_MOST_REPEATED = 10  # values of a list in advice


class Section(BaseModel):
    """A frozen mapping of known keys; other keys are rejected.

    Attributes:
        registry: package and name of the registry with the values of `choice`, imported when needed, since these
            packages import jax.
        choice: the key whose value decides which other keys are allowed; None for no such key.
        choice_value: the value of `choice` that this class is for; None for the class for all values.
        listed: whether the section is an entry of a list.
        renewed: keys of all choices whose value is for one choice alone: another choice must come with its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, protected_namespaces=())

    registry: ClassVar[str] = ""
    choices_kind: ClassVar[str] = ""  # of the choices in `fedjax-bal list`
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
    def _validate_once(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Validates with the class of the choice, and rewords pydantic's errors, except those of nested sections."""
        if isinstance(value, Section):
            return cast(Self, value)  # checked before
        if not isinstance(value, Mapping):
            raise refused(f"received {received_value(value)}, must be a mapping of {', '.join(cls.model_fields)}")
        kind: Any = cls.class_for(value)
        if kind is None:  # the choice is unknown, and so are its parameters
            value = {key: value[key] for key in value if key in cls.common()}
        elif kind is not cls:
            return kind.model_validate(value)
        try:
            return handler(dict(value))._check()
        except ValidationError as error:
            worded = [_in_words(cls, value, dict(detail)) for detail in error.errors(include_url=False)]
            raise ValidationError.from_exception_data("", worded) from None


def refused(text: str, *path: str | int) -> ValidationError:
    """Builds the error of a rejected value at a path within the section that is being validated."""
    return ValidationError.from_exception_data("", [_detail("refused", text, path)])


def _detail(kind: LiteralString, text: str, path: tuple[str | int, ...]) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError(kind, "{text}", {"text": text}), loc=path, input=None)


def _in_words(section: type[Section], value: Mapping[str, Any], detail: dict[str, Any]) -> InitErrorDetails:
    """Rewords an error of pydantic in a section: the value received and the values allowed."""
    kind = detail["type"]
    path = detail["loc"]
    if kind in ("refused", "unknown"):  # worded already, by a nested section or by `_check`
        return _detail(kind, detail["msg"], path)
    if kind in ("extra_forbidden", "invalid_key"):
        return _detail("unknown", _unknown_key(section, str(path[0]), value), path)
    key = path[0]  # an error inside a value is reported for the whole value
    annotation = section.model_fields[key].rebuild_annotation()
    if kind == "missing":
        return _detail("refused", f"missing, must be {describe(annotation)}", (key,))
    received = value.get(key, detail["input"])
    names = allowed_names(annotation)
    rule = f", must be {describe(annotation, received)}"
    if names:
        kind = section.choices_kind if key == section.choice else ""
        rule = f"; {nearest_choices(received, names.names(), names.also(), kind)}"
    scalars = isinstance(received, list) and all(isinstance(item, str | int | float) for item in received)
    if scalars and 1 < len(received) <= _MOST_REPEATED and "list" not in rule:
        rule += f"; values to compare go without brackets on the command line: {key}={','.join(map(str, received))}"
    if isinstance(received, Mapping) and {"from", "to"} <= received.keys():
        rule += f"; a range is for an axis in a file: sweep: [{{{key}: {{from: ..., to: ..., steps: ...}}}}]"
    return _detail("refused", f"received {received_value(received)}{rule}", (key,))


def _unknown_key(section: type[Section], key: str, value: Mapping[str, Any]) -> str:
    of_choice = f" for {section.choice_value}" if section.choice_value else ""
    space = "; YAML needs a space after the colon" if ":" in key else ""
    hint = nearest_choices(key, section.model_fields)
    if key in _MEANT and "methods" in section.model_fields:
        hint = f"did you mean {_MEANT[key]}? {nearest_choices('', section.model_fields)}"
    elif not suggestion(key, section.model_fields):  # the key may belong to a nested section
        paths = list(key_paths(section, {}))
        near = difflib.get_close_matches(key, [*(str(path[-1]) for path in paths), *SYNONYMS], 1, 0.8)
        name = key if key in SYNONYMS else next(iter(near), "")
        meant = [path for path in paths if path[-1] == SYNONYMS.get(name, name)]
        below = " or ".join(repr(dotted_path(path)) for path in meant)
        if name in SYNONYMS and name != key:
            below = repr(name)
        lacking = name == key and [path for path in meant if path not in key_paths(section, value)]
        if lacking:  # a parameter of another choice
            *above, last = lacking[0]
            kind: Any = section
            for name in above:
                kind = kind.child(name)
            change = f"{dotted_path(above)}={kind.class_for({}).choice_value} {last}={received_value(value[key])}"
            hint = f"{_choice_at(section, value, lacking[0])} has no {key}; {change} chooses one that has it; {hint}"
        elif meant:
            hint = f"did you mean {below}? {hint}"
    return f"unknown key{of_choice}; {hint}{space}"


def _choice_at(section: type[Section], value: Any, path: KeyPath) -> str:
    """Names the choice of the section that contains a key, such as `partition.scheme iid`."""
    inside: type[Section] | None = section
    for key in path[:-1]:
        inside = inside and inside.child(str(key))
        value = value.get(key) if isinstance(value, Mapping) else None
    choice = str(inside and inside.choice)
    return f"{dotted_path((*path[:-1], choice))} {value.get(choice) if isinstance(value, Mapping) else ''}".strip()


class Variant(Section):
    """A section with a key, `choice`, whose value decides which parameters it also has.

    A subclass declares the keys that all its choices share.

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
    """A section with the options of a dataclass, `options_type`, as keys; `option_keys` maps its fields to keys."""

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


S = TypeVar("S", bound=OptionsSection)


def with_options(
    options: type, names: Mapping[str, str | None] = {}, before: Mapping[str, str] = {}
) -> Callable[[type[S]], type[S]]:
    """Adds a key for each option of a dataclass to the keys that a section declares.

    Args:
        options: the dataclass. A key that the section declares keeps that declaration; a field whose type YAML can't
            express gets no key.
        names: field -> key, where they differ; None for no key.
        before: other key of the section -> the option that it precedes; by default they follow all options. The order
            of keys is part of a configuration's text, by which run folders and checkpoints identify it.

    Returns:
        A decorator of sections.
    """

    def add(section: type[S]) -> type[S]:
        keys = {field.name: names.get(field.name, field.name) for field in dataclasses.fields(options)}
        added: dict[str, Any] = {
            key: field
            for name, field in parameters(options).items()
            if (key := keys[name]) is not None and key not in section.model_fields
        }
        naming = {"__module__": section.__module__, "__doc__": section.__doc__}
        made: type[S] = create_model(section.__name__, __base__=section, **naming, **added)
        made.options_type = options
        made.option_keys = {name: key for name, key in keys.items() if key in made.model_fields}

        # Keys are reordered, since pydantic puts the declared ones first.
        fields = dict(made.model_fields)
        options_first = [*made.option_keys.values(), *fields]
        order = [key for option in options_first for key in (*(k for k in before if before[k] == option), option)]
        made.model_fields.clear()
        made.model_fields.update({key: fields[key] for key in dict.fromkeys(order)})
        made.model_rebuild(force=True)
        return made

    return add


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


def merge_sections(section: type[Section], base: Any, patch: Any) -> Any:
    """Merges `patch` into `base` recursively; both describe `section`.

    Choosing another name (an optimizer, a partition scheme) drops the parameters of the previous one.

    Example:
        >>> from fedjax_bal.config.schema import AvailabilitySection
        >>> merge_sections(AvailabilitySection, {"name": "bernoulli", "p": 0.5}, {"name": "always"})
        {'name': 'always'}
    """
    if not isinstance(base, Mapping) or not isinstance(patch, Mapping):
        return patch
    merged = dict(base)
    if section.choice in patch:
        merged = choose_variant(section, base, patch[section.choice])
    for key, value in patch.items():
        below = section.child(key)
        merged[key] = merge_sections(below, merged[key], value) if below and key in merged else value
    return merged


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


def choose_variant(section: type[Section], value: Mapping[str, Any], name: Any) -> dict[str, Any]:
    """Returns a section's mapping with another choice, without the parameters of the previous one.

    Example:
        >>> from fedjax_bal.config.schema import LocalOptimizerSection
        >>> choose_variant(LocalOptimizerSection, {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}, "adam")
        {'name': 'adam', 'learning_rate': None}
    """
    key = str(section.choice)
    field = section.model_fields.get(key)
    before = value.get(key, field.default if field else None)
    if before == name:
        return {**value, key: name}
    kept = {k: v for k, v in value.items() if k in section.common()}
    return {**kept, key: name, **dict.fromkeys(section.renewed)}


def to_plain(value: Any) -> Any:
    """Converts a section with all its defaults to mappings and lists that YAML can write, in the schema's order."""
    if isinstance(value, Section):
        return {key: to_plain(getattr(value, key)) for key in type(value).model_fields}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, list | tuple) else value


def key_paths(section: type[Section], value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yields the paths of all keys below a section, including the parameters of the choices that a value makes."""
    value = value if isinstance(value, Mapping) else {}
    here = section.class_for(value) or section
    for key in here.model_fields:
        below = here.child(key)
        yield (*path, key)
        if below is not None and not below.listed:
            yield from key_paths(below, value.get(key), (*path, key))
