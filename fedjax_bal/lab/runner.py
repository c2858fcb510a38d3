"""The command `run`: trains a comparison and shows its progress; a comparison is a sweep of one point."""

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from fedjax_bal.config import Config, resolved_sheet
from fedjax_bal.engine.host import Snapshot
from fedjax_bal.engine.processes import processes
from fedjax_bal.lab.display import Progress, Unit
from fedjax_bal.lab.folder import RunFolder
from fedjax_bal.lab.loop import Callback, RunBatch, runs_left, steps_per_round, train
from fedjax_bal.lab.outline import program_line, run_outline
from fedjax_bal.lab.post_training import PostTraining
from fedjax_bal.lab.recorder import Recorder
from fedjax_bal.lab.schema import RunId
from fedjax_bal.lab.setup import SharedInputs
from fedjax_bal.lab.training import BuiltBatch
from fedjax_bal.lab.training_line import training_line


class RunProgress(Callback):
    """Shows every run on the progress display."""

    def __init__(self, display: Progress, *, verbose: bool) -> None:
        self.display = display
        self.verbose = verbose

    def started(self, batch: RunBatch) -> None:
        """Shows the round from which the run resumes, and that its program is being compiled."""
        [task] = batch.tasks
        state = task.recorder.states[task.run]
        if task.round:
            self.display.note(f"{state.title}: resuming after round {task.round}")
        if not task.simulation.compile_s:
            self.display.compiling(state.key)

    def built(self, batch: RunBatch, built: BuiltBatch) -> None:
        """Shows the run's progress before training starts."""
        [task] = batch.tasks
        if self.verbose:
            self.display.note(program_line(task.recorder.states[task.run].title, built))
        self.recorded(task.recorder, task.run, 0.0)

    def recorded(self, recorder: Recorder, run: RunId, clients_per_s: float) -> None:
        """Shows the run's progress."""
        state = recorder.states[run]
        accuracy = state.lines[-1]["test_accuracy"] if state.lines else None
        self.display.advance(state.key, state.round, clients_per_s, accuracy)

    def ended(self, recorder: Recorder, run: RunId, snapshot: Snapshot) -> None:
        """Shows that a run was stopped early."""
        if snapshot.round < recorder.comparison.simulation(run).rounds:
            self.display.ended(recorder.states[run].key)


def run_comparison(
    config: Config,
    folder: RunFolder,
    display: Progress,
    should_stop: Callable[[], bool],
    *,
    callbacks: Sequence[Callback] = (),
    verbose: bool = False,
    data_dir: str | os.PathLike | None = None,
    devices: str | int | None = None,
    fresh: bool = False,
) -> Mapping[str, Any]:
    """Trains the unfinished runs of a comparison; returns the summary, which is also saved.

    A run that diverges is recorded as failed; the others continue.

    Args:
        config: the configuration.
        folder: its run folder, already claimed.
        display: the progress display.
        should_stop: called between dispatches; True ends the session.
        callbacks: are told of the runs' results, too, such as trackers.
        verbose: shows the remaining work and each compiled program, too.
        data_dir: the folder with the data set's files, unless they are embedded.
        devices: number of devices that share the work; overrides the configuration unless None.
        fresh: start over, regardless of the folder's content.

    Raises:
        Stopped: `should_stop` returned True.
    """
    inputs = SharedInputs(data_dir, devices, None if fresh else folder.read_devices())
    recorder = Recorder(config, folder, display.note, inputs, fresh=fresh)
    for line in (*inputs.data_lines(), f"training: {training_line(resolved_sheet(config))}"):
        display.note(line)
    recorder.resume()
    units: dict[Hashable, Unit] = {}
    for run, state in recorder.states.items():
        simulation = recorder.comparison.simulation(run)
        units[state.key] = Unit(state.title, simulation.rounds, run.method, steps_per_round(simulation))
    methods = len(config.methods)
    seeds = len(config.seeds)
    rounds = sum(unit.rounds for unit in units.values())
    count = f"{methods} method{'s' * (methods > 1)} x {seeds} seed{'s' * (seeds > 1)}"
    display.start(units, headline=f"{count}, {rounds} rounds in all, into {folder.path}")
    callbacks = [RunProgress(display, verbose=verbose), PostTraining(), *callbacks]
    try:
        left = runs_left(recorder, callbacks)
        if verbose:
            for line in run_outline(recorder.config, left):
                display.note(line)
        # The runs of a comparison aren't stacked, because most methods have different programs.
        batches = [RunBatch(0, (task,)) for task in left]
        train(batches, callbacks, lambda: processes().any(should_stop()))  # the user may stop any process
    finally:
        try:
            summary = recorder.finish()
        finally:
            display.stop()
    return summary
