"""What trains batches of runs: the protocol of backends.

The training loop decides and writes; a backend only trains. What there is to do for a batch is a task: a generator
that yields calls, is sent what each of them returns, and is thrown what it raises. So a backend that waits for a remote
machine can work on other batches meanwhile, and one process owns the folder whatever the backend.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedjax_bal.engine.host import DispatchResult, Snapshot
from fedjax_bal.experiments.grouping import SweepBatch

if TYPE_CHECKING:
    from fedjax_bal.experiments.runner import Runner

BatchTask = Generator[Callable[[], Any], Any, None]
"""What there is to do for a batch; yields calls, receives what they return."""


class Stopped(Exception):  # noqa: N818 - not an error: the user asked for it
    """Training was asked to stop, and has saved all that it needs to go on."""


class WorkerLost(Exception):  # noqa: N818 - what happened, not a mistake
    """The worker that trained a batch is gone, with what it had not sent; the message says why."""


class BatchRefused(Exception):  # noqa: N818 - what happened, not a mistake
    """A batch can't be trained where it was sent, however small it is; the message says why, and what to do."""


class BuiltBatch(NamedTuple):
    """What it took to begin.

    Attributes:
        compile_s: seconds that compiling took.
        device_bytes: what data, states and the program take on each device.
        device: what it runs on, in words.
    """

    compile_s: float
    device_bytes: int
    device: str


class StepResult(NamedTuple):
    """What one dispatch returned for the runs of a batch.

    Attributes:
        results: of each run, without its state; None for those that have diverged now, or rest.
        failures: what went wrong with those that diverged, now or before; None for the others.
        round: rounds done.
        seconds: how long it took.
    """

    results: list[DispatchResult | None]
    failures: list[str | None]
    round: int
    seconds: float


class BatchHandle(Protocol):
    """A batch of runs under way, wherever it is.

    What `compile`, `advance` and `snapshots` return is for the backend to wait for; a task yields calls of them.
    """

    def enter(self) -> BatchTask:
        """What has to be done before they can be trained."""
        ...

    def compile(self) -> Any:
        """Compiles the program; results in a `BuiltBatch`."""
        ...

    def advance(self, resting: Sequence[bool]) -> Any:
        """Runs the next rounds, but for runs that rest; results in a `StepResult`."""
        ...

    def snapshots(self, places: Sequence[int]) -> Any:
        """Where some of the runs stand; results in a list of `Snapshot`, with their states."""
        ...

    def close(self) -> None:
        """Lets go of what they take."""
        ...


class Backend(Protocol):
    """Trains batches of runs.

    Attributes:
        places: how many batches it trains at a time.
        home: whether it trains in this process.
    """

    @property
    def places(self) -> int:
        """How many batches it trains at a time."""
        ...

    @property
    def home(self) -> bool:
        """Whether it trains in this process."""
        ...

    def about(self) -> str:
        """Where it trains, in words; empty where that needs no words."""
        ...

    def open(
        self, runners: Mapping[int, "Runner"], batch: SweepBatch, snapshots: Sequence[Snapshot | None]
    ) -> BatchHandle:
        """Takes a batch in.

        Args:
            runners: of every point, by its number.
            batch: the batch.
            snapshots: where its runs stand; None for those that haven't begun.
        """
        ...

    def run_tasks(self, tasks: Iterable[BatchTask], should_stop: Callable[[], bool]) -> None:
        """Runs tasks to their ends.

        Raises:
            Stopped: `should_stop` said so; all is saved.
        """
        ...
