"""A group of runs under way in this process, one program, with what it tells without its states."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from fedjax_bal.engine.host import DispatchResult, Member, Simulation, Snapshot, Stack
from fedjax_bal.errors import DivergenceError
from fedjax_bal.experiments.environment import device_name


class BuiltRun(NamedTuple):
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
    """What a dispatch brought to the runs of a group.

    Attributes:
        advances: of each run, without the state it came to; None for those that have diverged now, or rest.
        failures: what went wrong with those that diverged, now or before; None for the others.
        round: rounds done.
        seconds: how long it took.
    """

    advances: list[DispatchResult | None]
    failures: list[str | None]
    round: int
    seconds: float


class LocalBatch:
    """Runs that one program trains together.

    Args:
        members: runs of the same kind, all at the same round.
        snapshots: where they stand; None for those that haven't begun.
    """

    def __init__(self, members: Sequence[Member], snapshots: Sequence[Snapshot | None]) -> None:
        begun = [
            member.simulation.init(member.seed) if snapshot is None else snapshot
            for member, snapshot in zip(members, snapshots, strict=True)
        ]
        self._stack = LoneRun(*members[0], begun[0]) if len(members) == 1 else Stack(members, begun)

    def compile(self) -> BuiltRun:
        """Compiles the program.

        Raises:
            ValueError: what it needs doesn't fit into memory.
        """
        return BuiltRun(self._stack.compile(), self._stack.device_bytes, device_name())

    def advance(self, resting: Sequence[bool]) -> StepResult:
        """Runs the next rounds, as many as one dispatch holds.

        Args:
            resting: the runs for which nobody is to train any more.

        Returns:
            What came of it.
        """
        for place in [place for place, rests in enumerate(resting) if rests]:
            self._stack.rest(place)
        began = time.perf_counter()
        advances = self._stack.advance()
        seconds = time.perf_counter() - began
        failures = [None if error is None else str(error) for error in self._stack.failures]
        return StepResult([_told(advance) for advance in advances], failures, self._stack.round, seconds)

    def snapshots(self, places: Sequence[int]) -> list[Snapshot]:
        """Where some of the runs stand, with their states."""
        return [self._stack.snapshot(place) for place in places]


class LoneRun:
    """A single run, with what a stack offers."""

    def __init__(self, simulation: Simulation, seed: int, snapshot: Snapshot) -> None:
        self.simulation, self.seed, self._snapshot = simulation, seed, snapshot
        self.failures: list[DivergenceError | None] = [None]
        self.resting = [False]

    def rest(self, place: int) -> None:
        """Lets the run be."""
        self.resting[place] = True

    @property
    def round(self) -> int:
        """Rounds done."""
        return int(self._snapshot.round)

    @property
    def device_bytes(self) -> int:
        """What data, state and the program take on each device."""
        return self.simulation.device_bytes

    def compile(self) -> float:
        """Compiles the program, once; returns the seconds that it took now."""
        return self.simulation.compile()

    def snapshot(self, place: int) -> Snapshot:
        """Where the run stands."""
        del place
        return self._snapshot

    def advance(self) -> list[DispatchResult | None]:
        """Runs the next rounds."""
        try:
            advance = self.simulation.advance(self.seed, self._snapshot)
        except DivergenceError as error:
            self.failures[0] = error
            self.rest(0)
            return [None]
        self._snapshot = advance.snapshot
        return [advance]


def _told(advance: DispatchResult | None) -> DispatchResult | None:
    """Without the state, which stays on the devices until it is saved."""
    return advance and advance._replace(snapshot=advance.snapshot._replace(state=None))
