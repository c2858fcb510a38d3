"""The options of a simulation: name, default, range and meaning of each, declared here and nowhere else.

`simulate` takes these objects, the engine carries them, and the sections of a configuration get their keys from them.
Values are checked when a user makes an object, and against recipe and data when a simulation is built. Configurations
have checked theirs, and the engine derives objects from checked ones: both use `trusted` and `derived`, which skip the
checks. Importing this module doesn't import jax.
"""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from annotated_types import Le

from fedjax_bal.annotations import Count, CountOrZero, Factor, check_fields
from fedjax_bal.metrics import SHOTS, Shots

if TYPE_CHECKING:
    from fedjax_bal.optim import AnyOptimizer
    from fedjax_bal.selection import Choice, Pattern, Presence, Selector, Speed

T = TypeVar("T")
Drawing = Literal["epochs", "replacement"]
MOST_DEVICES = 1024
"""The most devices that may share the work."""


LEARNING_RATE = 0.05
"""The default learning rate of the clients' plain SGD."""
CLIENTS_PER_ROUND = 10
"""The default size of a cohort; all clients if there are fewer."""


def _plain_sgd() -> "AnyOptimizer":
    from fedjax_bal.optim import optimizer

    return optimizer("sgd", LEARNING_RATE)


def _all_clients() -> "Presence":
    from fedjax_bal.selection import always

    return always()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains in a round.

    Attributes:
        epochs: E, passes over a client's rows; 1 unless `steps` is given.
        batch_size: B, rows of a local step.
        drop_last: drop the last batch of an epoch if it is short.
        batches_per_epoch: maximum number of batches per epoch, in every epoch with different rows; None uses all rows.
        batch_statistics: the running statistics of batch normalisation that a client starts from: "average", the global
            model's, which are the mean over clients; "local", those at the end of the client's last local training;
            "server_reset", the initial ones (mean 0 and variance 1, or pretrained). The global model always has the
            mean of the delivered ones.
        lone_rows: what to do with a last batch of a single row, for which batch normalisation has no statistics: "drop"
            skips it (a different row in every epoch, because rows are shuffled); "keep" trains on it; "auto" skips it
            for models with batch normalisation. Class counts and weights include all rows. A client's only row is
            always trained on, unless `drop_last` drops it.
        steps: K, number of local steps of every client, in place of epochs. A client with few rows goes through them
            several times.
        drawing: "epochs" uses each row once per epoch, "replacement" draws rows with replacement; None for the
            recipe's choice, or else "epochs".
        optimizer: the clients' optimizer, reset at the start of every local training: from `fedjax_bal.optimizer`, or
            any optax transformation; by default SGD with learning rate 0.05. Optax schedules count the steps of a
            local training; those of `optax.inject_hyperparams` and `fedjax_bal.optimizer` count rounds. A
            transformation that draws random numbers itself, such as `optax.add_noise`, draws the same ones in every
            local training.

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
        speed: how fast clients compute, and what happens to late ones, from `fedjax_bal.selection.speed`; None for
            no deadline.
    """

    clients_per_round: Count | None = None
    selector: "Selector | Choice | None" = None
    availability: "Pattern" = dataclasses.field(default_factory=_all_clients)
    delivery: "Pattern" = dataclasses.field(default_factory=_all_clients)
    speed: "Speed | None" = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """When the global model is tested, and which further metrics are reported.

    Attributes:
        every: rounds between two evaluations; the last round is always evaluated.
        update_diversity: report the mean squared distance of each round's updates from their mean (ReBaFL eq. 24);
            costs a few more passes over the parameters.
        local_accuracy: report the accuracy of the clients' models, after local training, on the clients' rows.
        local_test_images: number of random test images, the same in every run, on which to report the mean accuracy of
            these models in each evaluated round; costs a forward pass over them for each client; 0 turns it off.
        traffic: how to count the model exchanges of a client that a mediator trains several times in a round: "paper"
            counts one, as in Astraea's formula; "exact" counts all.
        shots: the numbers of training images in the federation that separate few-, medium- and many-shot classes.
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
        """Yields the evaluated rounds among the first `done` of a run of `last`, in order."""
        yield from range(self.every, done + 1, self.every)
        if done >= last and last % self.every:
            yield last


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """How the work is laid out on the machine, and how broken clients are handled.

    Attributes:
        strategy: how clients are executed, not what they compute: "map" runs them one after another on each device,
            "vmap" several at a time; "auto" takes "vmap" on accelerators and, for small dense networks, on CPUs, else
            "map"; "debug" runs one client at a time on one device without compiling, so that an error in a part names
            its line, client, local step and batch.
        devices: number of jax devices that share the work; "auto" for all, which on a CPU is one for each core.
        chunk: number of clients that a device trains at a time under "vmap"; "auto" for the largest number that fits in
            memory (under the strategy "auto" on a CPU: in its cache) and wastes few steps.
        client_memory: where to keep a method's memory of each client: "device"; "host"; "disk", in an unnamed file in
            the run folder that disappears with the process; "auto" for the devices if it fits there, or else the host.
        precision: precision of the model's computations: "float32"; "tensorfloat32", for matrix products on devices
            that support it; or "bfloat16". Parameters, losses and sums over clients stay float32.
        rounds_per_dispatch: number of rounds in one compiled program; "auto" for 5, or for 1 if the selector needs the
            outcome of each round for its next choice.
        broken_clients: what to do with a client whose update (parameters, batch statistics, memory, reports, probes) is
            non-finite, exploding, or known to be stale: "raise" ends the run. "exclude" leaves the client out: it keeps
            its memory, and the others are weighted as if it hadn't delivered; a method that computes weights itself
            then needs memory for all updates of a round. "clip" leaves out non-finite and stale updates, and scales
            long ones down to `clip_factor` times the round's median norm; this needs the same memory with every method.
            If no client of a round is left, the round changes nothing.
        clip_factor: the largest norm of an update under "clip", in units of the round's median norm.
        huge_factor: under "raise" and "exclude", an update is exploding if the norm of the resulting parameters exceeds
            both this number and this number times the norm of the model that the round began with; None turns this
            check off.
        differentiable: compile loops over clients, steps and batches with a static length, and layers with JAX's
            derivatives, so that `jax.grad` and `jax.jacfwd` work through a round of `make_round`. Steps after a
            client's last one are computed and discarded.
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
        """True if clients with broken updates are excluded."""
        return self.broken_clients != "raise"

    @property
    def clips(self) -> bool:
        """True if long updates are scaled down."""
        return self.broken_clients == "clip"


def trusted(kind: type[T], **values: Any) -> T:
    """Makes options from values that were checked before; omitted fields have their defaults.

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
    """Returns options with other values in some fields, as `dataclasses.replace` does, without checking them again."""
    return trusted(type(options), **{**vars(options), **changes})
