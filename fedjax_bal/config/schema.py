"""The sections of a configuration on training, evaluation and execution, and all sections together."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from annotated_types import Gt, Lt
from pydantic import Field, model_validator

from fedjax_bal.annotations import Count, Natural, NotNegative, Number, OneOf, Positive, Probability, Switch, parameters
from fedjax_bal.config.federation_sections import (
    AuxiliarySection,
    AvailabilitySection,
    DatasetSection,
    DeliverySection,
    ModelSection,
    PartitionSection,
    SelectionSection,
    SpeedSection,
)
from fedjax_bal.config.sections import OptionsSection, Section, Variant, refused, with_options
from fedjax_bal.metrics import SHOTS, EarlyStopping, Shots, stopping_metrics
from fedjax_bal.options import Evaluation, Execution, LocalTraining

_Share = Annotated[Number, Gt(0), Lt(1)] | None


class ShotsSection(Section):
    """The bounds of many-, medium- and few-shot classes, in training images of a class.

    Attributes:
        few: a class with fewer images is a few-shot class.
        many: a class with more images is a many-shot class.
    """

    few: Natural = SHOTS.few
    many: Natural = SHOTS.many

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.few > self.many:
            raise refused(f"received few {self.few} above many {self.many}, so that classes could be both; lower few")
        return self

    @property
    def bounds(self) -> Shots:
        """The bounds as the library has them."""
        return Shots(self.few, self.many)


class _HeldOutSection(Section):
    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        given = [f"{key} {value}" for key, value in self if value is not None]
        if len(given) > 1:
            raise refused(f"received {' and '.join(given)}; give one of them and set the other to null")
        return self

    @property
    def wanted(self) -> bool:
        """Whether any images are held out."""
        return any(value is not None for _, value in self)


class ValidationSection(_HeldOutSection):
    """Training images that validate the global model: taken out before the partition, never trained on.

    They are the federation's set "validation". At most one of the two keys is given; without either, no set is made.

    Attributes:
        per_class: images of each class.
        fraction: share of each class.
    """

    per_class: Count | None = None
    fraction: _Share = None


class ClientTestSection(_HeldOutSection):
    """Images that test each client, the global model's and its own; never trained on.

    At most one of the two keys is given; without either, clients are not tested.

    Attributes:
        fraction: share of each client's rows that is held out for it, drawn with the partition's seed.
        per_client: images of the test set for each client instead, in the proportions of its own classes.
    """

    fraction: _Share = None
    per_client: Count | None = None


class EarlyStoppingSection(Section):
    """When a run ends before its last round: see `fedjax_bal.metrics.EarlyStopping`.

    Attributes:
        patience: evaluated rounds in a row without improvement; None for never. The run ends with the dispatch in which
            this number is reached, whatever that dispatch's later rounds bring.
        metric: a metric of the validation rows.
        min_delta: the least increase over the best so far that counts as an improvement.
    """

    patience: Count | None = None
    metric: Annotated[str, OneOf(stopping_metrics)] = EarlyStopping().metric
    min_delta: NotNegative = 0.0

    @property
    def rule(self) -> EarlyStopping:
        """The rule as the library has it."""
        return EarlyStopping(self.patience, self.metric, self.min_delta)


class ScheduleSection(Variant):
    """A factor on the learning rate that changes with time.

    Attributes:
        name: one of `fedjax_bal.optim.schedule_names()`; its parameters stand beside it.
    """

    name: Annotated[str, OneOf(lambda: ScheduleSection.choices())] = "constant"

    @classmethod
    def choices(cls) -> Mapping[str, Any]:
        """The functions that make a schedule."""
        from fedjax_bal.optim import schedule_factory, schedule_names

        return {name: schedule_factory(name) for name in schedule_names()}

    @property
    def built(self) -> Any:
        """The schedule; None for the constant one."""
        from fedjax_bal.optim import schedule

        return schedule(self.name, **{key: value for key, value in self.parameters.items() if value is not None})

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        try:
            _ = self.built
        except (ValueError, TypeError) as error:
            raise refused(f"refused by {str(error).removeprefix('schedule: ')}") from None
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

    name: Annotated[str, OneOf(lambda: OptimizerSection.choices())] = "sgd"
    learning_rate: Positive
    weight_decay: NotNegative = 0.0
    decay: Probability = 1.0
    schedule: ScheduleSection = Field(default_factory=ScheduleSection.default)
    clip_norm: Positive | None = None
    clip_value: Positive | None = None

    @classmethod
    def choices(cls) -> Mapping[str, Any]:
        """The functions of optax."""
        import optax

        from fedjax_bal.optim import optimizer_names

        return {name: getattr(optax, name) for name in optimizer_names()}

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The options of an optimizer."""
        return parameters(cls.choices()[name], skip=cls.model_fields)

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
        try:
            self.built.transform(0)
        except (ValueError, TypeError) as error:
            raise refused(f"refused by {self.name}: {error}") from None
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
        if epochs is None and steps is None:
            raise refused("missing, must be an integer of at least 1, or local_steps given instead", "local_epochs")
        if epochs is not None and steps is not None:
            rule = "set one of the two to null, or leave it out"
            raise refused(f"received {steps} beside local_epochs={epochs}; {rule}", "local_steps")
        return self


@with_options(Evaluation, before={"privacy": "traffic", "attack_steps": "traffic", "target_accuracy": "shots"})
class EvaluationSection(OptionsSection):
    """When the global model is tested: the options of `fedjax_bal.options.Evaluation`, and more reports.

    Attributes:
        privacy: at the end of each method's run with the first seed, measure what it gives away: neighbours of
            generated images among the clients', and attacks on shared prototypes.
        attack_steps: training steps of each of these attacks.
        target_accuracy: the accuracy in (0, 1] whose first round is reported; None for none.
        shots: the bounds of many-, medium- and few-shot classes.
        validation: training images that validate the global model.
        client_test: images that test each client.
        personalised: epochs for which the final global model is fine-tuned on each client, which is then tested; None
            for no fine-tuning. It uses plain cross-entropy and the local optimizer, whatever the method, at the
            learning rate of the round after the last; `step_schedule` is ignored.
    """

    privacy: Switch = False
    attack_steps: Count = 1000
    target_accuracy: Probability | None = None
    shots: ShotsSection = Field(default_factory=ShotsSection.default)
    validation: ValidationSection = Field(default_factory=ValidationSection.default)
    client_test: ClientTestSection = Field(default_factory=ClientTestSection.default)
    personalised: Count | None = None

    @property
    def options(self) -> Evaluation:
        """The options of the library."""
        return Evaluation(**self.arguments(shots=self.shots.bounds))


@with_options(Execution, names={"differentiable": None}, before={"checkpoint_every": "broken_clients"})
class ExecutionSection(OptionsSection):
    """How the work is laid out on the machine: the options of `fedjax_bal.options.Execution`, and checkpoints.

    A CPU has a device for each core unless `--devices` asks for another number; a folder's runs go on with those that
    they began with.

    Attributes:
        checkpoint_every: rounds between two checkpoints.
    """

    checkpoint_every: Count = 10

    @property
    def options(self) -> Execution:
        """The options of the library."""
        return Execution(**self.arguments())


class Sections(Section):
    """The sections that describe one federation and its training; each may be overridden for one method."""

    dataset: DatasetSection = Field(default_factory=DatasetSection.default)
    partition: PartitionSection = Field(default_factory=PartitionSection.default)
    auxiliary: AuxiliarySection = Field(default_factory=AuxiliarySection.default)
    model: ModelSection = Field(default_factory=ModelSection.default)
    training: TrainingSection = Field(default_factory=TrainingSection.default)
    selection: SelectionSection = Field(default_factory=SelectionSection.default)
    availability: AvailabilitySection = Field(default_factory=AvailabilitySection.default)
    delivery: DeliverySection = Field(default_factory=DeliverySection.default)
    speed: SpeedSection = Field(default_factory=SpeedSection.default)
    evaluation: EvaluationSection = Field(default_factory=EvaluationSection.default)
    execution: ExecutionSection = Field(default_factory=ExecutionSection.default)

    @model_validator(mode="after")
    def _enough_clients(self) -> Self:
        asked, there = self.selection.clients_per_round, self.partition.known_clients
        if there is None or asked <= there:
            return self
        if "clients_per_round" not in self.selection.model_fields_set:  # a default must not be refused
            selection = self.selection.model_copy(update={"clients_per_round": there})
            return self.model_copy(update={"selection": selection})
        rule = f"more clients a round than the {there} of partition.clients; at most {there} is allowed"
        raise refused(f"received {asked}, {rule}", "selection", "clients_per_round")

    @model_validator(mode="after")
    def _with_what_it_needs(self) -> Self:
        patience, fine_tuning = self.training.early_stopping.patience, self.evaluation.personalised
        if patience is not None and not self.evaluation.validation.wanted:
            rule = "needs validation images: set evaluation.validation, for instance to {per_class: 50}"
            raise refused(f"received {patience}, {rule}", "training", "early_stopping")
        if fine_tuning is not None and not self.evaluation.client_test.wanted:
            rule = "needs test images of clients: set evaluation.client_test, for instance to {fraction: 0.2}"
            raise refused(f"received {fine_tuning}, {rule}", "evaluation", "personalised")
        return self
