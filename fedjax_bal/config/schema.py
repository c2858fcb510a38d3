"""The sections of a configuration, and the configuration itself."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from fedjax_bal.config import registries
from fedjax_bal.config.held_out import ClientTest, Shots, Stopping, Validation, conflict
from fedjax_bal.config.rules import (
    AutoOr,
    Count,
    CountOrNull,
    ListOf,
    NotNegative,
    OneOf,
    OrNull,
    Positive,
    PositiveOrNull,
    Probability,
    Real,
    Seed,
    Switch,
    Whole,
    Word,
    under,
)
from fedjax_bal.config.sections import Section, Variant


class Dataset(Variant):
    """Which images.

    Attributes:
        name: one of `fedjax_bal.data.DATASETS`; one's own files have a path, and what their reader takes, beside it.
    """

    choice: ClassVar[str | None] = "name"

    name: Annotated[str, under(OneOf(lambda: registries.datasets()))]

    @classmethod
    def names(cls) -> Sequence[str]:
        """The names of the data sets."""
        return tuple(registries.datasets())

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """What the reader of one's own files takes; nothing for the other data sets."""
        return registries.dataset_parameters(name)


class Partition(Variant):
    """How the training images are shared out.

    Attributes:
        scheme: one of `fedjax_bal.data.partition.SCHEMES`, or another name of one; its parameters stand beside it.
        clients: N, how many clients there are.
        seed: the seed of the partition alone.
        imbalance_factor: the largest class over the smallest, before the scheme shares out what is left; 1 leaves all
            images in.
        imbalance_profile: how class sizes fall, see `fedjax_bal.data.partition.long_tailed`.
        imbalance_order: which class is the largest, see there.
    """

    choice: ClassVar[str | None] = "scheme"

    scheme: Annotated[str, under(OneOf(lambda: registries.schemes(), lambda: registries.other_names_of_schemes()))]
    clients: Count
    seed: Seed
    imbalance_factor: Annotated[float, under(Real(1))] = 1.0
    imbalance_profile: Annotated[str, under(OneOf(("exponential", "step")))] = "exponential"
    imbalance_order: Annotated[str, under(OneOf(("label", "frequency", "random")))] = "label"

    @classmethod
    def names(cls) -> Sequence[str]:
        """The partition schemes."""
        return tuple(registries.schemes())

    @classmethod
    def chosen(cls, value: Mapping[str, Any]) -> type[Section] | None:
        """The class with the parameters of the scheme, whatever name it goes by."""
        return super().chosen(by_own_name(value))

    @model_validator(mode="before")
    @classmethod
    def _named_as_here(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        key = contradiction(value)
        if key is not None:
            raise _refused(
                (key,), f"received {value[key]!r}, which the scheme's name says already; leave it out", value[key]
            )
        return by_own_name(value)

    @property
    def drawing(self) -> dict[str, Any]:
        """What `fedjax_bal.data.partition.draw` takes beside the labels."""
        return {**{key: getattr(self, key) for key in self.common()}, "parameters": self.parameters}

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The parameters of a scheme."""
        return registries.parameters(registries.schemes()[name], skip=registries.from_dataset())


def by_own_name(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """A partition whose scheme goes by its own name, with the parameters that another name implied."""
    alias = _alias(value)
    return value if alias is None else {**alias.parameters, **value, "scheme": alias.scheme}


def contradiction(value: Mapping[str, Any]) -> str | None:
    """The parameter of a partition that its scheme's name has a number for, and another one; None where none is."""
    alias, key = _alias(value), "classes_per_client"  # what other names imply is a default
    wanted = None if alias is None else alias.parameters.get(key)
    return key if wanted is not None and value.get(key, wanted) != wanted else None


def _alias(value: Mapping[str, Any]) -> Any:
    name = value.get("scheme")
    return registries.scheme_alias(name) if isinstance(name, str) and name not in registries.schemes() else None


class Auxiliary(Section):
    """Balanced images that the server keeps for itself, for methods that use some.

    They are the set "balanced" of the federation.

    Attributes:
        per_class: how many images of each class; 0 for none.
        source: `train` takes them out of the training images before these are partitioned, drawn with the partition's
            seed; `test` takes the first ones of each class in the test set, which stay in it as well: so do the papers,
            but the server then trains on what it is tested on.
    """

    per_class: Annotated[int, under(Whole(0))] = 0
    source: Annotated[str, under(OneOf(("train", "test")))] = "train"


class Model(Section):
    """Which network.

    Attributes:
        name: one of `fedjax_bal.models.MODELS`.
        convolution: `fast`, or `plain` for what needs second derivatives; that one on a single device of a CPU.
    """

    name: Annotated[str, under(OneOf(lambda: registries.models()))]
    convolution: Annotated[str, under(OneOf(("fast", "plain")))] = "fast"


class Schedule(Variant):
    """A factor on the learning rate that changes with time.

    Attributes:
        name: one of `fedjax_bal.schedules.names()`; its parameters stand beside it.
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
        """What `fedjax_bal.optimizers.optimizer` takes; None for the one that changes nothing."""
        from fedjax_bal.schedules import schedule

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


class Optimizer(Variant):
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
    schedule: Schedule = Field(default_factory=dict)  # type: ignore[arg-type]
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
        """What `fedjax_bal.optimizers.optimizer` takes; options at their defaults are left to optax."""
        shared = {key: getattr(self, key) for key in sorted(self.common())}
        shared = {key: value.built if isinstance(value, Schedule) else value for key, value in shared.items()}
        shared = {key: value for key, value in shared.items() if value is not None}
        defaults = {key: field.default for key, field in type(self).model_fields.items()}
        return {**shared, **{key: value for key, value in self.parameters.items() if value != defaults[key]}}

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        if self.picked:
            from fedjax_bal.optimizers import optimizer

            try:
                optimizer(**self.keywords).transform(0)
            except (ValueError, TypeError) as error:
                raise PydanticCustomError("refused", "{text}", {"text": f"refused by {self.name}: {error}"}) from None
        return self


class LocalOptimizer(Optimizer):
    """The optimizer of the clients.

    Attributes:
        step_schedule: a further factor on the learning rate, by local step from 0 in each visit.
    """

    step_schedule: Schedule = Field(default_factory=dict)  # type: ignore[arg-type]


class ServerOptimizer(Optimizer):
    """The optimizer that applies the cohort's mean delta; by default it adds it."""

    learning_rate: Positive = 1.0


class Training(Section):
    """Rounds and local steps.

    Attributes:
        rounds: how many rounds.
        local_epochs: passes of a client over its data in each round; null where `local_steps` is given.
        batch_size: images a local step.
        drop_last: leave out the last batch of an epoch when it is short.
        batches_per_epoch: the most batches of an epoch, of rows drawn anew each time; None for all of a client's rows.
        batch_statistics: where a client's running batch statistics come from, see `fedjax_bal.simulation.build`.
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
    optimizer: LocalOptimizer
    server_optimizer: ServerOptimizer = Field(default_factory=dict)  # type: ignore[arg-type]
    early_stopping: Stopping = Field(default_factory=dict)  # type: ignore[arg-type]

    @model_validator(mode="after")
    def _epochs_or_steps(self) -> Self:
        epochs, steps = self.local_epochs, self.local_steps
        if (epochs is None) == (steps is None):
            if epochs is None:
                problem = (("local_epochs",), "missing, must be an integer of at least 1, or local_steps given instead")
            else:
                text = f"received {steps} beside local_epochs={epochs}; set one of the two to null, or leave it out"
                problem = (("local_steps",), text)
            raise _refused(*problem, steps)
        return self


class Selection(Variant):
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


class Availability(_Absence):
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

    name: Annotated[str, under(OneOf(lambda: Availability.laws))] = "always"


class Delivery(_Absence):
    """Who comes back after training.

    Attributes:
        name: `always`; `bernoulli`: each selected client with probability p; `trace`: as a file says.
    """

    laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "always": {},
        "bernoulli": {"p": (Probability, ...)},
        "trace": _TRACE,
    }

    name: Annotated[str, under(OneOf(lambda: Delivery.laws))] = "always"


class Speed(_Absence):
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

    name: Annotated[str, under(OneOf(lambda: Speed.laws))] = "unlimited"


class Evaluation(Section):
    """When the global model is tested.

    Attributes:
        every: rounds between two tests.
        update_diversity: report how far apart the updates of each round lie (ReBaFL eq. 24).
        local_accuracy: report how well the clients' own models do on their own rows after training.
        local_test_images: on how many test images they are tried too, in each evaluated round; 0 for none.
        privacy: at the end of each method's run with the first seed, look for what it gives away: neighbours of
            generated images among the clients', and attacks on shared prototypes.
        attack_steps: training steps of each of these attacks.
        traffic: how a client counts that a mediator visits several times a round: `paper`, once, as in Astraea's
            formula; `exact`, as often as models are exchanged.
        target_accuracy: the accuracy in (0, 1] whose first round is reported; None for none.
        shots: which classes count as many-, medium- and few-shot.
        validation: training images on which the global model is validated.
        client_test: images on which each client is tested.
        personalised: for how many epochs the final global model is fine-tuned on each client, which is then tested;
            None for not. With plain cross-entropy and the local optimizer, whatever the method.
    """

    every: Count = 1
    update_diversity: Switch = False
    local_accuracy: Switch = False
    local_test_images: Annotated[int, under(Whole(0))] = 0
    privacy: Switch = False
    attack_steps: Count = 1000
    traffic: Annotated[str, under(OneOf(("paper", "exact")))] = "paper"
    target_accuracy: Annotated[float | None, under(OrNull(Real(0, 1, above=True)))] = None
    shots: Shots = Field(default_factory=dict)  # type: ignore[arg-type]
    validation: Validation = Field(default_factory=dict)  # type: ignore[arg-type]
    client_test: ClientTest = Field(default_factory=dict)  # type: ignore[arg-type]
    personalised: Annotated[int | None, under(OrNull(Whole(1)))] = None


class Execution(Section):
    """How the work is laid out on the machine.

    Attributes:
        strategy: of the client axis; `auto` picks by backend.
        devices: how many devices share the work; `auto` for all, which on a CPU is one unless `--devices` says more.
        chunk: clients at a time on each device under vmap; `auto` for as many as waste little and fit into memory.
        client_memory: where what a method remembers of each client is kept; `auto` for the devices where it fits.
        precision: in which models compute; parameters and sums over clients stay float32.
        rounds_per_dispatch: rounds that one call of the compiled program does; `auto` for 5, or 1 where the selector
            looks at each round's outcome before it chooses again.
        checkpoint_every: rounds between two checkpoints.
        broken_clients: what becomes of clients whose update is not finite: `raise`, the run ends; `exclude`, each round
            is as if they had not delivered; `clip`, that too, and updates that are far longer than the others of their
            round are scaled down.
        clip_factor: how far: more than so many times the median norm.
    """

    strategy: Annotated[str, under(OneOf(("auto", "map", "vmap")))] = "auto"
    devices: Annotated[str | int, under(AutoOr(Whole(1)))] = "auto"
    chunk: Annotated[str | int, under(AutoOr(Whole(1)))] = "auto"
    client_memory: Annotated[str, under(OneOf(("auto", "device", "host")))] = "auto"
    precision: Annotated[str, under(OneOf(("float32", "tensorfloat32", "bfloat16")))] = "float32"
    rounds_per_dispatch: Annotated[str | int, under(AutoOr(Whole(1)))] = "auto"
    checkpoint_every: Count = 10
    broken_clients: Annotated[str, under(OneOf(("raise", "exclude", "clip")))] = "raise"
    clip_factor: Annotated[float, under(Real(1))] = 10.0


class Sections(Section):
    """The sections that describe one federation and its training; each may be overridden for one method."""

    dataset: Dataset
    partition: Partition
    auxiliary: Auxiliary = Field(default_factory=dict)  # type: ignore[arg-type]
    model: Model
    training: Training
    selection: Selection
    availability: Availability = Field(default_factory=dict)  # type: ignore[arg-type]
    delivery: Delivery = Field(default_factory=dict)  # type: ignore[arg-type]
    speed: Speed = Field(default_factory=dict)  # type: ignore[arg-type]
    evaluation: Evaluation = Field(default_factory=dict)  # type: ignore[arg-type]
    execution: Execution = Field(default_factory=dict)  # type: ignore[arg-type]

    @model_validator(mode="after")
    def _enough_clients(self) -> Self:
        asked, there = self.selection.clients_per_round, self.partition.clients
        if asked <= there:
            return self
        text = (
            f"received {asked}, more clients a round than the {there} of partition.clients; at most {there} is allowed"
        )
        raise _refused(("selection", "clients_per_round"), text, asked)

    @model_validator(mode="after")
    def _with_what_it_needs(self) -> Self:
        found = conflict(self.training, self.evaluation)
        if found is None:
            return self
        place, received, text = found
        raise _refused(place, f"received {received}, {text}", received)


def _refused(place: tuple[str, ...], text: str, received: Any) -> ValidationError:
    kind = PydanticCustomError("refused", "{text}", {"text": text})
    return ValidationError.from_exception_data("", [InitErrorDetails(type=kind, loc=place, input=received)])
