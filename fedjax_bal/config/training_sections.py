"""The sections of a configuration on training: rounds, local steps, optimizers and their schedules."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from fedjax_bal.annotations import Count, NotNegative, OneOf, Positive, Probability
from fedjax_bal.config.held_out import EarlyStoppingSection
from fedjax_bal.config.options_section import OptionsSection, with_options
from fedjax_bal.config.parameters import parameters
from fedjax_bal.config.sections import Variant, refused
from fedjax_bal.options import LocalTraining


class ScheduleSection(Variant):
    """A factor on the learning rate that changes with time.

    Attributes:
        name: one of `fedjax_bal.optim.schedule_names()`; its parameters stand beside it.
    """

    choice: ClassVar[str | None] = "name"

    name: Annotated[str, OneOf(lambda: ScheduleSection.names())] = "constant"

    @classmethod
    def names(cls) -> Sequence[str]:
        """The names of the schedules."""
        from fedjax_bal.optim import schedule_names

        return tuple(schedule_names())

    @classmethod
    def function(cls, name: str) -> Callable[..., Any]:
        """The function that makes a schedule."""
        from fedjax_bal.optim import schedule_factory

        return schedule_factory(name)

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The parameters of a schedule."""
        return parameters(cls.function(name))

    @property
    def built(self) -> Any:
        """The schedule; None for the constant one."""
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
        learning_rate: in round 0.
        weight_decay: coupled, that is, added to the gradient; an optimizer with a weight decay of its own gets this
            one.
        decay: the factor on the learning rate each round.
        schedule: a further factor on the learning rate, by round.
        clip_norm: the largest global norm of a gradient; None for no limit.
        clip_value: the largest magnitude of each number of a gradient; None for no limit.
    """

    choice: ClassVar[str | None] = "name"

    name: Annotated[str, OneOf(lambda: OptimizerSection.names())] = "sgd"
    learning_rate: Positive
    weight_decay: NotNegative = 0.0
    decay: Probability = 1.0
    schedule: ScheduleSection = Field(default_factory=ScheduleSection.default)
    clip_norm: Positive | None = None
    clip_value: Positive | None = None

    @classmethod
    def names(cls) -> Sequence[str]:
        """The names of the optimizers."""
        from fedjax_bal.optim import optimizer_names

        return tuple(optimizer_names())

    @classmethod
    def function(cls, name: str) -> Callable[..., Any]:
        """The function of optax."""
        import optax

        return getattr(optax, name)

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The options of an optimizer."""
        return parameters(cls.function(name), skip=cls.model_fields)

    @property
    def keywords(self) -> dict[str, Any]:
        """The arguments of `fedjax_bal.optimizer`; options at their defaults are left to optax."""
        shared = {key: getattr(self, key) for key in sorted(self.common())}
        shared = {key: value.built if isinstance(value, ScheduleSection) else value for key, value in shared.items()}
        shared = {key: value for key, value in shared.items() if value is not None}
        defaults = {key: field.default for key, field in type(self).model_fields.items()}
        return {**shared, **{key: value for key, value in self.parameters.items() if value != defaults[key]}}

    @property
    def built(self) -> Any:
        """The optimizer."""
        from fedjax_bal.optim import optimizer

        return optimizer(**self.keywords)

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        if self.picked:
            try:
                self.built.transform(0)
            except (ValueError, TypeError) as error:
                raise PydanticCustomError("refused", "{text}", {"text": f"refused by {self.name}: {error}"}) from None
        return self


class LocalOptimizerSection(OptimizerSection):
    """The optimizer of the clients.

    Attributes:
        step_schedule: a further factor on the learning rate, by local step, from 0 in each local training.
        clip_at: whether a gradient is clipped before parts change it, `start`, as by SCAFFOLD's correction, or after,
            `end`.
    """

    step_schedule: ScheduleSection = Field(default_factory=ScheduleSection.default)
    clip_at: Literal["start", "end"] = "start"


class ServerOptimizerSection(OptimizerSection):
    """The optimizer that applies the cohort's mean update; by default it adds it."""

    learning_rate: Positive = 1.0


@with_options(
    LocalTraining,
    names={"epochs": "local_epochs", "steps": "local_steps", "drawing": None},
    before={"rounds": "local_epochs"},
)
class TrainingSection(OptionsSection):
    """Rounds and local steps: the options of `fedjax_bal.options.LocalTraining`, and the server's optimizer.

    Attributes:
        rounds: the number of rounds.
        batch_size: images of a local step.
        optimizer: of the clients, fresh at every local training.
        server_optimizer: of the server.
        early_stopping: whether a run ends once its validation metric has stopped improving.
    """

    rounds: Count = 50
    batch_size: Count = 50
    optimizer: LocalOptimizerSection = Field(
        default_factory=lambda: LocalOptimizerSection.model_validate({"learning_rate": 0.05})
    )
    server_optimizer: ServerOptimizerSection = Field(default_factory=ServerOptimizerSection.default)
    early_stopping: EarlyStoppingSection = Field(default_factory=EarlyStoppingSection.default)

    @property
    def options(self) -> LocalTraining:
        """The library's options."""
        return LocalTraining(**self.arguments(optimizer=self.optimizer.built))

    @model_validator(mode="before")
    @classmethod
    def _one_epoch(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or not {"local_epochs", "local_steps"}.isdisjoint(value):
            return value
        return {**value, "local_epochs": 1}

    @model_validator(mode="after")
    def _epochs_or_steps(self) -> Self:
        given = self.arguments()
        epochs, steps = given["epochs"], given["steps"]
        if (epochs is None) == (steps is None):
            if epochs is None:
                problem = (("local_epochs",), "missing, must be an integer of at least 1, or local_steps given instead")
            else:
                text = f"received {steps} beside local_epochs={epochs}; set one of the two to null, or leave it out"
                problem = (("local_steps",), text)
            raise refused(*problem, steps)
        return self
