"""The command `run`: trains a comparison and shows its progress; a comparison is a sweep of one point."""

import os
from collections.abc import Callable, Hashable
from typing import Any

from fedjax_bal.config import Config
from fedjax_bal.contrib.trackers import Mirror
from fedjax_bal.engine.host import Snapshot
from fedjax_bal.engine.processes import processes
from fedjax_bal.lab.display import Progress
from fedjax_bal.lab.folder import RunFolder
from fedjax_bal.lab.loop import Callback, SweepBatch, runs_left, train
from fedjax_bal.lab.outline import program_line, run_outline
from fedjax_bal.lab.paces import Paces
from fedjax_bal.lab.post_training import PostTraining
from fedjax_bal.lab.recorder import Recorder
from fedjax_bal.lab.training import BuiltBatch


class RunProgress(Callback):
    """Shows every run on the progress display."""

    def __init__(self, display: Progress, detail: Callable[[str], None] | None) -> None:
        self.display = display
        self.detail = detail

    def started(self, batch: SweepBatch) -> None:
        """Shows the round from which the run resumes, and that its program is being compiled."""
        [task] = batch.tasks
        state = task.recorder.states[task.run]
        if task.round:
            self.display.note(f"{state.title}: resuming after round {task.round}")
        if not task.simulation.compile_s:
            self.display.compiling(state.key)

    def built(self, batch: SweepBatch, built: BuiltBatch) -> None:
        """Shows the run's progress before training starts."""
        [task] = batch.tasks
        if self.detail:
            self.detail(program_line(task.recorder.states[task.run].title, built))
        self.recorded(task.recorder, task.run, 0.0)

    def recorded(self, recorder: Recorder, run: tuple[int, int], clients_per_s: float) -> None:
        """Shows the run's progress."""
        state = recorder.states[run]
        accuracy = state.lines[-1]["test_accuracy"] if state.lines else None
        self.display.advance(state.key, state.round, clients_per_s, accuracy)

    def ended(self, recorder: Recorder, run: tuple[int, int], snapshot: Snapshot) -> None:
        """Shows that a run was stopped early."""
        if snapshot.round < recorder.comparison.simulation(run).rounds:
            self.display.ended(recorder.states[run].key)


class Trackers(Callback):
    """Sends the metrics to experiment trackers."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror

    def recorded(self, recorder: Recorder, run: tuple[int, int], clients_per_s: float) -> None:
        """Sends the run's new lines."""
        self.mirror.follow(*run, recorder.states[run].lines, finished=recorder.is_over(run))


class Runner:
    """Trains a comparison in one or more sessions.

    Args:
        config: the configuration.
        folder: its run folder, already claimed.
        display: the progress display.
        should_stop: called between dispatches; True ends the session with `Stopped`.
        mirror: sends the metrics to trackers; the caller closes it.
        detail: called with the remaining work and with each compiled program; None to skip.
        options: `data_dir`, `devices` and `fresh` of `Recorder`.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        display: Progress,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        mirror: Mirror | None = None,
        detail: Callable[[str], None] | None = None,
        data_dir: str | os.PathLike | None = None,
        devices: str | int | None = None,
        fresh: bool = False,
    ) -> None:
        self.recorder = Recorder(config, folder, display.note, data_dir=data_dir, devices=devices, fresh=fresh)
        self.inputs = self.recorder.inputs
        self.display = display
        self.detail = detail
        self.should_stop = should_stop
        self.callbacks: list[Callback] = [RunProgress(display, detail), PostTraining(), Paces()]
        if mirror:
            self.callbacks.append(Trackers(mirror))

    def run(self) -> dict[str, Any]:
        """Trains the unfinished runs; returns the summary, which is also saved.

        A run that diverges is recorded as failed; the others continue.

        Raises:
            Stopped: `should_stop` returned True.
        """
        recorder = self.recorder
        recorder.resume()
        units: dict[Hashable, tuple[str, int]] = {
            state.key: (state.title, recorder.comparison.methods[index].training.rounds)
            for (index, _), state in recorder.states.items()
        }
        methods = len(recorder.config.methods)
        seeds = len(recorder.config.seeds)
        rounds = sum(rounds for _, rounds in units.values())
        count = f"{methods} method{'s' * (methods > 1)} x {seeds} seed{'s' * (seeds > 1)}"
        self.display.start(units, headline=f"{count}, {rounds} rounds in all, into {recorder.folder.path}")
        try:
            left = runs_left(recorder, self.callbacks)
            if self.detail:
                for line in run_outline(recorder.config, left):
                    self.detail(line)
            # The runs of a comparison aren't stacked, because most methods have different programs.
            batches = [SweepBatch(0, (task,)) for task in left]
            train(batches, self.callbacks, lambda: processes().any(self.should_stop()))  # the user may stop any process
        finally:
            summary = recorder.finish()
        return summary
