"""Where the groups of a sweep are carried through: what `Work` asks of an engine, and the engine of this process.

`Work` decides and writes; an engine only trains. What there is to do for a group is a journey: a generator that gives
calls, is sent what each of them returns, and is thrown what it raises. So one that waits for a machine far away can
see to other groups meanwhile, and one process owns the folder whatever the engine.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol

from fedjax_bal.engine.host import Member, Snapshot
from fedjax_bal.experiments.backends.group_handle import BuiltRun, LocalBatch, StepResult
from fedjax_bal.experiments.grouping import SweepBatch
from fedjax_bal.experiments.runner import Runner, Stopped

Journey = Generator[Callable[[], Any], Any, None]
"""What there is to do for a group; gives calls, receives what they return."""


class WorkerLost(Exception):  # noqa: N818 - what happened, not a mistake
    """Whoever trained a group is gone, and what it had not told with it; the message says why."""


class BatchRefused(Exception):  # noqa: N818 - what happened, not a mistake
    """A group can't be trained where it was taken to, however small it is; the message says why, and what to do."""


class BatchHandle(Protocol):
    """A group of runs under way, wherever it is.

    What `compile`, `advance` and `snapshots` return is for the engine to wait for; a journey gives calls of them.
    """

    def enter(self) -> Journey:
        """What has to be done before they can be trained."""
        ...

    def compile(self) -> Any:
        """Compiles the program; comes to a `BuiltRun`."""
        ...

    def advance(self, resting: Sequence[bool]) -> Any:
        """Runs the next rounds, but for runs that rest; comes to a `StepResult`."""
        ...

    def snapshots(self, places: Sequence[int]) -> Any:
        """Where some of the runs stand; comes to a list of `Snapshot`, with their states."""
        ...

    def close(self) -> None:
        """Lets go of what they take."""
        ...


class Backend(Protocol):
    """Trains groups of runs.

    Attributes:
        places: how many groups it trains at a time.
        home: whether it trains in this process.
    """

    @property
    def places(self) -> int:
        """How many groups it trains at a time."""
        ...

    @property
    def home(self) -> bool:
        """Whether it trains in this process."""
        ...

    def about(self) -> str:
        """Where it trains, in words; empty where that needs no words."""
        ...

    def open(
        self, runners: Mapping[int, Runner], group: SweepBatch, snapshots: Sequence[Snapshot | None]
    ) -> BatchHandle:
        """Takes a group in.

        Args:
            runners: of every point, by its number.
            group: the group.
            snapshots: where its runs stand; None for those that haven't begun.
        """
        ...

    def carry(self, journeys: Iterable[Journey], should_stop: Callable[[], bool]) -> None:
        """Carries journeys through.

        Raises:
            Stopped: `should_stop` said so; all is saved.
        """
        ...


class LocalBackend:
    """Trains in this process, one group after the other."""

    places = 1
    home = True

    def about(self) -> str:
        """Nothing that needs words."""
        return ""

    def open(
        self, runners: Mapping[int, Runner], group: SweepBatch, snapshots: Sequence[Snapshot | None]
    ) -> BatchHandle:
        """Takes a group in."""
        del runners
        return _LocalHandle(group, snapshots)

    def carry(self, journeys: Iterable[Journey], should_stop: Callable[[], bool]) -> None:
        """Carries journeys through."""
        for journey in journeys:
            if should_stop():
                raise Stopped
            with contextlib.closing(journey):
                _through(journey)


class _LocalHandle:
    """A group of runs in this process."""

    def __init__(self, group: SweepBatch, snapshots: Sequence[Snapshot | None]) -> None:
        members = [Member(task.simulation, task.run[1]) for task in group.tasks]
        self._carriage: LocalBatch | None = LocalBatch(members, snapshots)

    def enter(self) -> Journey:
        """Nothing."""
        yield from ()

    def compile(self) -> BuiltRun:
        """Compiles the program."""
        return self._there.compile()

    def advance(self, resting: Sequence[bool]) -> StepResult:
        """Runs the next rounds."""
        return self._there.advance(resting)

    def snapshots(self, places: Sequence[int]) -> list[Snapshot]:
        """Where some of the runs stand."""
        return self._there.snapshots(places)

    def close(self) -> None:
        """Lets go of the runs' states."""
        self._carriage = None

    @property
    def _there(self) -> LocalBatch:
        if self._carriage is None:
            raise ValueError("the group of runs is closed; open it again")
        return self._carriage


def _through(journey: Journey) -> None:
    with contextlib.suppress(StopIteration):
        call = next(journey)
        while True:
            try:
                value = call()
            except Exception as error:  # the journey knows what can be gone on from
                call = journey.throw(error)
            else:
                call = journey.send(value)
