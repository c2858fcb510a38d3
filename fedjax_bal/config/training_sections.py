"""The sections of a configuration on training: optimizers, their schedules, and what clients do in a visit."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from fedjax_bal.config import registries
from fedjax_bal.config.held_out import EarlyStoppingSection
from fedjax_bal.config.rules import (
    Count,
    CountOrNull,
    NotNegative,
    OneOf,
    OrNull,
    Positive,
    PositiveOrNull,
    Real,
    Switch,
    Whole,
    under,
)
from fedjax_bal.config.sections import Section, Variant, refused


class ScheduleSection(Variant):
    """A factor on the learning rate that changes with time.

    Attributes:
        name: one of `fedjax_bal.optim.schedules.names()`; its parameters stand beside it.
    """

    choice: ClassVar[str | None] = "name"

    name: Annotated[str, under(OneOf(lambda: registries.schedules()))] = "constant"

    @classmethod
    def names(cls) -> Sequence[str]:
        """The names of the schedules."""
        return tuple(registries.schedules())

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The parameters of a schedule."""
        return registries.parameters(registries.schedule_function(name))

    @property
    def built(self) -> Any:
        """What `fedjax_bal.optim.optimizers.optimizer` takes; None for the one that changes nothing."""
        from fedjax_bal.optim import schedule

        return schedule(self.name, **{key: value for key, value in self.parameters.items() if value is not None})

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        if self.picked:
            try:
                _ = self.built
            except (ValueError, TypeError) as error:
                text = str(error).removeprefix("schedule: ")
                raise PydanticCustomError("refused", "{text}", {"text": f"refused by {text}"}) from None
        return self


class OptimizerSection(Variant):
    """An optax optimizer.

    Attributes:
        name: any optax optimizer that takes a learning rate; its options stand beside it.
        learning_rate: of round 0.
        weight_decay: coupled, that is, added to the gradient; an optimizer with a weight decay of its own gets this.
        decay: the factor on the learning rate each round.
        schedule: a further factor on the learning rate, by round.
        clip_norm: the largest global norm of a gradient; None for no limit.
        clip_value: the largest magnitude of each number of a gradient; None for no limit.
    """

    choice: ClassVar[str | None] = "name"

    name: Annotated[str, under(OneOf(lambda: registries.optimizers()))] = "sgd"
    learning_rate: Positive
    weight_decay: NotNegative = 0.0
    decay: Annotated[float, under(Real(0, 1, above=True))] = 1.0
    schedule: ScheduleSection = Field(default_factory=dict)  # type: ignore[arg-type]
    clip_norm: PositiveOrNull = None
    clip_value: PositiveOrNull = None

    @classmethod
    def names(cls) -> Sequence[str]:
        """The names of the optimizers."""
        return tuple(registries.optimizers())

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The options of an optimizer."""
        return registries.parameters(registries.optimizer_function(name), skip=cls.model_fields)

    @property
    def keywords(self) -> dict[str, Any]:
        """What `fedjax_bal.optim.optimizers.optimizer` takes; options at their defaults are left to optax."""
        shared = {key: getattr(self, key) for key in sorted(self.common())}
        shared = {key: value.built if isinstance(value, ScheduleSection) else value for key, value in shared.items()}
        shared = {key: value for key, value in shared.items() if value is not None}
        defaults = {key: field.default for key, field in type(self).model_fields.items()}
        return {**shared, **{key: value for key, value in self.parameters.items() if value != defaults[key]}}

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        if self.picked:
            from fedjax_bal.optim import optimizer

            try:
                optimizer(**self.keywords).transform(0)
            except (ValueError, TypeError) as error:
                raise PydanticCustomError("refused", "{text}", {"text": f"refused by {self.name}: {error}"}) from None
        return self


class LocalOptimizerSection(OptimizerSection):
    """The optimizer of the clients.

    Attributes:
        step_schedule: a further factor on the learning rate, by local step from 0 in each visit.
    """

    step_schedule: ScheduleSection = Field(default_factory=dict)  # type: ignore[arg-type]


class ServerOptimizerSection(OptimizerSection):
    """The optimizer that applies the cohort's mean delta; by default it adds it."""

    learning_rate: Positive = 1.0


class TrainingSection(Section):
    """Rounds and local steps.

    Attributes:
        rounds: how many rounds.
        local_epochs: passes of a client over its data in each round; null where `local_steps` is given.
        batch_size: images a local step.
        drop_last: leave out the last batch of an epoch when it is short.
        batches_per_epoch: the most batches of an epoch, of rows drawn anew each time; None for all of a client's rows.
        batch_statistics: where a client's running batch statistics come from, see `fedjax_bal.engine.host.build`.
        lone_rows: what becomes of a row that would be a batch of its own, see there.
        local_steps: in place of epochs, the local steps of every client in each round, however many images it has.
        optimizer: of the clients, fresh at each visit.
        server_optimizer: of the server.
        early_stopping: whether a run ends once its validation metric has stopped getting better.
    """

    rounds: Count
    local_epochs: CountOrNull = None
    batch_size: Count
    drop_last: Switch = False
    batches_per_epoch: Annotated[int | None, under(OrNull(Whole(1)))] = None
    batch_statistics: Annotated[str, under(OneOf(lambda: ("average", "local", "server_reset")))] = "average"
    lone_rows: Annotated[str, under(OneOf(lambda: ("auto", "keep", "drop")))] = "auto"
    local_steps: CountOrNull = None
    optimizer: LocalOptimizerSection
    server_optimizer: ServerOptimizerSection = Field(default_factory=dict)  # type: ignore[arg-type]
    early_stopping: EarlyStoppingSection = Field(default_factory=dict)  # type: ignore[arg-type]

    @model_validator(mode="after")
    def _epochs_or_steps(self) -> Self:
        epochs, steps = self.local_epochs, self.local_steps
        if (epochs is None) == (steps is None):
            if epochs is None:
                problem = (("local_epochs",), "missing, must be an integer of at least 1, or local_steps given instead")
            else:
                text = f"received {steps} beside local_epochs={epochs}; set one of the two to null, or leave it out"
                problem = (("local_steps",), text)
            raise refused(*problem, steps)
        return self
