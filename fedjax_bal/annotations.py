"""Annotations of values: declared here once, described in words, and checked by pydantic.

Library options, configuration sections, hyperparameters of recipes and arguments of partitioners and selectors declare
their values as annotations; all are read from signatures and checked here.
"""

import dataclasses
import functools
import inspect
import math
import operator
import os
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import docstring_parser
import numpy as np
from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import (
    AfterValidator,
    AllowInfNan,
    BeforeValidator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import CoreSchema, core_schema

from fedjax_bal.validate import LARGEST, array_hint, check_generator, checked_labels, one_of, suggestion, vanishes

P = ParamSpec("P")
R = TypeVar("R")

LARGEST_INTEGER = 2**31 - 1


def _whole(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    try:  # NumPy's integers
        return operator.index(value)
    except TypeError:
        return value


def _not_vanishing(value: float) -> float:
    if vanishes(value):
        raise ValueError
    return value


def _distinct(items: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(items)) < len(items):
        raise ValueError
    return items


def _pairs(value: Any) -> Any:
    """Converts a mapping to hashable pairs; keys from YAML, which are text, become numbers."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise ValueError
    return [(float(key) if isinstance(key, str) else key, item) for key, item in pairs]


# 2.0 is accepted as 2; booleans and text are not accepted as numbers. Ranges are those of 32-bit numbers.
Integer = Annotated[int, BeforeValidator(_whole), Strict(), Ge(-LARGEST_INTEGER), Le(LARGEST_INTEGER)]
Number = Annotated[float, Strict(), AllowInfNan(False), Ge(-LARGEST), Le(LARGEST), AfterValidator(_not_vanishing)]
Switch = Annotated[bool, Strict()]
Text = Annotated[str, Strict(), MinLen(1)]

CountOrZero = Annotated[Integer, Ge(0)]
Count = Annotated[Integer, Ge(1)]
Seed = Annotated[int, BeforeValidator(_whole), Strict(), Ge(0), Le(2**32 - 1)]
NonNegative = Annotated[Number, Ge(0)]
Positive = Annotated[Number, Gt(0)]
Factor = Annotated[Number, Ge(1)]
Share = Annotated[Number, Ge(0), Le(1)]
BelowOne = Annotated[Number, Ge(0), Lt(1)]
PositiveShare = Annotated[Number, Gt(0), Le(1)]
ProperShare = Annotated[Number, Gt(0), Lt(1)]
DISTINCT = AfterValidator(_distinct)
PAIRS = BeforeValidator(_pairs, json_schema_input_type=dict[str, float] | list[tuple[float, float]])


@dataclasses.dataclass(frozen=True)
class ParsedBy:
    """Annotation of values parsed by `read`, which raises ValueError or TypeError for an invalid one."""

    wanted: str
    read: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Builds a schema that validates with `read`."""
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describes the allowed values in words."""
        return {"description": f"must be {self.wanted}"}

    def _read(self, value: Any) -> Any:
        try:
            return self.read(value)
        except TypeError as error:
            raise ValueError from error


@dataclasses.dataclass(frozen=True)
class TextMatching(ParsedBy):
    """Annotation of text; `read` is a predicate that is true of valid text.

    Example:
        >>> check("place", Annotated[str, TextMatching("a digit", str.isdigit)], "7")
        '7'
    """

    def accepts(self, value: Any) -> bool:
        """Returns whether a value is valid text."""
        return isinstance(value, str) and bool(self.read(value))

    def _read(self, value: Any) -> str:
        if not self.accepts(value):
            raise ValueError
        return value


FILE = Annotated[str, TextMatching("the path of a file or folder", lambda text: text.strip() and "\0" not in text)]


@dataclasses.dataclass(frozen=True)
class ShortForm:
    """Annotation of lists with a short form, which `wanted` describes; it is expanded before validation."""

    wanted: str


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Annotation of names that are looked up at validation; `also` maps aliases to names, for messages."""

    names: Callable[[], Iterable[str]]
    also: Callable[[], Mapping[str, str]] = dict

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Builds a schema that rejects other names."""
        return core_schema.no_info_plain_validator_function(self._one_of_them)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Builds a schema that lists the names and their aliases."""
        return {"enum": sorted({*self.names(), *self.also()})}

    def _one_of_them(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.names():
            raise ValueError
        return value


def validator_type(annotation: Any, default: Any = inspect.Parameter.empty) -> Any:
    """Returns the type that validates a parameter, from its annotation or else from its default.

    Members of a union that YAML can't express (a function, a dtype) are left out; returns None if no member remains.

    Example:
        >>> describe_type(validator_type(int | None)), validator_type(Callable)
        ('an integer, or null', None)
    """
    if isinstance(default, type) and default is not inspect.Parameter.empty:
        return None  # a dtype, say
    members = _members(annotation)
    kinds = [kind for kind in map(_strict, members) if kind is not None] or [_strict(type(default))]
    if FILE in kinds and Text in kinds:
        kinds.remove(Text)
    if Number in kinds:  # optax annotates numbers as unions of all numeric types
        kinds = [kind for kind in kinds if kind not in (Switch, Integer)]
    if default is None or types.NoneType in members:
        kinds.append(None)
    return None if kinds[0] is None else Union[tuple(kinds)]  # noqa: UP007


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _strict(annotation: Any) -> Any:
    if annotation is os.PathLike or get_origin(annotation) is os.PathLike:
        return FILE
    if annotation in (bool, int, float, str):
        return {bool: Switch, int: Integer, float: Number, str: Text}[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated and any(isinstance(note, Strict) for note in arguments):  # a type of this module
        return annotation
    if origin is Annotated:
        base = _strict(arguments[0])
        return None if base is None else Annotated[(base, *arguments[1:])]
    if origin is Literal and all(isinstance(name, str) for name in arguments):
        return annotation
    if origin in (list, tuple, Sequence) and (item := _strict(arguments[0])) is not None:
        return Annotated[tuple[item, ...], MinLen(1)]
    if origin is Mapping and arguments == (float, float):
        return Annotated[tuple[tuple[Number, Number], ...], PAIRS, MinLen(1)]
    if origin is dict and arguments == (int, float):
        return Annotated[tuple[tuple[CountOrZero, NonNegative], ...], PAIRS, MinLen(1)]
    return None


# A parameter for pydantic's create_model: its annotation and its default (... if it is required).
Field = tuple[Any, Any]

# Ranges by parameter name, since the annotations of optax and others don't state them.
_RANGES = {"momentum": BelowOne, "seed": Seed}


def signature(function: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature of a function or class; annotations that only type checkers can read stay text."""
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:
        return inspect.signature(function)
    except (TypeError, ValueError):
        raise ValueError(f"received {function!r:.80}, must be a function") from None


def parameters(function: Callable[..., Any], skip: Collection[str] = ()) -> dict[str, Field]:
    """Returns the parameters of a function that a configuration can set: annotation and default by name.

    A parameter whose type YAML can't express (a function, a dtype) is left out. A momentum that defaults to None gets
    the default 0.

    Args:
        function: a function or a class.
        skip: parameters to leave out.

    Example:
        >>> def dirichlet(rng, alpha: float, min_size: int = 10): ...
        >>> fields = parameters(dirichlet, skip=["rng"])
        >>> sorted(fields), fields["min_size"][1]
        (['alpha', 'min_size'], 10)
    """
    fields = {}
    for name, parameter in signature(function).parameters.items():
        if name in skip or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kind = _RANGES.get(name) or validator_type(parameter.annotation, parameter.default)
        default = 0.0 if name == "momentum" and parameter.default is None else parameter.default
        if kind is not None:
            fields[name] = (kind, ... if default is parameter.empty else default)
    return fields


def parse_argument_docs(thing: Any) -> dict[str, str]:
    """Parses the descriptions of arguments or attributes, by name, from the docstring of a function or class.

    Example:
        >>> parse_argument_docs(parameters)["function"]
        'a function or a class.'
    """
    parsed = docstring_parser.parse(inspect.getdoc(thing) or "", style=docstring_parser.DocstringStyle.GOOGLE)
    return {each.arg_name: " ".join((each.description or "").split()) for each in parsed.params}


def describe_type(annotation: Any, value: Any = None) -> str:
    """Describes the values that an annotation allows, in words that complete "must be ...".

    Args:
        annotation: made of the types of this module.
        value: the value received; the bounds of 32 bits are mentioned only if it exceeds them.

    Example:
        >>> describe_type(Count), describe_type(Annotated[float, Ge(0), Lt(1)] | None)
        ('an integer of at least 1', 'a finite number of at least 0 and below 1, or null')
    """
    names, members = allowed_names(annotation), _members(annotation)
    if names:
        return f"one of {', '.join(sorted(names.names()))}"
    words = [", ".join(get_args(member)) for member in members if get_origin(member) is Literal]
    others = [_describe_one(member, value) for member in members if get_origin(member) is not Literal]
    return ", or ".join([*words, *others])


def _describe_one(kind: Any, value: Any) -> str:
    if kind in (types.NoneType, bool, str):
        return {types.NoneType: "null", bool: "true or false", str: "text"}[kind]
    base, *notes = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    for note in notes:
        if isinstance(note, ParsedBy):
            return note.wanted
    if base in (int, float):
        return _range(base, notes, value)
    if get_origin(base) is dict:
        return f"a mapping of names, each to {describe_type(get_args(base)[1])}"
    if get_origin(base) is not tuple:
        return _describe_one(base, value) if notes else "given"
    item = get_args(base)[0]
    if PAIRS in notes:
        return "a mapping, or a list of pairs, not empty, of {} to {}".format(*map(describe_type, get_args(item)))
    short = "".join(f"{note.wanted}, or " for note in notes if isinstance(note, ShortForm))
    distinct = " without repetition," if DISTINCT in notes else ""
    return f"{short}a list, not empty,{distinct} each item {describe_type(item)}"


def _range(base: type, notes: Sequence[Any], value: Any) -> str:
    what, limit, shown = ("an integer", LARGEST_INTEGER, str)
    if base is float:
        what, limit, shown = ("a finite number", LARGEST, "{:g}".format)
    if base is float and isinstance(value, float) and vanishes(value):
        return f"{what} that is not 0 in 32 bits; use 0 where that is allowed, or a larger one"
    beyond = isinstance(value, int | float) and limit < abs(value) < math.inf
    low: tuple[str, Any] = ("of at least", -limit)
    high: tuple[str, Any] = ("of at most", limit)
    for note in notes:  # the last ones are the narrowest
        if isinstance(note, Ge | Gt):
            low = ("of at least", note.ge) if isinstance(note, Ge) else ("above", note.gt)
        elif isinstance(note, Le | Lt):
            high = ("of at most", note.le) if isinstance(note, Le) else ("below", note.lt)
    bounds = [bound for bound in (low, high) if beyond or bound[1] not in (limit, -limit)]
    if [word for word, _ in bounds] == ["of at least", "of at most"]:
        return f"{what} from {shown(low[1])} to {shown(high[1])}"
    return " ".join([what, " and ".join(f"{word} {shown(number)}" for word, number in bounds)]).rstrip()


def allowed_names(annotation: Any) -> OneOf | None:
    """Returns the names that an annotation allows, with or without null; None if it allows other values."""
    first, *others = [member for member in _members(annotation) if member is not types.NoneType]
    if others:
        return None
    if get_origin(first) is Literal:
        return OneOf(lambda: get_args(first))
    notes = get_args(first)[1:] if get_origin(first) is Annotated else ()
    return next((note for note in notes if isinstance(note, OneOf)), None)


def check(name: str, annotation: Any, value: Any) -> Any:
    """Validates a value and converts it to its type (2.0 to an integer); raises `ValueError` if it is invalid.

    Example:
        >>> check("rounds", Count, 0)
        Traceback (most recent call last):
        ValueError: rounds: received 0, must be an integer of at least 1
    """
    try:
        return _adapter(annotation).validate_python(value)
    except ValidationError:
        names = allowed_names(annotation)
        if names:
            one_of(name, value, names.names())
        raise ValueError(
            f"{name}: received {value!r}, must be {describe_type(annotation, value)}{array_hint(value)}"
        ) from None


def check_fields(options: Any, prefix: str = "") -> None:
    """Validates and converts the fields of a dataclass by their annotations.

    Fields of types that YAML can't express are skipped. Messages begin with the prefix and the field's name.
    """
    for name, kind in _kinds(type(options)).items():
        object.__setattr__(options, name, check(prefix + name, kind, getattr(options, name)))


@functools.cache
def _kinds(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: kind for name, (kind, _) in parameters(function).items()}


@functools.cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def suggesting(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function so that the `TypeError` for an argument that it doesn't have suggests the right name.

    Example:
        >>> @suggesting
        ... def read(path, label): ...
        >>> read("mine.csv", labels="kind")
        Traceback (most recent call last):
        TypeError: read() got an unexpected keyword argument 'labels'; did you mean 'label'?
    """
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                near = suggestion(name, known)
                text = f"{function.__name__}() got an unexpected keyword argument {name!r}; "
                raise TypeError(text + (near or f"it takes {', '.join(known)}"))
        return function(*args, **kwargs)

    return call


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function so that it first validates and converts its arguments by their annotations.

    Configurations are validated by the same annotations. An argument `rng` must be a NumPy generator, and `labels` must
    be integers; arguments of types that YAML can't express are passed on unchecked.

    Example:
        >>> @checked
        ... def in_groups(clients: Count, size: Count = 2):
        ...     return clients // size
        >>> in_groups(7), in_groups(np.int64(7), 3.0)
        (3, 2)
        >>> in_groups(0)
        Traceback (most recent call last):
        ValueError: clients: received 0, must be an integer of at least 1
    """
    known = inspect.signature(function)

    @suggesting
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = known.bind(*args, **kwargs)
        kinds = _kinds(function)
        for name, value in bound.arguments.items():
            if name == "rng":
                check_generator(value)
            elif name == "labels":
                bound.arguments[name] = checked_labels(value)
            elif name in kinds:
                if isinstance(value, np.ndarray | np.generic):
                    value = value.tolist()
                elif isinstance(value, os.PathLike):
                    value = os.fspath(value)
                bound.arguments[name] = check(name, kinds[name], value)
        return function(*bound.args, **bound.kwargs)

    return call
