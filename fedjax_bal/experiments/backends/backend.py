"""The protocol of backends, which train batches of runs.

The training loop decides and writes; a backend only trains. The work of a batch is a task: a generator that yields
calls and receives their results, or the errors that they raise. So a backend that waits for a remote machine can work
on other batches meanwhile, and one process owns the folder whatever the backend.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedjax_bal.engine.host import DispatchResult, Snapshot
from fedjax_bal.experiments.grouping import SweepBatch

if TYPE_CHECKING:
    from fedjax_bal.experiments.runner import Runner

BatchTask = Generator[Callable[[], Any], Any, None]
"""The work of a batch: yields calls, receives their results."""


class Stopped(Exception):  # noqa: N818 - not an error: the user asked for it
    """Training was asked to stop, and has saved all that it needs to resume."""


class WorkerLost(Exception):  # noqa: N818 - an event, not a mistake
    """The worker that trained a batch is gone, with its unsent results; the message says why."""


class BatchRefused(Exception):  # noqa: N818 - an event, not a mistake
    """A batch, however small, can't be trained by its worker; the message gives the reason and a remedy."""


class BuiltBatch(NamedTuple):
    """A batch whose program is compiled.

    Attributes:
        compile_s: seconds that compiling took.
        device_bytes: bytes that data, states and the program take on each device.
        device: the device, in words.
    """

    compile_s: float
    device_bytes: int
    device: str


class StepResult(NamedTuple):
    """Results of one dispatch for the runs of a batch.

    Attributes:
        results: each run's result, without its state; None for runs that have diverged now, or rest.
        failures: the errors of runs that diverged, now or before; None for the others.
        round: rounds done.
        seconds: duration of the dispatch.
    """

    results: list[DispatchResult | None]
    failures: list[str | None]
    round: int
    seconds: float


class BatchHandle(Protocol):
    """A batch of runs in training, on any machine.

    The backend waits for the results of `compile`, `advance` and `snapshots`; a task yields calls of them.
    """

    def enter(self) -> BatchTask:
        """Prepares the worker, if any."""
        ...

    def compile(self) -> Any:
        """Compiles the program; results in a `BuiltBatch`."""
        ...

    def advance(self, resting: Sequence[bool]) -> Any:
        """Runs the next rounds of all runs that don't rest; results in a `StepResult`."""
        ...

    def snapshots(self, places: Sequence[int]) -> Any:
        """Results in a list of the runs' `Snapshot`s, with their states."""
        ...

    def close(self) -> None:
        """Frees the batch's memory and its worker."""
        ...


class Backend(Protocol):
    """Trains batches of runs.

    Attributes:
        places: number of batches that it trains at a time.
        home: whether it trains in this process.
    """

    @property
    def places(self) -> int:
        """Number of batches that it trains at a time."""
        ...

    @property
    def home(self) -> bool:
        """Whether it trains in this process."""
        ...

    def about(self) -> str:
        """The machines, in words; empty for this process."""
        ...

    def open(
        self, runners: Mapping[int, "Runner"], batch: SweepBatch, snapshots: Sequence[Snapshot | None]
    ) -> BatchHandle:
        """Takes a batch in.

        Args:
            runners: each point's runner, by number.
            batch: the batch.
            snapshots: the runs' snapshots; None for those that haven't started.
        """
        ...

    def run_tasks(self, tasks: Iterable[BatchTask], should_stop: Callable[[], bool]) -> None:
        """Runs tasks to their ends.

        Raises:
            Stopped: `should_stop` returned True; all is saved.
        """
        ...
