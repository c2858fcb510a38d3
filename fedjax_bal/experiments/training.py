"""The training loop: takes a batch of runs from their snapshots to their ends, and saves them as it goes.

A comparison trains batches of one run; a sweep, batches of as many runs as one program can train together.
"""

import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fedjax_bal.engine.host import Snapshot
from fedjax_bal.experiments.backends.backend import Backend, BatchTask, BuiltBatch, StepResult, Stopped
from fedjax_bal.experiments.grouping import SweepBatch, SweepRun
from fedjax_bal.experiments.saved_runs import SavedRun, unstarted

if TYPE_CHECKING:
    from fedjax_bal.experiments.runner import Runner


class Observer(Protocol):
    """Receives the events of a batch's training."""

    def compiling(self) -> None:
        """The program is about to be compiled."""

    def built(self, built: BuiltBatch) -> None:
        """The program is compiled."""

    def stepped(self, step: StepResult) -> None:
        """A dispatch is done, and its results aren't written yet."""

    def written(self) -> None:
        """The last dispatch's results are written."""

    def should_stop(self) -> bool:
        """Asked after each dispatch; True saves all runs and ends the training with `Stopped`."""
        ...


class BatchTraining:
    """Trains a batch of runs to their ends.

    The points' `runners`, by number, write the results. `before` has the saved runs; None for those that haven't
    started.
    """

    def __init__(
        self,
        batch: SweepBatch,
        runners: "Mapping[int, Runner]",
        before: Sequence[SavedRun | None],
        observer: Observer,
    ) -> None:
        self._batch, self._runners, self._before, self._observer = batch, runners, before, observer
        self._saved = [
            state or unstarted(self._runner(run).comparison, run.run)
            for run, state in zip(batch.tasks, before, strict=True)
        ]
        self._resting = [False] * len(batch.tasks)

    def task(self, backend: Backend) -> BatchTask:
        """The batch's work as a generator of calls, for a backend."""
        # The loop is a generator of calls, so that it is written once and knows nothing of where a batch is trained: it
        # yields a call (compile, advance, snapshots), the backend makes it and sends the result back, or throws the
        # call's error in. A local backend calls at once; one with remote workers keeps many such generators waiting and
        # resumes each when its result arrives. Decisions and writing stay here, in the process that owns the folder.
        self._observer.compiling()
        self._handle = backend.open(self._runners, self._batch, [state and state.snapshot for state in self._before])
        self._before = ()
        try:
            yield from self._handle.enter()
            built: BuiltBatch = yield self._handle.compile
            for run in self._batch.tasks:
                self._runner(run).add_built(built, len(self._batch.tasks))
            self._observer.built(built)
            yield from self._train()
        finally:
            self._handle.close()

    def _train(self) -> BatchTask:
        runs, saved_at = self._batch.tasks, self._batch.tasks[0].round
        every = min(self._runner(run).comparison.methods[run.run[0]].execution.checkpoint_every for run in runs)
        while not all(self._resting):
            step: StepResult = yield functools.partial(self._handle.advance, tuple(self._resting))
            self._observer.stepped(step)
            self._take(step)
            going = [place for place, rests in enumerate(self._resting) if not rests]
            over = [place for place in going if self._over(place)]
            self._observer.written()
            stopping = self._observer.should_stop()
            if not stopping:  # or else what follows a run's last round, which may take long, waits for the next session
                yield from self._end(over)
                going = [place for place in going if place not in over]
                self._observer.written()
            if stopping or step.round - saved_at >= every:
                yield from self._save(going)
                saved_at = step.round
            if stopping and going:
                raise Stopped

    def _over(self, place: int) -> bool:
        run = self._batch.tasks[place]
        return self._runner(run).over(run.run, self._saved[place].snapshot.round)

    def _take(self, step: StepResult) -> None:
        """Writes the results of a dispatch, whose time its runs share; runs that have diverged rest."""
        trained = sum(result is not None for result in step.results)
        for place, (run, result) in enumerate(zip(self._batch.tasks, step.results, strict=True)):
            runner, failure = self._runner(run), step.failures[place]
            if result is not None:
                self._saved[place] = runner.take(run.run, self._saved[place], result, step.seconds / trained)
            elif failure is not None and not self._resting[place]:
                runner.fail(run.run, failure)
                self._resting[place] = True

    def _end(self, places: list[int]) -> BatchTask:
        """Saves runs that are over, and lets them rest."""
        snapshots = yield from self._save(places)
        for place, snapshot in zip(places, snapshots, strict=True):
            run = self._batch.tasks[place]
            self._runner(run).conclude(run.run, snapshot)
            self._resting[place] = True

    def _save(self, places: list[int]) -> Generator[Callable[[], Any], Any, list[Snapshot]]:
        if not places:
            return []
        snapshots: list[Snapshot] = yield functools.partial(self._handle.snapshots, tuple(places))
        for place, snapshot in zip(places, snapshots, strict=True):
            run = self._batch.tasks[place]
            self._runner(run).save(run.run, self._saved[place]._replace(snapshot=snapshot))
        return snapshots

    def _runner(self, run: SweepRun) -> "Runner":
        return self._runners[run.point]
