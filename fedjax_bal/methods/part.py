"""The base class of parts, and how a part is declared."""

import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

import jax

from fedjax_bal.models import Normalisation
from fedjax_bal.optim import Optimizer
from fedjax_bal.types import Federation, Model

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def part(cls: type[T]) -> type[T]:
    """Makes a class a part: a frozen dataclass whose fields are pytree leaves.

    Numbers are leaves, so that they can be swept without another compilation. Declare a field with `static` if it
    changes a shape or decides what is computed.

    Example:
        >>> import jax
        >>> @part
        ... class Scale(Part):
        ...     factor: float = 2.0
        >>> jax.tree.leaves(Scale(3.0))
        [3.0]
    """
    made: Any = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(made)
    leaves = [field.name for field in fields if not field.metadata.get("static")]
    others = [field.name for field in fields if field.metadata.get("static")]

    # The class must be part of the tree structure. `register_dataclass` ignores it when it compares structures: parts
    # of two classes with equally many leaves compare equal, and one method could get another's compiled program.
    def flatten(own: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        keyed = [(jax.tree_util.GetAttrKey(name), getattr(own, name)) for name in leaves]
        return keyed, (made, *(getattr(own, name) for name in others))

    def unflatten(structure: tuple[Any, ...], values: Any) -> Any:
        return made(**dict(zip(leaves, values, strict=True)), **dict(zip(others, structure[1:], strict=True)))

    jax.tree_util.register_pytree_with_keys(made, flatten, unflatten)
    return made


def static(default: Any) -> Any:
    """Declares a part's field as structure, not a pytree leaf: each of its values compiles another program."""
    return dataclasses.field(default=default, metadata={"static": True})


def parts_with(parts: "Iterable[Part]", *roles: type[T]) -> list[T]:
    """Returns the parts that play at least one of the roles, in order."""
    return [part for part in parts if isinstance(part, roles)]


class RunFacts(NamedTuple):
    """The facts about a run that its configuration states before the data is loaded.

    Attributes:
        parts: all parts, in order.
        local: the clients' optimizer.
        carried: whether the clients of a chain pass on the optimizer's state.
        rounds: the number of rounds.
        clients: N; None if it is only known once the data set is loaded.
        auxiliary: the names of the sets of rows that clients don't have.
        model: the network's name.
        normalisation: the network's; None if it is only known once the network is built.
    """

    parts: "tuple[Part, ...]"
    local: Optimizer
    carried: bool
    rounds: int
    clients: int | None
    auxiliary: Collection[str]
    model: str
    normalisation: Normalisation | None


class Need(NamedTuple):
    """A requirement of a part on the rest of the run, e.g. plain SGD.

    Attributes:
        name: its name in lists of methods; empty if they omit it.
        check: raises `ValueError` for a run that doesn't meet it; the message says what to change.
    """

    name: str
    check: Callable[[RunFacts], None]


class RunSetting(NamedTuple):
    """The run as `Part.check` sees it.

    Attributes:
        parts: all parts, in order.
        model: the network, with the additions of all parts.
        federation: the federation, without excluded rows, before parts prepare it.
        local: the clients' optimizer.
        carried: whether the clients of a chain pass on the optimizer's state.
        rounds: the number of rounds.
    """

    parts: "tuple[Part, ...]"
    model: Model
    federation: Federation
    local: Optimizer
    carried: bool
    rounds: int


class RoundsSoFar(NamedTuple):
    """The rounds of a run until now, as `Part.round_metrics` sees them.

    Attributes:
        rounds: the number of rounds.
        clients: the number of clients that can train.
        clients_per_round: the maximum number that train in a round.
        drawn_evenly: whether each cohort is a uniform draw of these clients, independent of earlier rounds.
        closed_loop: whether a cohort depends on the clients' reports in earlier rounds.
        chain_length: the maximum number of clients in a chain, which contributes one update to the average.
    """

    rounds: int
    clients: int
    clients_per_round: int
    drawn_evenly: bool
    closed_loop: bool
    chain_length: int


class Part:
    """A unit of behaviour of a client or the server during a round.

    A part subclasses one or more roles (`fedjax_bal.methods.roles`) and is final: wrap it, don't subclass it. The
    methods of this class run once, on the host, before anything is compiled; by default they change nothing. They raise
    `ValueError` for a model, a federation or a run that doesn't suit the part; the message says what to change.

    Attributes:
        needs_deltas: whether the server keeps the update of every chain of a round, in `server.aggregate.deltas`.
        needs_losses: whether the server uses the clients' training losses, `server.aggregate.losses`; each client then
            sends its loss.
    """

    needs_deltas: ClassVar[bool] = False
    needs_losses: ClassVar[bool] = False

    def __init__(self, *values: Any, **named: Any) -> None:
        """Rejects a class without the decorator `part`, which would have replaced this `__init__`."""
        name = type(self).__name__
        raise ValueError(f"{name}: not declared as a part: put @part, from fedjax_bal.parts, above class {name}")

    @property
    def needs(self) -> "tuple[Need, ...]":
        """Requirements on the rest of the run, checked when its configuration is read."""
        return ()

    @property
    def first_round(self) -> int:
        """The first round, counted from 0, in which the part changes local steps; in earlier ones it isn't computed."""
        return 0

    @property
    def slot(self) -> str:
        """The name under which the engine keeps the part's state, broadcasts and reports."""
        return type(self).__name__

    def bind(self, model: Model) -> Model:
        """Returns the network with the part's additions; weights that both have must be initialised equally."""
        return model

    def prepare_federation(self, federation: Federation) -> Federation:
        """Returns the federation with the part's additions; selectors see the result's class counts."""
        return federation

    def check(self, setting: RunSetting) -> None:
        """Rejects a model or a federation with which the part would not work as documented."""

    def round_metrics(self, past: RoundsSoFar) -> dict[str, float]:
        """Computes the part's metrics for an evaluated round, by name, on the host; by default none.

        They go to `RoundResult.reported`, where a metric of the same name finds them.
        """
        return {}
