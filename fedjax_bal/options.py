"""The options of a simulation: name, default, range and meaning of each, declared here and nowhere else.

`simulate` takes these objects, the engine carries them, and the sections of a configuration get their keys from them.
Their values are checked when they are made; whether they fit the recipe and the data is checked when a simulation is
built. Importing this module doesn't import jax.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from fedjax_bal.metrics import SHOTS, Shots

if TYPE_CHECKING:
    from fedjax_bal.optim import Optimizer
    from fedjax_bal.selection import Choice, Presence, Selector, Speed, Trace

ADDED = "added"
Drawing = Literal["epochs", "replacement"]
Count = Annotated[int, Ge(1)]
Factor = Annotated[float, Ge(1)]


def _check(options: "LocalTraining | Participation | Evaluation | Execution", prefix: str = "") -> None:
    from fedjax_bal.annotations import check_fields  # with pydantic, which importing the options does without

    check_fields(options, prefix)


def added(default: Any) -> Any:
    """The default of an option that run folders of earlier versions don't have, so that these still go on."""
    return dataclasses.field(default=default, metadata={ADDED: True})


def _slow_sgd() -> "Optimizer":
    from fedjax_bal.optim import optimizer

    return optimizer("sgd", 0.01)


def _all_clients() -> "Presence":
    from fedjax_bal.selection import always

    return always()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains in a round.

    Attributes:
        epochs: E, passes over a client's rows; 1 unless `steps` is given.
        batch_size: B, rows of a local step.
        drop_last: leave out the last short batch of an epoch.
        batches_per_epoch: the most batches of an epoch, of rows drawn anew each time; None for all of a client's rows.
        batch_statistics: the running statistics of batch normalisation that a client begins with: "average", those of
            the global model, the mean of the clients'; "local", those that it ended its last local training with;
            "server_reset", mean 0 and variance 1. The global model always has the mean of those delivered.
        lone_rows: whether a client whose last batch of an epoch would be a single row loses that row for good, so that
            no batch statistics come of one image: "drop", "keep", or "auto", drop it for models with batch
            normalisation.
        steps: in place of epochs K, the local steps of every client, however many rows it has: a small one goes through
            its rows again and again.
        drawing: "epochs", each row once an epoch, or "replacement"; None for what the recipe needs, or else "epochs".
        optimizer: fresh at every local training; by default SGD with learning rate 0.01.
    """

    epochs: Count | None = None
    batch_size: Count = 50
    drop_last: bool = False
    batches_per_epoch: Count | None = None
    batch_statistics: Literal["average", "local", "server_reset"] = "average"
    lone_rows: Literal["auto", "keep", "drop"] = "auto"
    steps: Count | None = None
    drawing: Drawing | None = None
    optimizer: "Optimizer" = dataclasses.field(default_factory=_slow_sgd)

    def __post_init__(self) -> None:
        _check(self)
        if self.epochs is not None and self.steps is not None:
            raise ValueError(f"steps: received {self.steps!r} beside epochs={self.epochs!r}; leave one of them out")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Participation:
    """Which clients train in a round, and which of their updates arrive.

    Attributes:
        clients_per_round: the cohort's size; None for all clients. Not with a ready-made selector.
        selector: ready-made, or a choice of one by name; None for the recipe's, or else `uniform`.
        availability: which clients can be selected; by default all.
        delivery: which clients send their update back; by default all.
        speed: how fast clients compute, and what is done about those that are late, from `fedjax_bal.selection.speed`;
            None for no deadline.
    """

    clients_per_round: Count | None = None
    selector: "Selector | Choice | None" = None
    availability: "Presence | Trace" = dataclasses.field(default_factory=_all_clients)
    delivery: "Presence | Trace" = dataclasses.field(default_factory=_all_clients)
    speed: "Speed | None" = None

    def __post_init__(self) -> None:
        _check(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """When the global model is tested, and what is reported beside.

    Attributes:
        every: rounds between two evaluations; the last round is always evaluated.
        update_diversity: report how far apart the updates of each round lie (ReBaFL eq. 24), which takes a few more
            passes over the parameters.
        local_accuracy: report how well each client's own model, after training, does on the client's rows.
        local_test_images: report, in each evaluated round, how well these models do on so many of the test images on
            average, which takes a forward pass over them for each client; 0 for not.
        traffic: how a client of a mediator counts that trains several times in a round: "paper", once, as Astraea's
            formula has it; "exact", as often as models are exchanged.
        shots: which classes count as many-, medium- and few-shot, by the federation's training images of each.
    """

    every: Count = 1
    update_diversity: bool = False
    local_accuracy: bool = False
    local_test_images: Annotated[int, Ge(0)] = 0
    traffic: Literal["paper", "exact"] = "paper"
    shots: Shots = SHOTS

    def __post_init__(self) -> None:
        _check(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """How the work is laid out on the machine, and what is done about broken clients.

    Attributes:
        strategy: how clients are executed, not what they compute: "map", one after another on each device; "vmap",
            several at a time; "auto", the former on CPUs and the latter on accelerators.
        devices: how many of the devices that jax has share the work; "auto" for all.
        chunk: clients at a time on each device under "vmap"; "auto" for as many as waste little and fit into memory.
        client_memory: where what a method remembers of each client is kept, "device" or "host"; "auto" for the devices
            where it fits.
        precision: in which the model computes: "float32"; "tensorfloat32", for matrix products on devices that have
            it; or "bfloat16". Parameters, losses and sums over clients stay float32.
        rounds_per_dispatch: rounds in one compiled program; "auto" for 5, or 1 with a selector that looks at each
            round's outcome before it chooses again.
        broken_clients: what is done about clients whose update (parameters, batch statistics, memory, reports, probes)
            is not finite, is known to be of an earlier round, or is huge: "raise", the run ends; "exclude", each round
            is as if they had not delivered, to the same bits, for which a dispatch is done again from what it began
            with; "clip", that too, but updates whose norm is more than `clip_factor` times the median of their round
            are scaled down to that. The last two keep the state twice.
        clip_factor: for "clip".
        huge_factor: for "raise" and "exclude", an update is huge that leads to parameters whose norm is more than so
            many times the median of the round's, and more than that number itself; None for no such bound. Of chains
            that go through their clients several times, the first pass is looked at.
    """

    strategy: Literal["auto", "map", "vmap"] = "auto"
    devices: Count | Literal["auto"] = "auto"
    chunk: Count | Literal["auto"] = "auto"
    client_memory: Literal["auto", "device", "host"] = "auto"
    precision: Literal["float32", "tensorfloat32", "bfloat16"] = "float32"
    rounds_per_dispatch: Count | Literal["auto"] = "auto"
    broken_clients: Literal["raise", "exclude", "clip"] = "raise"
    clip_factor: Factor = 10.0
    huge_factor: Factor | None = 100.0

    def __post_init__(self) -> None:
        _check(self, "execution.")

    @property
    def repeats_rounds(self) -> bool:
        """Whether rounds may have to be done again, so that the state before them is kept."""
        return self.broken_clients != "raise"

    @property
    def clips(self) -> bool:
        """Whether long updates are scaled down."""
        return self.broken_clients == "clip"
