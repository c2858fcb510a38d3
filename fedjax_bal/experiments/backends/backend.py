"""The protocol of backends, which train batches of runs.

The training loop decides and writes; a backend only trains. The work of a batch is a task: a generator that yields
calls and receives their results, or the errors that they raise. So a backend that waits for a remote machine can work
on other batches meanwhile, and one process owns the folder whatever the backend.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedjax_bal.engine.device import Layout
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
    """A batch whose program is compiled."""

    compile_s: float
    device_bytes: int  # of data, states and the program on each device
    device: str  # in words
    layout: Layout


class StepResult(NamedTuple):
    """Results of one dispatch for the runs of a batch."""

    results: list[DispatchResult | None]  # without states; None for runs that have diverged now, or rest
    failures: list[str | None]  # of runs that diverged, now or before
    round: int  # rounds done
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
        """Takes some of the runs' states; results in a list of their `Snapshot`s."""
        ...

    def close(self) -> None:
        """Frees the batch's memory and its worker."""


class Backend(Protocol):
    """Trains batches of runs."""

    @property
    def places(self) -> int:
        """Number of batches that it trains at a time."""
        ...

    def about(self) -> str:
        """The machines, in words; empty for this process."""
        ...

    def open(
        self, runners: Mapping[int, "Runner"], batch: SweepBatch, snapshots: Sequence[Snapshot | None]
    ) -> BatchHandle:
        """Takes a batch in, with each point's runner by number, and the snapshots of runs that have started."""
        ...

    def run_tasks(
        self, tasks: Iterable[BatchTask], batches: Iterable[SweepBatch], should_stop: Callable[[], bool]
    ) -> None:
        """Runs tasks to their ends; raises `Stopped`, with all saved, once `should_stop` returns True.

        `batches` are what the tasks will train, as far as that is known, so that their programs can be compiled ahead.
        """
