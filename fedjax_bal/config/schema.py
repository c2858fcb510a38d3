"""The schema of a configuration: its sections with all keys and defaults, a method, and the whole.

Defaults stand here and nowhere else; options of the library come from `fedjax_bal.options`, and parameters of whatever
has a name from that function's signature.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from annotated_types import MinLen
from pydantic import Field

from fedjax_bal.analyses import ANALYSES
from fedjax_bal.annotations import (
    DISTINCT,
    FILE,
    Count,
    CountOrZero,
    Factor,
    NonNegative,
    Number,
    OneOf,
    ParsedBy,
    Positive,
    PositiveShare,
    ProperShare,
    Seed,
    ShortForm,
    TextMatching,
    parameters,
)
from fedjax_bal.config.errors import nearest_choices, received_value
from fedjax_bal.config.sections import (
    Section,
    Variant,
    check_section,
    options_section,
    refused,
    to_plain,
    variant,
)
from fedjax_bal.metrics import SHOTS, EarlyStopping, Shots, stopping_metrics
from fedjax_bal.options import CLIENTS_PER_ROUND, LEARNING_RATE, Evaluation, Execution, LocalTraining, trusted
from fedjax_bal.registry import plugin_errors

if TYPE_CHECKING:
    from fedjax_bal.recipes import Recipe

ALL_CLIENTS: Literal["all"] = "all"
"""The value of `clients` for one client per writer or user of the data set."""

_WELL_KNOWN = ("adam", "adamw", "rmsprop", "adagrad", "sgd")  # optimizers whose usual rates messages name
_Constant = Literal["own"] | Number | Annotated[tuple[Number, ...], MinLen(1)]
_PositiveConstant = Literal["own"] | Positive | Annotated[tuple[Positive, ...], MinLen(1)]


class DatasetSection(Variant):
    """The data set.

    Attributes:
        name: one of `fedjax_bal.data.DATASETS`; its options are further keys, for instance `path` of the user's own
            files, or `rows` of `synthetic`.
        mean: the mean subtracted from pixels, which are scaled to [0, 1]: a number, one for each channel, or `own` for
            the mean of the training images, see `fedjax_bal.data.normalisation`.
        std: the standard deviation by which they are then divided; `own` is that of the training images.
    """

    registry: ClassVar[str] = "data.DATASETS"
    choices_kind: ClassVar[str] = "datasets"

    name: Annotated[str, OneOf(lambda: DatasetSection.choices())] = "fashion_mnist_small"

    @classmethod
    def function_of(cls, name: str) -> Callable[..., Any]:
        """Returns the function that reads a data set."""
        return cls.choices()[name].read

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """Returns the normalisation constants and the options of a data set's reader, such as the path of a file."""
        from fedjax_bal.data import DATASETS, OWN

        reader = DATASETS[name]
        constants = {"mean": (_Constant, reader.mean or OWN), "std": (_PositiveConstant, reader.std or OWN)}
        return {**reader.options, **constants}

    @classmethod
    def _rule(cls, key: str, value: Any = None) -> str:
        """Says what a key may be; for a path, or a name on the hub, how to load it."""
        forms = cls.forms_of(str(value)) if key == "name" else ()
        if not forms:
            return super()._rule(key, value)
        return f", must be a name; your own data are loaded by {' or '.join(forms)}"

    @staticmethod
    def forms_of(text: str) -> tuple[str, ...]:
        """Returns the sections that load a file or folder of data; none for a text that is neither."""
        if text.endswith(".csv"):
            return (f"{{name: csv, path: {text}, label: COLUMN}}",)
        names = ("npz",) if text.endswith(".npz") else ("image_folder", "huggingface") if "/" in text else ()
        return tuple(f"{{name: {name}, path: {text}}}" for name in names)


class PartitionSection(Variant):
    """The division of the training images among clients.

    Attributes:
        scheme: one of `fedjax_bal.data.SCHEMES`, or an alias of one; its parameters are further keys. By default
            `dirichlet` with an alpha of 0.3.
        clients: N, the number of clients. For `natural` the default is `all`: one for each writer or user of the data
            set.
        seed: the seed of the partition alone.
        imbalance_factor: the ratio of the largest class to the smallest after thinning out classes, before the
            scheme divides the images; 1 keeps all images.
        imbalance_profile: how class sizes decrease, see `fedjax_bal.data.partition.long_tailed`.
        imbalance_order: which class is the largest, see `fedjax_bal.data.partition.long_tailed`.
        new_clients: the share of the clients that join when training is over, drawn with `seed`; rounded to whole
            clients. They aren't trained, selected or counted: the federation consists of the other clients. The final
            model is then tested on each new client's test rows, unchanged and fine-tuned on the client's training rows.
            They need test rows: from `evaluation.client_test`, or from a natural partition. None for no new clients.
    """

    registry: ClassVar[str] = "data.SCHEMES"
    choices_kind: ClassVar[str] = "partitions"
    choice: ClassVar[str | None] = "scheme"

    scheme: Annotated[str, OneOf(lambda: PartitionSection.choices(), lambda: PartitionSection.aliases())]
    clients: Count | Literal["all"] = 20
    seed: Seed = 0
    imbalance_factor: Factor = 1.0
    imbalance_profile: Literal["exponential", "step"] = "exponential"
    imbalance_order: Literal["label", "frequency", "random"] = "label"
    new_clients: ProperShare | None = None

    @classmethod
    def aliases(cls) -> dict[str, str]:
        """Returns the scheme of each alias."""
        from fedjax_bal.data import ALIASES

        return {name: alias.scheme for name, alias in ALIASES.items()}

    @classmethod
    def completed(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replaces an alias by the scheme's name and what the alias implies; adds the default scheme."""
        key = contradicted_parameter(value)
        if key is not None:
            raise refused(f"received {value[key]!r}, which the scheme's name says already; leave it out", key)
        return _with_scheme(value)

    @classmethod
    def class_for(cls, value: Mapping[str, Any]) -> type[Section] | None:
        """Returns the class with the parameters of the scheme, given by its name or an alias."""
        return super().class_for(_with_scheme(value))

    @property
    def drawing(self) -> dict[str, Any]:
        """The arguments of `fedjax_bal.data.partition.draw` except the labels."""
        shared = {key: getattr(self, key) for key in self.common() - {"new_clients"}}
        return {**shared, "clients": self.known_clients, "parameters": self.parameters}

    @property
    def known_clients(self) -> int | None:
        """The number of clients; None if the data set decides it."""
        return None if self.clients == ALL_CLIENTS else self.clients

    @property
    def training_clients(self) -> int | None:
        """The number of clients that train, without new ones; None if the data set decides it."""
        if self.known_clients is None or self.new_clients is None:
            return self.known_clients
        from fedjax_bal.data import num_new_clients

        return self.known_clients - num_new_clients(self.known_clients, self.new_clients)

    def _check(self) -> Self:
        if self.new_clients is not None and self.clients == 1:
            raise refused(f"received {self.new_clients} of 1 client, must leave at least one to train", "new_clients")
        return self

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """Returns the parameters of a scheme."""
        from fedjax_bal.data import FROM_DATASET, takes_owners

        fields = parameters(cls.choices()[name], skip=("rng", "labels", "num_clients", *FROM_DATASET))
        return {**fields, "clients": (Count | Literal["all"], ALL_CLIENTS) if takes_owners(name) else (Count, 20)}


def _with_scheme(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return resolve_alias(value) if "scheme" in value else {"scheme": "dirichlet", "alpha": 0.3, **value}


def resolve_alias(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replaces an alias by the scheme's name, and adds the parameters that the alias implies."""
    alias = _alias(value)
    return value if alias is None else {**alias.parameters, **value, "scheme": alias.scheme}


def contradicted_parameter(value: Mapping[str, Any]) -> str | None:
    """Returns the key of a parameter that contradicts the number in a scheme's alias; None if none does."""
    alias, key = _alias(value), "classes_per_client"  # other implied parameters are defaults
    wanted = None if alias is None else alias.parameters.get(key)
    return key if wanted is not None and value.get(key, wanted) != wanted else None


def _alias(value: Mapping[str, Any]) -> Any:
    from fedjax_bal.data import resolve

    name = value.get("scheme")
    return resolve(name) if isinstance(name, str) and name not in PartitionSection.choices() else None


class AuxiliarySection(Section):
    """Class-balanced images that the server keeps for methods that need them: the federation's set "balanced".

    Attributes:
        per_class: images of each class; 0 for none.
        source: `train` draws them from the training images with the partition's seed, and removes them before the
            partition; `test` copies the first ones of each class in the test set, as the papers do, so that the server
            trains on images that it is tested on.
    """

    per_class: CountOrZero = 0
    source: Literal["train", "test"] = "train"


class ModelSection(Variant):
    """The network.

    Attributes:
        name: one of `fedjax_bal.models.MODELS`; its options are further keys.
        convolution: `auto`, which is `builtin` on CPUs that can run it and `fast` otherwise, and stays so if the run is
            resumed elsewhere; `fast`, in XLA; `builtin`, through jaxlib's oneDNN, for CPUs; `plain`, with second
            derivatives, on a single device of a CPU.
        weights: an npz or safetensors file with the weights that all runs start from, in the form that `fedjax-bal
            export` writes; a classifier that it doesn't have is drawn. None to draw all weights.
    """

    registry: ClassVar[str] = "models.MODELS"
    choices_kind: ClassVar[str] = "models"

    name: Annotated[str, OneOf(lambda: ModelSection.choices())] = "mlp"
    convolution: Literal["auto", "fast", "builtin", "plain"] = "auto"
    weights: FILE | None = None

    @classmethod
    def function_of(cls, name: str) -> Callable[..., Any]:
        """Returns the function that builds a model."""
        return cls.choices()[name].body

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """Returns the options of a model."""
        from fedjax_bal.models import options

        return options(name)


class SelectionSection(Variant):
    """The selection of clients.

    Attributes:
        name: one of `fedjax_bal.selection.SELECTORS`; its parameters are further keys. With `uniform`, a recipe that
            has a selector (astraea, flcir, fedbuff) uses it instead. Updates are weighted by number of samples, except
            after `by_size` and `power_of_choice`, which draw clients by number of samples already: then all count the
            same.
        clients_per_round: the size of the cohort, or the number of available clients if that is smaller. By default
            10, or the number of clients if that is smaller. With `buffered`, the updates in a step of the server.
    """

    registry: ClassVar[str] = "selection.SELECTORS"
    choices_kind: ClassVar[str] = "selectors"

    name: Annotated[str, OneOf(lambda: SelectionSection.choices())] = "uniform"
    clients_per_round: Count = CLIENTS_PER_ROUND

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """Returns the parameters of a selector, without those that come from the federation."""
        from fedjax_bal.selection import FROM_FEDERATION

        return parameters(cls.choices()[name], skip=("clients_per_round", *FROM_FEDERATION))


class AvailabilitySection(Variant):
    """The clients that can be selected in a round.

    Attributes:
        name: `always`; `bernoulli`: each client with probability p, possibly none; `periodic`: the same, redrawn every
            `period` rounds; `clustered`: client i with the i-th probability of the list p, which repeats; `markov`:
            clients come and go, and are present in a share p of all rounds; `cyclic`: each client is present for a
            share p of its cycle; `round_robin`: clients take turns; `arrival`, `departure`: clients arrive or leave one
            after another; `trace`: read from a file, see `fedjax_bal.selection.trace`. A round without clients trains
            nothing.
    """

    registry: ClassVar[str] = "selection.PATTERNS"

    name: Annotated[str, OneOf(lambda: AvailabilitySection.choices())] = "always"


class DeliverySection(Variant):
    """The clients that return their update.

    Attributes:
        name: the patterns of `availability`, here of selected clients: the selector doesn't see who is absent, and an
            absent client's update is lost. Random patterns are drawn independently of those of `availability`.
    """

    registry: ClassVar[str] = "selection.PATTERNS"

    name: Annotated[str, OneOf(lambda: DeliverySection.choices())] = "always"


class SpeedSection(Variant):
    """The speed of clients, and the handling of late ones.

    Attributes:
        name: `unlimited`, time is not simulated; `constant`, `uniform` or `lognormal`, the distribution of local steps
            per second; `latency`, normally distributed seconds for a round, whatever the steps; `file`, read from a
            file. Further keys are `deadline`, the seconds of a round, null for none, and `late`, for clients that would
            take longer: `partial`, they take only the steps that fit; `drop`, they don't deliver.
    """

    registry: ClassVar[str] = "selection.SPEEDS"

    name: Annotated[str, OneOf(lambda: SpeedSection.choices())] = "unlimited"


class ShotsSection(Section):
    """The bounds of many-, medium- and few-shot classes, in training images of a class.

    Attributes:
        few: a class with fewer images is a few-shot class.
        many: a class with more images is a many-shot class.
    """

    few: CountOrZero = SHOTS.few
    many: CountOrZero = SHOTS.many

    def _check(self) -> Self:
        if self.few > self.many:
            raise refused(f"received few {self.few} above many {self.many}, so a class could be both; lower few")
        return self

    @property
    def bounds(self) -> Shots:
        """The bounds as an object of the library."""
        return Shots(self.few, self.many)


class _HeldOutSection(Section):
    def _check(self) -> Self:
        given = [f"{key} {value}" for key, value in self if value is not None]
        if len(given) > 1:
            raise refused(f"received {' and '.join(given)}; give one of them and set the other to null")
        return self

    @property
    def wanted(self) -> bool:
        """True if images are held out."""
        return any(value is not None for _, value in self)


class ValidationSection(_HeldOutSection):
    """Training images that validate the global model: removed before the partition, never trained on.

    They are the federation's set "validation". At most one of the two keys may be given; without either there is no
    set.

    Attributes:
        per_class: images of each class.
        fraction: share of each class.
    """

    per_class: Count | None = None
    fraction: ProperShare | None = None


class ClientTestSection(_HeldOutSection):
    """Each client's test images, for the global model and the client's own; never trained on.

    At most one of the two keys may be given; without either, clients are not tested.

    Attributes:
        fraction: share of each client's rows that is held out for it, drawn with the partition's seed.
        per_client: instead, images of the test set for each client, in the class proportions of its training images.
    """

    fraction: ProperShare | None = None
    per_client: Count | None = None


class EarlyStoppingSection(Section):
    """The rule that ends a run before its last round: see `fedjax_bal.metrics.EarlyStopping`.

    Attributes:
        patience: consecutive evaluated rounds without improvement that end the run; None for never. It ends with
            the dispatch that reaches this number, regardless of the later rounds of that dispatch.
        metric: a metric of the validation rows.
        min_delta: an increase over the best so far counts as an improvement only if it exceeds this.
    """

    patience: Count | None = None
    metric: Annotated[str, OneOf(stopping_metrics)] = EarlyStopping().metric
    min_delta: NonNegative = 0.0

    @property
    def rule(self) -> EarlyStopping:
        """The rule as an object of the library."""
        return EarlyStopping(self.patience, self.metric, self.min_delta)


class ScheduleSection(Variant):
    """A factor on the learning rate that changes over time.

    Attributes:
        name: one of `fedjax_bal.optim.schedule_names()`; its parameters are further keys.
    """

    choices_kind: ClassVar[str] = "schedules"

    name: Annotated[str, OneOf(lambda: ScheduleSection.choices())] = "constant"

    @classmethod
    def choices(cls) -> Mapping[str, Any]:
        """Returns the functions that build schedules, by name."""
        from fedjax_bal.optim import schedule_factory, schedule_names

        return {name: schedule_factory(name) for name in schedule_names()}

    @property
    def built(self) -> Any:
        """The schedule; None for the constant one."""
        from fedjax_bal.optim import schedule

        return schedule(self.name, **{key: value for key, value in self.parameters.items() if value is not None})

    def _check(self) -> Self:
        try:
            _ = self.built
        except (ValueError, TypeError) as error:
            raise refused(f"refused by {str(error).removeprefix('schedule: ')}") from None
        return self


class OptimizerSection(Variant):
    """An optax optimizer.

    Attributes:
        name: any optimizer of optax or `optax.contrib` that takes a learning rate; its options are further keys.
        learning_rate: the learning rate in round 0. The default is for `sgd`; any other name needs its own rate, also
            in place of another one with a rate.
        weight_decay: coupled weight decay, added to the gradient; an optimizer that has such an option (adamw, for
            instance) gets it instead.
        decay: the factor by which the learning rate is multiplied each round.
        schedule: a further factor on the learning rate, by round.
        clip_norm: the largest global norm of a gradient; None for no limit.
        clip_value: the largest magnitude of each number of a gradient; None for no limit.
    """

    choices_kind: ClassVar[str] = "optimizers"
    renewed: ClassVar[tuple[str, ...]] = ("learning_rate",)

    name: Annotated[str, OneOf(lambda: OptimizerSection.choices())] = "sgd"
    learning_rate: Positive
    weight_decay: NonNegative = 0.0
    decay: PositiveShare = 1.0
    schedule: ScheduleSection = Field(default_factory=ScheduleSection.default)
    clip_norm: Positive | None = None
    clip_value: Positive | None = None

    @classmethod
    def choices(cls) -> Mapping[str, Any]:
        """Returns the functions of optax and `optax.contrib`, by name."""
        from fedjax_bal.optim import optimizer_factory, optimizer_names

        return {name: optimizer_factory(name) for name in optimizer_names()}

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """Returns the options of an optimizer."""
        from fedjax_bal.optim import option_names

        known = parameters(cls.choices()[name], skip=cls.model_fields)
        return {option: field for option, field in known.items() if option in option_names(name)}

    @classmethod
    def usual_rate(cls, name: str) -> float:
        """Returns the usual learning rate of an optimizer."""
        from fedjax_bal.optim import USUAL_RATES

        return USUAL_RATES.get(name, 0.001)

    @classmethod
    def completed(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuses an optimizer other than plain SGD without a learning rate, and names the usual one."""
        fields = cls.model_fields
        name = value.get("name", fields["name"].default)
        default = fields["learning_rate"].default if name == "sgd" else None
        known = isinstance(name, str) and name in cls.choices()
        if known and value.get("learning_rate", default) is None:
            others = ", ".join(f"{other} {cls.usual_rate(other):g}" for other in _WELL_KNOWN if other != name)
            advice = f"write {{name: {name}, learning_rate: {cls.usual_rate(name):g}}}, which is usual ({others})"
            raise refused(f"received {name!r} without a learning_rate of its own; {advice}", "name")
        return value

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

    def _check(self) -> Self:
        try:
            self.built.transform(0)
        except (ValueError, TypeError) as error:
            raise refused(f"refused by {self.name}: {error}") from None
        return self


class LocalOptimizerSection(OptimizerSection):
    """The optimizer of the clients.

    Attributes:
        step_schedule: a further factor on the learning rate, by local step, from 0 in each local training.
        clip_at: when a gradient is clipped: `start`, before parts change it (SCAFFOLD's correction, for instance), or
            `end`, after.
    """

    learning_rate: Positive = LEARNING_RATE
    step_schedule: ScheduleSection = Field(default_factory=ScheduleSection.default)
    clip_at: Literal["start", "end"] = "start"


class ServerOptimizerSection(OptimizerSection):
    """The optimizer that applies the cohort's mean update, by default plain addition.

    A recipe that brings a server optimizer replaces plain addition, which is `sgd` with a rate of 1, also if it is
    stated, and is refused beside any other one.
    """

    learning_rate: Positive = 1.0

    @classmethod
    def usual_rate(cls, name: str) -> float:
        """Returns the usual learning rate of an optimizer on the server (Reddi et al., 2021)."""
        return {"sgd": 1.0, "adagrad": 0.1}.get(name, 0.01)


_LOCAL_KEYS = {"epochs": "local_epochs", "steps": "local_steps", "drawing": None}


class TrainingSection(options_section(LocalTraining, names=_LOCAL_KEYS, before={"epochs": ("rounds",)})):
    """Rounds and local steps: the options of `fedjax_bal.options.LocalTraining`, and the server's optimizer.

    Attributes:
        rounds: the number of rounds.
        batch_size: images per local step.
        optimizer: the clients' optimizer, reset at the start of every local training.
        server_optimizer: the server's optimizer.
        early_stopping: the rule that ends a run once its validation metric stops improving.
    """

    rounds: Count = 50
    optimizer: LocalOptimizerSection = Field(default_factory=LocalOptimizerSection.default)
    server_optimizer: ServerOptimizerSection = Field(default_factory=ServerOptimizerSection.default)
    early_stopping: EarlyStoppingSection = Field(default_factory=EarlyStoppingSection.default)

    @property
    def options(self) -> LocalTraining:
        """The options of the library."""
        return trusted(LocalTraining, **self.arguments(optimizer=self.optimizer.built))

    @classmethod
    def completed(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Adds one epoch, unless epochs or steps are given."""
        return value if {"local_epochs", "local_steps"} & value.keys() else {**value, "local_epochs": 1}

    def _check(self) -> Self:
        given = self.arguments()
        epochs = given["epochs"]
        steps = given["steps"]
        if epochs is None and steps is None:
            raise refused("missing, must be an integer of at least 1, or local_steps given instead", "local_epochs")
        if epochs is not None and steps is not None:
            rule = "set one of the two to null, or leave it out"
            raise refused(f"received {steps} together with local_epochs={epochs}; {rule}", "local_steps")
        return self


def _options_by_name(value: Any) -> dict[str, Any]:
    """Reads names, each perhaps with options: NAME, [NAME, ...] or {NAME: {OPTION: VALUE}}."""
    named = value if isinstance(value, Mapping) else dict.fromkeys([value] if isinstance(value, str) else value)
    if not all(isinstance(name, str) and isinstance(options, Mapping | None) for name, options in named.items()):
        raise ValueError
    return {name: dict(options or {}) for name, options in named.items()}


class EvaluationSection(options_section(Evaluation, before={"traffic": ("analyses",), "shots": ("target_accuracy",)})):
    """Evaluation of models: the options of `fedjax_bal.options.Evaluation`, and further reports.

    Attributes:
        analyses: analyses of plug-ins that examine each method's run with the first seed after its training, such as
            `[privacy]` with `--plugin fedjax_bal.contrib.privacy`; `{NAME: {OPTION: VALUE}}` sets their options.
        target_accuracy: an accuracy in (0, 1]; the first round that reaches it is reported. None for none.
        shots: the bounds of many-, medium- and few-shot classes.
        validation: training images that validate the global model.
        client_test: images that test each client.
        personalised: epochs for which the final global model is fine-tuned on each client before the client's test;
            None for no fine-tuning. The clients need test rows: those of `client_test`, or a natural partition's. Every
            method is fine-tuned with plain cross-entropy and the local optimizer, at the learning rate of the round
            after the last; `step_schedule` is ignored.
        new_client_epochs: epochs for which the final model is fine-tuned on each client of `partition.new_clients`, in
            the same way as with `personalised`.
    """

    analyses: Annotated[dict[str, Any], ParsedBy("[NAME, ...] or {NAME: {OPTION: VALUE}}", _options_by_name)] = Field(
        default_factory=dict
    )
    target_accuracy: PositiveShare | None = None
    shots: ShotsSection = Field(default_factory=ShotsSection.default)
    validation: ValidationSection = Field(default_factory=ValidationSection.default)
    client_test: ClientTestSection = Field(default_factory=ClientTestSection.default)
    personalised: Count | None = None
    new_client_epochs: Count = 5

    def _check(self) -> Self:
        analyses = {}
        for name, options in self.analyses.items():
            if name not in ANALYSES:
                raise refused(f"received {name!r}; {nearest_choices(name, ANALYSES, kind='analyses')}", "analyses")
            fields = tuple(parameters(ANALYSES[name]).items())
            checked, problems = check_section(variant(Section, name, fields), options, ("analyses", name))
            for problem in problems:
                raise refused(problem.text, *problem.path)
            analyses[name] = to_plain(checked)
        return self.model_copy(update={"analyses": analyses}) if analyses else self

    @property
    def options(self) -> Evaluation:
        """The options of the library."""
        return trusted(Evaluation, **self.arguments(shots=self.shots.bounds))


class ExecutionSection(
    options_section(Execution, names={"differentiable": None}, before={"broken_clients": ("checkpoint_every",)})
):
    """Layout of the work on the machine: the options of `fedjax_bal.options.Execution`, and checkpoints.

    A CPU has one device per core unless `--devices` gives another number; resumed runs keep their number of devices.

    Attributes:
        checkpoint_every: rounds between two checkpoints.
    """

    checkpoint_every: Count = 10

    @property
    def options(self) -> Execution:
        """The options of the library."""
        return trusted(Execution, **self.arguments())


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

    def _check(self) -> Self:
        patience = self.training.early_stopping.patience
        if patience is not None and not self.evaluation.validation.wanted:
            rule = "needs validation images: set evaluation.validation, for instance to {per_class: 50}"
            raise refused(f"received {patience}, {rule}", "training", "early_stopping")
        asked = self.selection.clients_per_round
        clients = self.partition.training_clients
        if clients is not None and asked > clients:
            if "clients_per_round" in self.selection.model_fields_set:
                new = self.partition.new_clients is not None
                whose = "that partition.new_clients leaves" if new else "of partition.clients"
                rule = f"more clients a round than the {clients} {whose}; at most {clients} is allowed"
                raise refused(f"received {asked}, {rule}", "selection", "clients_per_round")
            asked = clients
        # From here on the cohort counts as stated, as when the resolved text is read again: methods inherit it.
        selection = self.selection.model_copy(update={"clients_per_round": asked})
        return self.model_copy(update={"selection": selection})


FOLDER_NAME = TextMatching(
    "a name of letters, digits, '.', '_' and '-', starting with a letter or digit, at most 100 characters",
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}").fullmatch,
)
METHOD_NAME = TextMatching(
    "printable text of 1 to 60 characters", lambda text: text.isprintable() and 0 < len(text.strip()) == len(text) <= 60
)

MOST_SEEDS = 1000
"""The largest number of seeds that may be given in place of a list of them."""

_SOURCE = TextMatching(
    "printable text of 1 to 300 characters", lambda text: text.isprintable() and 0 < len(text) <= 300
)
_COUNT = ShortForm(f"a count from 1 to {MOST_SEEDS} (3 for [0, 1, 2])")
_Seeds = Annotated[tuple[Seed, ...], MinLen(1), DISTINCT, _COUNT]
_Value = Annotated[Any, ParsedBy("a value of the key", lambda value: value)]


KEYS_OF_METHODS = ("name", "label", "recipe", *Sections.model_fields)
"""The keys of a method's entry next to its recipe's hyperparameters."""


class RecipeSection(Variant):
    """A recipe by name, with its hyperparameters as further keys.

    Attributes:
        name: one of `fedjax_bal.recipes.RECIPES`.
    """

    registry: ClassVar[str] = "recipes.RECIPES"
    choices_kind: ClassVar[str] = "recipes"

    name: Annotated[str, OneOf(lambda: RecipeSection.choices())]

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """All hyperparameters; the recipe is `RECIPES[name](**hyperparameters)`."""
        return {key: to_plain(value) for key, value in self.parameters.items()}

    @classmethod
    def completed(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replaces a recipe's variant by the hyperparameters that it stands for."""
        from fedjax_bal.recipes import with_variant

        name = value.get("name")
        if not isinstance(name, str) or name not in cls.choices():
            return value
        try:
            return with_variant(cls.choices()[name], value)
        except (ValueError, TypeError) as error:
            raise cls._refused_by(error, name, value) from None

    def built(self) -> "Recipe":
        """Builds the recipe."""
        return self.choices()[self.name](**self.hyperparameters)

    def _check(self) -> Self:
        try:
            with plugin_errors():
                self.built()
        except (ValueError, TypeError) as error:
            raise self._refused_by(error, self.name, self.parameters) from None
        return self

    @staticmethod
    def _refused_by(error: Exception, name: str, values: Mapping[str, Any]) -> Exception:
        """Attributes a recipe's error to the hyperparameter that it mentions, if it is one alone."""
        text = str(error)
        mentioned = [key for key in values if key != "name" and re.search(rf"\b{re.escape(key)}\b", text)]
        if len(mentioned) != 1:
            return refused(f"refused by recipe {name}: {text}")
        (key,) = mentioned
        _, received, rule = text.partition(f"{key}: received ")
        return refused(f"received {rule if received else f'{received_value(values[key])}; {text}'}", key)


class MethodConfig(Sections):
    """A method: its recipes, and the sections with its overrides applied.

    Attributes:
        name: the method's name in results.
        label: its name in reports; None for `name`. A change of it alone resumes a run.
        recipes: the recipes, to be combined in this order.
        overrides: the method's changes to the sections of the configuration.
    """

    registry: ClassVar[str] = "recipes.RECIPES"
    choices_kind: ClassVar[str] = "recipes"
    choice: ClassVar[str | None] = "recipe"
    listed: ClassVar[bool] = True

    name: str
    label: str | None = None
    recipes: tuple[RecipeSection, ...]
    overrides: dict[str, Any]

    @functools.cached_property
    def recipe(self) -> "Recipe":
        """The combined recipe."""
        from fedjax_bal.recipes import combine

        return combine(*(recipe.built() for recipe in self.recipes))


# pydantic passes entries on as they are: `read_methods` validates them once the shared sections are valid.
_WANTED = "a recipe's name, such as fedavg, or a mapping with the key recipe"
_Entry = Annotated[MethodConfig, ParsedBy(_WANTED, lambda entry: entry)]


class ReportedResults(Section):
    """A paper's results, which the report compares with this run's.

    Attributes:
        source: the paper and table, and where its setting differs.
        accuracy: test accuracy in (0, 1] by the method's name in this configuration. Names of methods that aren't run
            are left out.
        which: `final`, `best` over all rounds, or `last5`, the mean of the last five evaluations.
        setting: the paper's values of keys that this configuration changes, by their dotted paths. Changes on the
            command line, and in a file based on the paper's, are noted here.
    """

    source: Annotated[str, _SOURCE]
    accuracy: Annotated[dict[str, PositiveShare], MinLen(1)]
    which: Literal["final", "best", "last5"] = "final"
    setting: dict[str, _Value] = Field(default_factory=dict)


class Config(Sections):
    """A complete, checked configuration.

    Attributes:
        name: the name of the run folder; by default the file's name.
        methods: the methods to compare; an entry is a recipe's name, or a mapping with the key recipe, the recipe's
            hyperparameters, changes to the sections, a `name` in results, and a `label` in reports.
        seeds: distinct seeds; every method runs once with each.
        partition_seeds: one partition seed for each of `seeds`, so that intervals over seeds include the variation
            between partitions; None for a single partition, drawn with `partition.seed`.
        paper: a paper's results in this setting; None for none.
        plugins: the plug-ins that a run used, with the digests of their sources.
    """

    name: Annotated[str, FOLDER_NAME]
    methods: Annotated[tuple[_Entry, ...], MinLen(1)]
    seeds: _Seeds = (0,)
    partition_seeds: _Seeds | None = None
    paper: ReportedResults | None = None
    plugins: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def child(cls, key: str) -> type[Section] | None:
        """Returns the class of the section at a key; for `methods`, the class of its entries."""
        return MethodConfig if key == "methods" else super().child(key)

    def with_partition_of(self, seed: int, method: MethodConfig) -> MethodConfig:
        """Returns a method's configuration with the partition seed that belongs to one of `seeds`.

        Example:
            >>> from fedjax_bal.config import load_config
            >>> config = load_config(None, ["seeds=[0, 1]", "partition_seeds=[5, 6]"])
            >>> config.with_partition_of(1, config.methods[0]).partition.seed
            6
        """
        if self.partition_seeds is None:
            return method
        partition = method.partition.model_copy(update={"seed": self.partition_seeds[self.seeds.index(seed)]})
        return method.model_copy(update={"partition": partition})

    def _check(self) -> Self:
        if self.partition_seeds is not None and len(self.partition_seeds) != len(self.seeds):
            rule = f"must be as many as the {len(self.seeds)} of `seeds`"
            raise refused(f"received {len(self.partition_seeds)} seeds, {rule}", "partition_seeds")
        return super()._check()
