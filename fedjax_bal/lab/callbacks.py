"""Progress of a comparison on the display."""

from fedjax_bal.engine.host import Simulation, Snapshot
from fedjax_bal.lab.display import Progress
from fedjax_bal.lab.loop import BuiltProgram, Callback, DispatchStats, RunBatch
from fedjax_bal.lab.run import Run
from fedjax_bal.metrics import MOST_AVERAGED, spread
from fedjax_bal.status import size


class RunProgress(Callback):
    """Shows every run of a comparison on the display."""

    def __init__(self, display: Progress, *, verbose: bool) -> None:
        self.display = display
        self.verbose = verbose

    def started(self, batch: RunBatch) -> None:
        """Shows the round from which the runs resume, and that their program is being compiled."""
        for run in batch.runs:
            if run.round:
                self.display.note(f"{run.title}: resuming after round {run.round}")
        if not batch.runs[0].simulation.compile_s:
            self.display.compiling(batch.runs[0].id)

    def built(self, batch: RunBatch, program: BuiltProgram) -> None:
        """Shows the runs' progress before training starts."""
        if self.verbose:
            self.display.note(f"{batch.runs[0].title}: {describe_program(program)}")
        for run in batch.runs:
            self.recorded(run, 0.0)

    def recorded(self, run: Run, clients_per_s: float) -> None:
        """Shows the run's progress."""
        accuracy = spread([line["test_accuracy"] for line in run.lines[-MOST_AVERAGED:]]).mean  # as in tables
        self.display.advance(run.id, run.round, clients_per_s, accuracy)

    def ended(self, run: Run, simulation: Simulation, snapshot: Snapshot) -> None:
        """Shows that a run has stopped early."""
        if snapshot.round < simulation.rounds:
            self.display.stopped_early(run.id)

    def stepped(self, batch: RunBatch, step: DispatchStats) -> None:
        """Shows that a run has failed."""
        for run in batch.runs:
            if run.failure is not None:
                self.display.failed(run.id)


def describe_program(program: BuiltProgram) -> str:
    """Describes a compiled program: compile time, devices and memory."""
    layout = program.layout
    return (
        f"program ready after {program.compile_s:.1f} s; {layout.strategy}, {layout.width} client(s) at a time on each "
        f"of {layout.devices} device(s); {size(program.device_bytes)} on each"
    )
