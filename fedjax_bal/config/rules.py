"""What a single value may be: small checkers that say in words what they want."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Protocol

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

LARGEST = 2**31 - 1


class ValueRule(Protocol):
    """A checker: it gives the value back, perhaps converted, or raises `refusal(wanted)`."""

    @property
    def wanted(self) -> str:
        """The rule in words, to complete "must be ..."."""
        ...

    def __call__(self, value: Any, /) -> Any:
        """The value, when it is allowed."""
        ...


def refusal(wanted: str) -> PydanticCustomError:
    """The error of a value that isn't what was wanted.

    Args:
        wanted: completes "must be ...".

    Returns:
        The error, to be raised.

    Example:
        >>> refusal("true or false").context
        {'wanted': 'true or false'}
    """
    return PydanticCustomError("wanted", "must be {wanted}", {"wanted": wanted})


@dataclasses.dataclass(frozen=True)
class Whole:
    """An integer in a closed range; 2.0 counts as 2, true doesn't count as 1.

    Attributes:
        low: the smallest allowed.
        high: the largest allowed.

    Example:
        >>> Whole(1)(2.0), Whole(1).wanted
        (2, 'an integer of at least 1')
    """

    low: int = -LARGEST
    high: int = LARGEST

    @property
    def wanted(self) -> str:
        """The rule in words."""
        if self.low == -LARGEST:
            return "an integer"
        return (
            f"an integer of at least {self.low}"
            if self.high == LARGEST
            else f"an integer from {self.low} to {self.high}"
        )

    def __call__(self, value: Any) -> int:
        """The value as an integer."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise refusal(self.wanted)
        if not self.low <= value <= self.high:
            raise refusal(f"an integer from {self.low} to {self.high}" if value > self.high else self.wanted)
        return value


@dataclasses.dataclass(frozen=True)
class Real:
    """A finite number in a range.

    Attributes:
        low: the lower end.
        high: the upper end.
        above: the lower end itself is not allowed.
        below: the upper end itself is not allowed.

    Example:
        >>> Real(0, 1, above=True)(1), Real(0, 1, above=True).wanted
        (1.0, 'a finite number above 0 and of at most 1')
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    @property
    def wanted(self) -> str:
        """The rule in words."""
        low = f"above {self.low:g}" if self.above else f"of at least {self.low:g}"
        high = f"below {self.high:g}" if self.below else f"of at most {self.high:g}"
        ends = [low] * (self.low > -math.inf) + [high] * (self.high < math.inf)
        return " ".join(["a finite number", " and ".join(ends)]).rstrip()

    def __call__(self, value: Any) -> float:
        """The value as a float."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise refusal(self.wanted)
        enough = value > self.low if self.above else value >= self.low
        little = value < self.high if self.below else value <= self.high
        if not (enough and little):
            raise refusal(self.wanted)
        return float(value)


@dataclasses.dataclass(frozen=True)
class Flag:
    """True or false.

    Example:
        >>> Flag()(True)
        True
    """

    wanted: str = "true or false"

    def __call__(self, value: Any) -> bool:
        """The value itself."""
        if not isinstance(value, bool):
            raise refusal(self.wanted)
        return value


@dataclasses.dataclass(frozen=True)
class Word:
    """A text that a test accepts.

    Attributes:
        wanted: the rule in words.
        accepts: the test.

    Example:
        >>> Word("a digit", str.isdigit)("7")
        '7'
    """

    wanted: str = "text"
    accepts: Callable[[str], Any] = bool

    def __call__(self, value: Any) -> str:
        """The value itself."""
        if not isinstance(value, str) or not self.accepts(value):
            raise refusal(self.wanted)
        return value


@dataclasses.dataclass(frozen=True)
class Readable:
    """Whatever a function reads.

    Attributes:
        wanted: the rule in words.
        read: gives the value, perhaps converted; raises ValueError or TypeError for one that is not allowed.

    Example:
        >>> Readable("a number in text", float)("0.5")
        0.5
    """

    wanted: str
    read: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        """The value as it was read."""
        try:
            return self.read(value)
        except (TypeError, ValueError):
            raise refusal(self.wanted) from None


@dataclasses.dataclass(frozen=True)
class Anything:
    """Whatever comes; somebody else looks at it.

    Attributes:
        wanted: what is expected, in words.

    Example:
        >>> Anything("a mapping")(3)
        3
    """

    wanted: str

    def __call__(self, value: Any) -> Any:
        """The value itself."""
        return value


@dataclasses.dataclass(frozen=True)
class OneOf:
    """One of some names.

    Attributes:
        names: the valid names, or what gives them when a value comes.
        also: gives what else is understood, and what it stands for; a message may point to these.

    Example:
        >>> OneOf(("fast", "plain")).wanted
        'one of fast, plain'
    """

    names: tuple[str, ...] | Callable[[], Iterable[str]]
    also: Callable[[], Mapping[str, str]] = dict

    @property
    def allowed(self) -> list[str]:
        """The valid names, sorted."""
        return sorted(self.names if isinstance(self.names, tuple) else self.names())

    @property
    def wanted(self) -> str:
        """The rule in words."""
        return f"one of {', '.join(self.allowed)}"

    def __call__(self, value: Any) -> str:
        """The value itself."""
        if not isinstance(value, str) or value not in self.allowed:
            raise PydanticCustomError("name", "unknown name", {"allowed": self.allowed, "also": self.also()})
        return value


@dataclasses.dataclass(frozen=True)
class OrNull:
    """A rule, or null.

    Attributes:
        rule: what holds for a value that isn't null.

    Example:
        >>> OrNull(Flag())(None), OrNull(Flag()).wanted
        (None, 'true or false, or null')
    """

    rule: ValueRule

    @property
    def wanted(self) -> str:
        """The rule in words."""
        return f"{self.rule.wanted}, or null"

    def __call__(self, value: Any) -> Any:
        """The value, checked unless null."""
        if value is None:
            return None
        try:
            return self.rule(value)
        except PydanticCustomError as error:
            if error.type != "wanted" or error.context is None:
                raise
            raise refusal(f"{error.context['wanted']}, or null") from None


@dataclasses.dataclass(frozen=True)
class Either:
    """A single value, or a list of such values.

    Attributes:
        one: what holds for a single value.
        several: what holds for a list.

    Example:
        >>> either = Either(Whole(1), ListOf(Whole(1)))
        >>> either(2), either([2, 3])
        (2, (2, 3))
    """

    one: ValueRule
    several: ValueRule

    @property
    def wanted(self) -> str:
        """The rule in words."""
        return f"{self.one.wanted}, or {self.several.wanted}"

    def __call__(self, value: Any) -> Any:
        """The value or the values."""
        try:
            return self.several(value) if isinstance(value, list | tuple) else self.one(value)
        except PydanticCustomError:
            raise refusal(self.wanted) from None


@dataclasses.dataclass(frozen=True)
class ListOf:
    """A list, each item under one rule.

    Attributes:
        rule: what holds for an item.
        distinct: no item may come twice.

    Example:
        >>> ListOf(Whole(0))([0, 1.0])
        (0, 1)
    """

    rule: ValueRule
    distinct: bool = False

    @property
    def wanted(self) -> str:
        """The rule in words."""
        return f"a list, not empty,{' without repetition,' if self.distinct else ''} each item {self.rule.wanted}"

    def __call__(self, value: Any) -> tuple[Any, ...]:
        """The items, as a tuple."""
        if not isinstance(value, list | tuple) or not value:
            raise refusal(self.wanted)
        try:
            items = tuple(self.rule(item) for item in value)
        except PydanticCustomError:
            raise refusal(self.wanted) from None
        if self.distinct and len(set(items)) < len(items):
            raise refusal(self.wanted)
        return items


@dataclasses.dataclass(frozen=True)
class Named:
    """A mapping of names to values.

    Attributes:
        value: what holds for a value.

    Example:
        >>> Named(Real(0, 1))({"fedavg": 0.5})
        {'fedavg': 0.5}
    """

    value: ValueRule

    @property
    def wanted(self) -> str:
        """The rule in words."""
        return f"a mapping of names, each to {self.value.wanted}"

    def __call__(self, value: Any) -> dict[str, Any]:
        """The mapping."""
        if not isinstance(value, Mapping) or not value:
            raise refusal(self.wanted)
        try:
            return {str(key): self.value(item) for key, item in value.items()}
        except PydanticCustomError:
            raise refusal(self.wanted) from None


@dataclasses.dataclass(frozen=True)
class MapOf:
    """A mapping of numbers to values, or the same as a list of pairs.

    Keys of YAML are text, which counts as the number that it spells.

    Attributes:
        key: what holds for a key.
        value: what holds for a value.

    Example:
        >>> MapOf(Real(0), Real(0))({"0.5": 31.5, 1: 1058}), MapOf(Real(0), Real(0))([[1, 2]])
        (((0.5, 31.5), (1.0, 1058.0)), ((1.0, 2.0),))
    """

    key: ValueRule
    value: ValueRule

    @property
    def wanted(self) -> str:
        """The rule in words."""
        return f"a mapping, or a list of pairs, not empty, of {self.key.wanted} to {self.value.wanted}"

    def __call__(self, value: Any) -> tuple[tuple[Any, Any], ...]:
        """The pairs, which unlike a mapping can be compared by their hash."""
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        whole = isinstance(pairs, list | tuple) and all(isinstance(pair, list | tuple) for pair in pairs)
        if not whole or not pairs or any(len(pair) != 2 for pair in pairs):
            raise refusal(self.wanted)
        try:
            return tuple((self.key(_number(key)), self.value(item)) for key, item in pairs)
        except PydanticCustomError:
            raise refusal(self.wanted) from None


def _number(key: Any) -> Any:
    """A text as the number that it spells, where it does."""
    try:
        return float(key) if isinstance(key, str) else key
    except ValueError:
        return key


@dataclasses.dataclass(frozen=True)
class WordOr:
    """A certain word, or a value under a rule.

    Attributes:
        rule: what holds for a value that isn't the word.
        word: the word.

    Example:
        >>> WordOr(Whole(1))("auto"), WordOr(Whole(1))(2), WordOr(Whole(1)).wanted
        ('auto', 2, 'auto, or an integer of at least 1')
    """

    rule: ValueRule
    word: str = "auto"

    @property
    def wanted(self) -> str:
        """The rule in words."""
        return f"{self.word}, or {self.rule.wanted}"

    def __call__(self, value: Any) -> Any:
        """The value, checked unless it is the word."""
        if value == self.word:
            return value
        try:
            return self.rule(value)
        except PydanticCustomError:
            raise refusal(self.wanted) from None


def under(rule: ValueRule) -> BeforeValidator:
    """The rule as pydantic wants it in an annotation.

    Args:
        rule: one of the checkers of this module.

    Returns:
        What `Annotated` takes.

    Example:
        >>> under(Flag()).func
        Flag(wanted='true or false')
    """
    return BeforeValidator(rule)


Count = Annotated[int, under(Whole(1))]
CountOrNull = Annotated[int | None, under(OrNull(Whole(1)))]
PositiveOrNull = Annotated[float | None, under(OrNull(Real(0, above=True)))]
Seed = Annotated[int, under(Whole(0, 2**32 - 1))]
Positive = Annotated[float, under(Real(0, above=True))]
NotNegative = Annotated[float, under(Real(0))]
Probability = Annotated[float, under(Real(0, 1, above=True))]
Switch = Annotated[bool, under(Flag())]
