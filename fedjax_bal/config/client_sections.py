"""The sections of a configuration on who is chosen, who is there, who delivers, and how fast clients are."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from fedjax_bal.config import registries
from fedjax_bal.config.rules import (
    Count,
    ListOf,
    OneOf,
    Positive,
    PositiveOrNull,
    Probability,
    Real,
    Switch,
    Word,
    under,
)
from fedjax_bal.config.sections import Variant


class SelectionSection(Variant):
    """Who is asked to train.

    Attributes:
        name: one of `fedjax_bal.selection.SELECTORS`; its parameters stand beside it. A recipe that chooses clients
            itself (astraea, flcir) does so where this is `uniform`.
        clients_per_round: how many clients a round; all that are available where these are fewer.
    """

    choice: ClassVar[str | None] = "name"

    name: Annotated[str, under(OneOf(lambda: registries.selectors()))] = "uniform"
    clients_per_round: Count

    @classmethod
    def names(cls) -> Sequence[str]:
        """The names of the selectors."""
        return tuple(registries.selectors())

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The parameters of a selector, without those that the federation gives."""
        return registries.parameters(registries.selectors()[name], skip=registries.from_federation())


_File = Annotated[str, under(Word("the path of a file", lambda text: bool(text.strip()) and "\0" not in text))]
_TRACE = {"file": (_File, ...), "at_end": (Annotated[str, under(OneOf(("repeat", "hold")))], "repeat")}
_LATE = {"deadline": (PositiveOrNull, None), "late": (Annotated[str, under(OneOf(("partial", "drop")))], "partial")}


class _Absence(Variant):
    choice: ClassVar[str | None] = "name"
    laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @classmethod
    def names(cls) -> Sequence[str]:
        """The names of the laws."""
        return tuple(cls.laws)

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The parameters of a law."""
        return cls.laws[name]


class AvailabilitySection(_Absence):
    """Who can be asked in a round.

    Attributes:
        name: `always`; `bernoulli`: each client with probability p; `periodic`: the same, held for `period` rounds;
            `clustered`: client i with the i-th probability of the list p, which repeats; `trace`: as a file says, see
            `fedjax_bal.selection.trace`.
    """

    laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "always": {},
        "bernoulli": {"p": (Probability, ...)},
        "periodic": {"p": (Probability, ...), "period": (Count, ...)},
        "clustered": {
            "p": (Annotated[tuple[float, ...], under(ListOf(Real(0, 1, above=True)))], ...),
            "period": (Count, 1),
        },
        "trace": _TRACE,
    }

    name: Annotated[str, under(OneOf(lambda: AvailabilitySection.laws))] = "always"


class DeliverySection(_Absence):
    """Who comes back after training.

    Attributes:
        name: `always`; `bernoulli`: each selected client with probability p; `trace`: as a file says.
    """

    laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "always": {},
        "bernoulli": {"p": (Probability, ...)},
        "trace": _TRACE,
    }

    name: Annotated[str, under(OneOf(lambda: DeliverySection.laws))] = "always"


class SpeedSection(_Absence):
    """How fast clients compute, and who is late.

    Attributes:
        name: `unlimited`, nobody looks at the clock; `constant`, `uniform` or `lognormal`, local steps a second by that
            law; `file`, as a file says. Beside it stand `deadline`, the seconds of a round, null for none, and `late`:
            `partial`, who would take longer does the steps that fit; `drop`, it doesn't deliver.
    """

    laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "unlimited": {},
        "constant": {"steps_per_s": (Positive, ...), **_LATE},
        "uniform": {"low": (Positive, ...), "high": (Positive, ...), **_LATE, "per_round": (Switch, False)},
        "lognormal": {
            "median": (Positive, ...),
            "sigma": (Annotated[float, under(Real(0, 10))], ...),
            **_LATE,
            "per_round": (Switch, False),
        },
        "file": {"file": (_File, ...), **_LATE},
    }

    name: Annotated[str, under(OneOf(lambda: SpeedSection.laws))] = "unlimited"
