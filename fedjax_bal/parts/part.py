"""What all parts have in common."""

import dataclasses
from typing import Any, ClassVar, TypeVar, dataclass_transform

import jax

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
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def static(default: Any) -> Any:
    """A field that is part of the structure, not a value: another one means another program."""
    return dataclasses.field(default=default, metadata={"static": True})


class Part:
    """A unit of behaviour that a client or the server plays during a round.

    A part subclasses one or more roles (`fedjax_bal.parts.roles`) and is final: wrap it, don't subclass it.

    Attributes:
        fresh_momentum: whether it only means what it says where a local momentum begins anew at each visit.
    """

    fresh_momentum: ClassVar[bool] = False

    @property
    def first_round(self) -> int:
        """From which round on, counted from 0, it changes local steps; before it they don't even compute its share."""
        return 0

    @property
    def slot(self) -> str:
        """The name under which the engine keeps what belongs to this part."""
        return type(self).__name__

    def bind(self, model: Model) -> "Part":
        """The part as it works with a model; itself, unless it has to know the network before a round begins.

        Args:
            model: the simulation's.

        Returns:
            A part of the same kind.

        Raises:
            ValueError: a model that it can't work with.
        """
        del model
        return self

    def check(self, local: Optimizer, parts: "tuple[Part, ...]") -> None:
        """Refuses a setting in which this part would not mean what it says.

        Runs once, on the host, before anything is compiled.

        Args:
            local: the clients' optimizer.
            parts: all parts of the recipe, this one included.

        Raises:
            ValueError: where the setting doesn't fit; the message says what to change.
        """

    def check_rounds(self, rounds: int) -> None:
        """Refuses a run that is over before this part changes anything.

        Runs once, on the host, before anything else.

        Args:
            rounds: how many rounds the run has.

        Raises:
            ValueError: where it would never come into play; the message says what to change.
        """
        begin = self.first_round + 1
        if begin > rounds:
            raise ValueError(
                f"{self.slot}: begins in round {begin}, but rounds={rounds}, so that it would change nothing: let it "
                f"begin in round {rounds} or earlier, or set rounds to {begin} or more"
            )

    def check_federation(self, federation: Federation) -> None:
        """Refuses a federation that lacks what this part needs.

        Runs once, on the host, before anything is compiled.

        Args:
            federation: the federation.

        Raises:
            ValueError: where something is missing; the message says what to add.
        """
