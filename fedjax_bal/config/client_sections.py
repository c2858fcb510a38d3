"""The sections of a configuration on clients: selection, availability, delivery and speed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le, MinLen

from fedjax_bal.annotations import Count, Number, OneOf, Positive, Probability, Switch, TextThat
from fedjax_bal.config.parameters import parameters
from fedjax_bal.config.sections import Variant


class SelectionSection(Variant):
    """How clients are selected.

    Attributes:
        name: one of `fedjax_bal.selection.SELECTORS`; its parameters stand beside it. A recipe with a selector of its
            own (astraea, flcir) uses that where this is `uniform`. Updates are averaged by number of samples; after
            `by_size` and `power_of_choice`, which draw clients so, plainly.
        clients_per_round: the cohort's size; all available clients where these are fewer. By default 10, or all
            clients where there are fewer.
    """

    choice: ClassVar[str | None] = "name"

    name: Annotated[str, OneOf(lambda: SelectionSection.names())] = "uniform"
    clients_per_round: Count = 10

    @classmethod
    def names(cls) -> Sequence[str]:
        """The names of the selectors."""
        from fedjax_bal.selection import SELECTORS

        return tuple(SELECTORS)

    @classmethod
    def function(cls, name: str) -> Callable[..., Any]:
        """The function of a selector."""
        from fedjax_bal.selection import SELECTORS

        return SELECTORS[name]

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The parameters of a selector, without those that the federation gives."""
        from fedjax_bal.selection import FROM_FEDERATION

        return parameters(cls.function(name), skip=("clients_per_round", *FROM_FEDERATION))


_File = Annotated[str, TextThat("the path of a file", lambda text: text.strip() and "\0" not in text)]
_TRACE = {"file": (_File, ...), "at_end": (Literal["repeat", "hold"], "repeat")}
_Deadline = Positive | None
_LATE = {"deadline": (_Deadline, None), "late": (Literal["partial", "drop"], "partial")}


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
    """The clients that can be selected in a round.

    Attributes:
        name: `always`; `bernoulli`: each client with probability p, in some rounds none; `periodic`: the same, redrawn
            every `period` rounds; `clustered`: client i with the i-th probability of the list p, which repeats;
            `trace`: read from a file, see `fedjax_bal.selection.trace`. A round without clients trains nothing.
    """

    laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "always": {},
        "bernoulli": {"p": (Probability, ...)},
        "periodic": {"p": (Probability, ...), "period": (Count, ...)},
        "clustered": {
            "p": (Annotated[tuple[Probability, ...], MinLen(1)], ...),
            "period": (Count, 1),
        },
        "trace": _TRACE,
    }

    name: Annotated[str, OneOf(lambda: AvailabilitySection.laws)] = "always"


class DeliverySection(_Absence):
    """The clients that send their update back.

    Attributes:
        name: `always`; `bernoulli`: each selected client with probability p; `trace`: read from a file.
    """

    laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "always": {},
        "bernoulli": {"p": (Probability, ...)},
        "trace": _TRACE,
    }

    name: Annotated[str, OneOf(lambda: DeliverySection.laws)] = "always"


class SpeedSection(_Absence):
    """How fast clients compute, and how late clients are handled.

    Attributes:
        name: `unlimited`, time plays no role; `constant`, `uniform` or `lognormal`, the distribution of local steps a
            second; `file`, read from a file. Beside it stand `deadline`, the seconds of a round, null for none, and
            `late`: `partial`, a client that would take longer does the steps that fit; `drop`, it doesn't deliver.
    """

    laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "unlimited": {},
        "constant": {"steps_per_s": (Positive, ...), **_LATE},
        "uniform": {"low": (Positive, ...), "high": (Positive, ...), **_LATE, "per_round": (Switch, False)},
        "lognormal": {
            "median": (Positive, ...),
            "sigma": (Annotated[Number, Ge(0), Le(10)], ...),
            **_LATE,
            "per_round": (Switch, False),
        },
        "file": {"file": (_File, ...), **_LATE},
    }

    name: Annotated[str, OneOf(lambda: SpeedSection.laws)] = "unlimited"
