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

    Numbers that only change a value stay leaves, so that they can be swept without another compilation. What changes
    a shape or decides what is computed is declared with `static`.

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

    # The class belongs to the structure. `register_dataclass` leaves it out of the comparison of structures: parts of
    # two classes with as many leaves are equal to it, and one method could get the compiled program of another.
    def flatten(own: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        keyed = [(jax.tree_util.GetAttrKey(name), getattr(own, name)) for name in leaves]
        return keyed, (made, *(getattr(own, name) for name in others))

    def unflatten(structure: tuple[Any, ...], values: Any) -> Any:
        return made(**dict(zip(leaves, values, strict=True)), **dict(zip(others, structure[1:], strict=True)))

    jax.tree_util.register_pytree_with_keys(made, flatten, unflatten)
    return made


def static(default: Any) -> Any:
    """Declares a field of a part as structure, not a value: another value means another program."""
    return dataclasses.field(default=default, metadata={"static": True})


def parts_with(parts: "Iterable[Part]", *roles: type[T]) -> list[T]:
    """The parts that play a role, or one of several, in order."""
    return [part for part in parts if isinstance(part, roles)]


class RunFacts(NamedTuple):
    """What a configuration says about a run before its data is loaded.

    Attributes:
        parts: all parts, in order.
        local: the clients' optimizer.
        carried: whether the clients of a chain pass on its state.
        rounds: the number of rounds.
        clients: N; None where only the data set tells.
        auxiliary: the names of the sets of rows that clients don't have.
        model: the network's name.
        normalisation: the network's; None where only building it tells.
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
    """Something without which a part would not do what its documentation says.

    Attributes:
        name: what it is, in lists of methods; empty where they leave it out.
        check: raises `ValueError` for a run that lacks it; the message says what to change.
    """

    name: str
    check: Callable[[RunFacts], None]


class RunSetting(NamedTuple):
    """The run as `Part.check` sees it.

    Attributes:
        parts: all parts, in order.
        model: the network, with all that parts add to it.
        federation: the federation, before parts prepare it, without the rows that are left out.
        local: the clients' optimizer.
        carried: whether the clients of a chain pass on its state.
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
        rounds: their number.
        clients: the number of clients that can train.
        clients_per_round: the most that do so in a round.
        drawn_evenly: whether each round's cohort is a uniform draw of these clients, whatever came before.
        closed_loop: whether a cohort depends on what clients reported in earlier rounds.
        chain_length: the most clients that one averaged update goes through.
    """

    rounds: int
    clients: int
    clients_per_round: int
    drawn_evenly: bool
    closed_loop: bool
    chain_length: int


class Part:
    """A unit of behaviour that a client or the server plays during a round.

    A part subclasses one or more roles (`fedjax_bal.methods.roles`) and is final: wrap it, don't subclass it. The
    methods here run once, on the host, before anything is compiled, and change nothing unless a part overrides them.
    They raise `ValueError` for a model, a federation or a run that the part can't work with; the message says what to
    change.

    Attributes:
        needs_deltas: whether the server keeps the update of every chain of a round, in `server.aggregate.deltas`.
        needs_losses: whether the server uses the clients' training losses, `server.aggregate.losses`, so that each
            client sends its own.
    """

    needs_deltas: ClassVar[bool] = False
    needs_losses: ClassVar[bool] = False

    def __init__(self, *values: Any, **named: Any) -> None:
        """Refuses a class without the decorator `part`, which gives each class an `__init__` of its own."""
        name = type(self).__name__
        raise ValueError(f"{name}: not declared as a part: put @part, from fedjax_bal.parts, above class {name}")

    @property
    def needs(self) -> "tuple[Need, ...]":
        """Requirements on the rest of a run, checked when its configuration is read."""
        return ()

    @property
    def first_round(self) -> int:
        """The first round, counted from 0, in which the part changes local steps; until then it isn't computed."""
        return 0

    @property
    def slot(self) -> str:
        """The name under which the engine keeps what belongs to this part."""
        return type(self).__name__

    def bind(self, model: Model) -> Model:
        """The network with the part's additions; weights that both have begin the same."""
        return model

    def prepare_federation(self, federation: Federation) -> Federation:
        """The federation with what the part adds to it; selectors see its class counts."""
        return federation

    def check(self, setting: RunSetting) -> None:
        """Refuses a model or a federation with which this part would not do what its documentation says."""

    def round_metrics(self, past: RoundsSoFar) -> dict[str, float]:
        """The part's own numbers for an evaluated round, by name, computed on the host; none unless overridden.

        They are in `RoundResult.reported`, where a metric of the same name finds them.
        """
        return {}
