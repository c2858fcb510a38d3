"""The options of a simulation: name, default, range and meaning of each, declared here and nowhere else.

`simulate` takes these objects, the engine carries them, and the sections of a configuration get their keys from them.
Values are checked when a user makes an object, and against recipe and data when a simulation is built. Configurations
have checked theirs, and the engine derives objects from checked ones: both use `trusted` and `derived`, which check
nothing again. Importing this module doesn't import jax.
"""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from annotated_types import Le

from fedjax_bal.annotations import Count, CountOrZero, Factor, check_fields
from fedjax_bal.metrics import SHOTS, Shots

if TYPE_CHECKING:
    from fedjax_bal.optim import AnyOptimizer
    from fedjax_bal.selection import Choice, Presence, Selector, Speed, Trace

T = TypeVar("T")
Drawing = Literal["epochs", "replacement"]
MOST_DEVICES = 1024
"""The most devices that may share the work."""


LEARNING_RATE = 0.05
"""The clients' learning rate unless another one is given, of plain SGD."""
CLIENTS_PER_ROUND = 10
"""The size of the cohort unless another one is given, or all clients if there are fewer."""


def _plain_sgd() -> "AnyOptimizer":
    from fedjax_bal.optim import optimizer

    return optimizer("sgd", LEARNING_RATE)


def _all_clients() -> "Presence":
    from fedjax_bal.selection import always

    return always()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """The local training of a client in a round.

    Attributes:
        epochs: E, passes over a client's rows; 1 unless `steps` is given.
        batch_size: B, rows of a local step.
        drop_last: leave out the last batch of an epoch if it is short.
        batches_per_epoch: the most batches of an epoch, each epoch with other rows of the client; None for all rows.
        batch_statistics: the running statistics of batch normalisation with which a client starts: "average", those of
            the global model, which are the mean of the clients'; "local", those at the end of its last local training;
            "server_reset", the initial ones, mean 0 and variance 1 or pretrained. The global model always has the mean
            of those delivered.
        lone_rows: how a last batch of a single row, which has no batch statistics, is handled: "drop" leaves it out, a
            different row in every epoch, as rows are shuffled; "keep" trains on it; "auto" leaves it out for models
            with batch normalisation. Class counts and weights include all rows. A client's only row is always trained
            on, unless `drop_last` leaves it out.
        steps: K, local steps of every client instead of epochs, regardless of its number of rows: a small client goes
            through its rows several times.
        drawing: "epochs", each row once per epoch, or "replacement"; None for the recipe's, or else "epochs".
        optimizer: fresh at every local training; from `fedjax_bal.optimizer`, or any optax transformation; by default
            SGD with learning rate 0.05. Schedules of optax count local steps, from 0 in each local training; those of
            `optax.inject_hyperparams` and of `fedjax_bal.optimizer` count rounds. Random numbers that a transformation
            draws itself, as `optax.add_noise` does, are the same in each local training.

    Example:
        >>> import optax
        >>> adamw = optax.adamw(optax.cosine_decay_schedule(1e-3, decay_steps=20))  # local steps
        >>> by_step = LocalTraining(steps=20, optimizer=optax.chain(optax.clip_by_global_norm(1.0), adamw))
        >>> rate = optax.cosine_decay_schedule(0.1, decay_steps=100)  # rounds
        >>> by_round = LocalTraining(optimizer=optax.inject_hyperparams(optax.sgd)(rate, momentum=0.9))
    """

    epochs: Count | None = None
    batch_size: Count = 50
    drop_last: bool = False
    batches_per_epoch: Count | None = None
    batch_statistics: Literal["average", "local", "server_reset"] = "average"
    lone_rows: Literal["auto", "keep", "drop"] = "auto"
    steps: Count | None = None
    drawing: Drawing | None = None
    optimizer: "AnyOptimizer" = dataclasses.field(default_factory=_plain_sgd)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.epochs is not None and self.steps is not None:
            raise ValueError(f"steps: received {self.steps!r} together with epochs={self.epochs!r}; leave one out")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Participation:
    """Which clients train in a round, and which of their updates arrive.

    Attributes:
        clients_per_round: the cohort's size; None for 10, or for all clients if there are fewer. Can't be given with a
            ready-made selector.
        selector: a ready-made selector, or one by name; None for the recipe's, or else `uniform`.
        availability: which clients can be selected; by default all. If none is available, the round trains nothing.
        delivery: which clients send their update back; by default all.
        speed: how fast clients compute, and how late clients are handled, from `fedjax_bal.selection.speed`; None for
            no deadline.
    """

    clients_per_round: Count | None = None
    selector: "Selector | Choice | None" = None
    availability: "Presence | Trace" = dataclasses.field(default_factory=_all_clients)
    delivery: "Presence | Trace" = dataclasses.field(default_factory=_all_clients)
    speed: "Speed | None" = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """When the global model is tested, and which further metrics are reported.

    Attributes:
        every: rounds between two evaluations; the last round is always evaluated.
        update_diversity: report the mean squared distance of each round's updates from their mean (ReBaFL eq. 24);
            takes a few more passes over the parameters.
        local_accuracy: report the accuracy of the clients' own models, after training, on the clients' rows.
        local_test_images: number of random test images, the same in every run, on which the mean accuracy of these
            models is reported in each evaluated round; takes a forward pass over them for each client; 0 to leave it
            out.
        traffic: how often the model exchanges of a mediator's client that trains several times in a round are counted:
            "paper", once, as in Astraea's formula; "exact", as often as models are exchanged.
        shots: which classes count as many-, medium- and few-shot, by the federation's training images of each.
    """

    every: Count = 1
    update_diversity: bool = False
    local_accuracy: bool = False
    local_test_images: CountOrZero = 0
    traffic: Literal["paper", "exact"] = "paper"
    shots: Shots = SHOTS

    def __post_init__(self) -> None:
        check_fields(self)

    def rounds(self, done: int, last: int) -> Iterator[int]:
        """The evaluated rounds among the first `done` of a run of `last`, in order."""
        yield from range(self.every, done + 1, self.every)
        if done >= last and last % self.every:
            yield last


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """The layout of the work on the machine, and the handling of broken clients.

    Attributes:
        strategy: how clients are executed, not what they compute: "map", one after another on each device; "vmap",
            several at a time; "auto", the former on CPUs and the latter on accelerators; "debug", one after another on
            one device without compiling, so that an error in a part names its line, client, local step and batch.
        devices: how many of jax's devices share the work; "auto" for all, of which a CPU has one for each core.
        chunk: clients at a time on each device under "vmap"; "auto" for as many as waste few steps and fit into memory.
        client_memory: where a method's memory of each client is kept: "device"; "host"; "disk", an unnamed file in the
            run folder that disappears with the process; "auto" for the devices if it fits there, or else the host.
        precision: precision of the model's computations: "float32"; "tensorfloat32", for matrix products on devices
            that have it; or "bfloat16". Parameters, losses and sums over clients stay float32.
        rounds_per_dispatch: rounds in one compiled program; "auto" for 5, or for 1 if the selector needs each round's
            outcome before it chooses again.
        broken_clients: how clients are handled whose update (parameters, batch statistics, memory, reports, probes) is
            not finite, is known to be of an earlier round, or is huge: "raise" ends the run; "exclude" leaves them out:
            they keep their memory, and the others are weighted as if these hadn't delivered, for which a method with
            weights of its own takes memory for all updates of a round; "clip" leaves out those that aren't finite or
            are of an earlier round, and scales long updates down to `clip_factor` times the median norm of their round;
            it takes the same memory with every method. If no client of a round is left, nothing changes.
        clip_factor: the largest norm of an update under "clip", in units of the median norm of its round.
        huge_factor: for "raise" and "exclude": an update is huge if the norm of the resulting parameters exceeds both
            this number and this number times the norm of the model that the round began with; None for no such bound.
        differentiable: give loops over clients, steps and batches a static length, and layers JAX's own derivatives, so
            that `jax.grad` and `jax.jacfwd` work through a round of `make_round`; steps after a client's last one are
            computed and dropped.
    """

    strategy: Literal["auto", "map", "vmap", "debug"] = "auto"
    devices: Annotated[Count, Le(MOST_DEVICES)] | Literal["auto"] = "auto"
    chunk: Count | Literal["auto"] = "auto"
    client_memory: Literal["auto", "device", "host", "disk"] = "auto"
    precision: Literal["float32", "tensorfloat32", "bfloat16"] = "float32"
    rounds_per_dispatch: Annotated[Count, Le(1000)] | Literal["auto"] = "auto"
    broken_clients: Literal["raise", "exclude", "clip"] = "raise"
    clip_factor: Factor = 10.0
    huge_factor: Factor | None = 100.0
    differentiable: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "execution.")

    @property
    def debugs(self) -> bool:
        """True if nothing is compiled."""
        return self.strategy == "debug"

    @property
    def excludes(self) -> bool:
        """True if clients with broken updates are left out."""
        return self.broken_clients != "raise"

    @property
    def clips(self) -> bool:
        """True if long updates are scaled down."""
        return self.broken_clients == "clip"


def trusted(kind: type[T], **values: Any) -> T:
    """Makes options of values that have been checked before; a field that is left out has its default.

    Example:
        >>> trusted(Evaluation, every=5) == Evaluation(every=5)
        True
    """
    made = object.__new__(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in values:
            value = values[field.name]
        else:
            value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        object.__setattr__(made, field.name, value)
    return made


def derived(options: T, **changes: Any) -> T:
    """Returns options with other values in some fields, as `dataclasses.replace` does, without checking any again."""
    return trusted(type(options), **{**vars(options), **changes})
