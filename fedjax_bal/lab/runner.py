"""Runs a comparison: every method with every seed, saved as it goes, resumed where it stopped."""

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import numpy as np

from fedjax_bal.config import AUTO, Config, with_convolution
from fedjax_bal.contrib.trackers import Mirror
from fedjax_bal.engine.host import DispatchResult, Snapshot, describe_faults, fetch
from fedjax_bal.engine.processes import processes
from fedjax_bal.lab import checkpoint
from fedjax_bal.lab.display import Progress
from fedjax_bal.lab.environment import (
    command_options,
    device_name,
    differing_settings,
    numeric_settings,
    versions,
    with_earlier,
)
from fedjax_bal.lab.folder import Execution, RunFolder
from fedjax_bal.lab.leaks import Conclusion
from fedjax_bal.lab.outline import program_line, run_outline
from fedjax_bal.lab.output_files import START_OVER, FolderError
from fedjax_bal.lab.saved_runs import RunState, SavedRun, load_newest, pack
from fedjax_bal.lab.setup import Comparison, SharedInputs, set_up, set_up_to_read
from fedjax_bal.lab.summary import (
    cost_of,
    known_runs,
    number,
    summarise_batches,
    summarise_partitions,
    summarise_state,
)
from fedjax_bal.lab.training import (
    BatchTraining,
    BuiltBatch,
    LocalBackend,
    Started,
    SweepBatch,
    SweepRun,
    is_over,
)
from fedjax_bal.models import automatic, convolves
from fedjax_bal.target import target_platform


class Runner:
    """Trains a comparison, in as many sessions as it takes. A run is a method's number and a seed.

    Args:
        config: the configuration.
        folder: its run folder, already claimed.
        display: the progress display.
        data_dir: the folder with the data set's files, unless that is embedded.
        devices: number of devices that share the work, whatever the configuration says; None leaves it to that.
        fresh: start over, whatever the folder holds.
        should_stop: asked between dispatches; True ends the session with `Stopped`.
        mirror: shows the metrics in trackers too; the caller closes it.
        inputs: inputs shared with the other comparisons of a sweep.
        detail: told what is left to do, and about each compiled program; None for nothing.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        display: Progress,
        *,
        data_dir: str | os.PathLike | None = None,
        devices: str | int | None = None,
        fresh: bool = False,
        should_stop: Callable[[], bool] = lambda: False,
        mirror: Mirror | None = None,
        inputs: SharedInputs | None = None,
        detail: Callable[[str], None] | None = None,
    ) -> None:
        self.folder, self.display = folder, display
        self.should_stop, self.mirror, self.detail = should_stop, mirror, detail
        # Read before anything is changed, so that a folder that can't go on stays as it is.
        self.begun = None if fresh else folder.read_execution()
        begun = self.begun and self.begun.devices
        self.inputs = inputs or SharedInputs(data_dir, devices, begun)
        self.unable = ""  # why this machine can't go on with the runs
        self.config = config = self._with_chosen_convolution(config, fresh=fresh)
        self.comparison: Comparison = (set_up_to_read if self.unable else set_up)(config, inputs=self.inputs)
        prints = zip(config.methods, self.comparison.fingerprints, strict=True)
        # In words, for the message about a process with other data.
        data = {f"images, labels and partition of {own.name}": digest.tobytes().hex()[:12] for own, digest in prints}
        processes().agree(data)
        if fresh:
            folder.begin(config, fresh=True)
        self.conclusion = Conclusion(self.comparison, folder, display)
        methods = list(enumerate(config.methods))
        self.states = {(index, seed): RunState(own.name, seed) for seed in config.seeds for index, own in methods}
        for run in self.states:
            self.comparison.simulation(run).scratch = folder.path if folder.path.is_dir() else None
        self.before = folder.read_summary(display.note)
        self.cost = cost_of(self.before.get("cost"))
        self.wall_s, self.began, self.spent_s = number(self.before.get("wall_s")), time.perf_counter(), 0.0
        self.swept, self.data_dir = inputs is not None, inputs.data_dir if inputs else data_dir
        self.device: str | None = None  # that trains in this session: of a sweep's worker it may be another machine's

    def _with_chosen_convolution(self, config: Config, *, fresh: bool) -> Config:
        """The configuration with the form of convolution that "auto" stands for: from the first session to the last."""
        methods = [config.for_method(index).model for index in range(len(config.methods))]
        if not any(model.convolution == AUTO and convolves(model.name) for model in methods):
            return with_convolution(config, "fast")  # it makes no difference
        find = lambda: AUTO if fresh else self.folder.begun_form(config) or AUTO
        form = processes().from_first(find, str.encode, bytes.decode)
        if form == "fast":
            return with_convolution(config, form)
        # All processes compute in the same form.
        reasons = [reason for _, reason in processes().share(automatic.choice()) if reason]
        if form != AUTO:
            if reasons:
                self.unable = f"its runs began with convolution={form}, and {automatic.CANNOT}: {reasons[0]}"
            return with_convolution(config, form)
        if reasons:
            self.inputs.once("note on convolution", lambda: self.display.note(automatic.note(reasons[0])))
        return with_convolution(config, "fast" if reasons else automatic.choice()[0])

    def run(self) -> dict[str, Any]:
        """Trains the runs that are not finished; returns the summary, which is also on disk.

        A run that diverges is noted and ends there; the others go on.

        Raises:
            Stopped: `should_stop` returned True.
        """
        starts = self.resume()
        units: dict[Hashable, tuple[str, int]] = {
            state.key: (state.title, self.comparison.methods[index].training.rounds)
            for (index, _), state in self.states.items()
        }
        methods, seeds, rounds = len(self.config.methods), len(self.config.seeds), sum(own for _, own in units.values())
        count = f"{methods} method{'s' * (methods > 1)} x {seeds} seed{'s' * (seeds > 1)}"
        self.display.start(units, headline=f"{count}, {rounds} rounds in all, into {self.folder.path}")
        try:
            # Runs of a comparison aren't stacked: most differ in more than numbers.
            waiting = deque(
                BatchTraining(SweepBatch(0, (task,)), {0: self}, [saved]) for task, saved in self.unfinished(starts)
            )
            if self.detail:
                for line in run_outline(self.config, [task for own in waiting for task in own.batch.tasks]):
                    self.detail(line)
            starts.clear()  # their states belong to their training from here on
            stop_asked = lambda: processes().any(self.should_stop())  # by the user of any process
            with contextlib.closing(LocalBackend().train(waiting, stop_asked)) as events:
                for training, event in events:
                    if isinstance(event, Exception):
                        raise event
                    training.take(event)
                    task = training.batch.tasks[0]
                    state = self.states[task.run]
                    if isinstance(event, Started):
                        if task.round:
                            self.display.note(f"{state.title}: going on after round {task.round}")
                        if not task.simulation.compile_s:
                            self.display.compiling(state.key)
                    elif isinstance(event, BuiltBatch):
                        if self.detail:
                            self.detail(program_line(state.title, event))
                        self.show_progress(task.run, task.round, 0.0)
        except BaseException:
            self.finish()
            raise
        return self.finish()

    def unfinished(
        self, starts: Mapping[tuple[int, int], SavedRun | None], point: int = 0
    ) -> Iterator[tuple[SweepRun, SavedRun | None]]:
        """The runs with rounds left, by what `resume` returned; the others are concluded, unless they have failed."""
        for run, saved in starts.items():
            if self.states[run].failure is not None:
                continue
            done = saved.snapshot.round if saved else 0
            if done:
                self.show(run, done, 0.0)
            if saved and self.over(run, done):
                self.conclude(run, saved.snapshot)  # in case the session was killed before it
            else:
                yield SweepRun(point, run, self.comparison.simulation(run), done), saved

    def finish(self) -> dict[str, Any]:
        """Ends the session: writes metrics, summary and `SHA256SUMS`; returns the summary.

        A session in which nothing has changed leaves all of it as it is.
        """
        if self.folder.files.is_sealed():
            return self.before
        self._write_metrics()
        done = ((run, np.asarray(state.confusion)) for run, state in self.states.items() if state.failure is None)
        self.folder.write_confusion({run: matrix for run, matrix in done if matrix.size})
        summary = self._summary()
        self.folder.write_summary(summary)
        self.folder.seal()
        return summary

    def resume(self) -> dict[tuple[int, int], SavedRun | None]:
        """Returns the saved state of each run; None for a run that has failed or hasn't started.

        Raises:
            FolderError: the folder can't go on as it is; nothing in it is touched.
        """
        found: dict[tuple[str, int], list[dict[str, Any]]] = {}
        pack = lambda lines: json.dumps(lines).encode()
        for line in processes().from_first(self._read_metrics, pack, json.loads):
            found.setdefault((line["method"], line["seed"]), []).append(line)
        starts: dict[tuple[int, int], SavedRun | None] = {}
        for run, state in self.states.items():
            state.lines = found.get((state.method, state.seed), [])
            starts[run] = self._load(run) if state.failure is None else None
        self._begin(starts)
        for run, saved in starts.items():
            if self.states[run].failure is None:
                self._drop_later(run, saved)
        self._write_metrics()
        return starts

    def _read_metrics(self) -> list[dict[str, Any]]:
        self.folder.check_session()
        return self.folder.read_metrics(self.display.note)

    def _begin(self, starts: Mapping[tuple[int, int], SavedRun | None]) -> None:
        """Makes the folder this session's, unless there is nothing to do in it.

        Raises:
            FolderError: its runs would go on under other random numbers, another precision, or another form of
                convolution.
        """
        over = all(saved and self.over(run, saved.snapshot.round) for run, saved in starts.items())
        if over and self.before.get("finished") is True:
            return
        if self.unable:
            raise FolderError(f"{self.folder.path}: {self.unable}; go on with a machine that can, or {START_OVER}")
        settings = numeric_settings()
        differing = differing_settings(self.begun.settings, settings) if self.begun and any(starts.values()) else ""
        if differing:
            raise FolderError(
                f"{self.folder.path}: was begun with other settings of jax, on which its numbers depend: {differing}; "
                f"set them as they were, or {START_OVER}"
            )
        self.folder.begin(self.config, fresh=False)
        devices = max(own.setting.layout.devices for own in self.comparison.simulations)
        if self.begun and self.begun.devices != devices:
            self.display.note(
                f"begun on {self.begun.devices} device(s), goes on with {devices}: last digits may differ"
            )
        instructions = automatic.instruction_set() if target_platform() == "cpu" else ""
        if self.begun and self.begun.instructions not in ("", instructions):
            self.display.note(
                f"begun with {self.begun.instructions}, goes on with {instructions or 'other instructions'}: last "
                "digits may differ"
            )
        self.folder.write_execution(Execution(devices, settings, instructions))

    def rewind(self, run: tuple[int, int]) -> SavedRun | None:
        """Takes a run back to its newest checkpoint; None for its start."""
        saved = self._load(run)
        self._drop_later(run, saved)
        self._write_metrics()
        return saved

    def _load(self, run: tuple[int, int]) -> SavedRun | None:
        """Loads the saved state of a run, with its metrics until then in order; changes nothing in the folder.

        Of two lines of one round the later counts. A run without a checkpoint starts from the beginning if it can't
        have had one yet, and a checkpoint without all of its lines isn't gone on from: its sums over rounds would be
        wrong.
        """
        state, saved = self.states[run], load_newest(self.folder, self.comparison, run, self.display.note)
        file, done = self.folder.path / "metrics.jsonl", saved.snapshot.round if saved else 0
        lines = {line["round"]: line for line in state.lines}
        simulation, every = self.comparison.simulation(run), self.comparison.methods[run[0]].execution.checkpoint_every
        if not saved and max(lines, default=0) >= every + simulation.rounds_per_dispatch:
            raise FolderError(
                f"{self.folder.checkpoints(*run)}: has no checkpoint, but {file} has round {max(lines)} of "
                f"{state.title}; put back a copy of the checkpoints, or {START_OVER}"
            )
        # A run that was shorter has a line of its last round, too, where the longer one may have none.
        due = dict.fromkeys(simulation.setting.evaluation.rounds(done, simulation.rounds))
        missing = next((round for round in due if round not in lines), None)
        if missing is not None:
            raise FolderError(
                f"{file}: lacks round {missing} of {state.title}, whose checkpoint is of round {done}, and nothing is "
                f"touched; put back a copy of it, or {START_OVER}"
            )
        state.lines = [lines[round] for round in due]
        state.follow(saved)
        state.unwritten_s = 0.0
        return saved

    def _drop_later(self, run: tuple[int, int], saved: SavedRun | None) -> None:
        """Removes what an interrupted session has made of a run after its checkpoint."""
        if saved is None:
            self.folder.clear_pictures(*run)
        if not (saved and self.over(run, saved.snapshot.round)):
            self.folder.clear_conclusion(*run)

    def over(self, run: tuple[int, int], round: int) -> bool:
        """Whether a run has ended after `round` rounds."""
        return is_over(self.comparison.methods[run[0]], self.comparison.simulation(run), round, self.states[run].lines)

    def conclude(self, run: tuple[int, int], snapshot: Snapshot) -> None:
        """Does what follows a run's last round."""
        state = self.states[run]
        if snapshot.round < self.comparison.simulation(run).rounds:
            self.display.ended(state.key)
        self.conclusion.conclude(run, snapshot)
        state.concluded = True

    def save(self, run: tuple[int, int], saved: SavedRun) -> None:
        """Writes a checkpoint, and pictures if there are any."""
        self.conclusion.keep_pictures(run, saved.snapshot)  # first: a round with a checkpoint is never repeated
        self.folder.save(*run, saved.snapshot.round, pack(fetch(saved)))

    def take(self, run: tuple[int, int], saved: SavedRun, result: DispatchResult, seconds: float) -> SavedRun:
        """Writes the results of a dispatch, which took so many seconds; returns the saved run after it."""
        state = self.states[run]
        earlier = state.lines[-1]["wall_s"] if state.lines else 0.0
        state.unwritten_s += seconds
        named = [
            {"method": state.method, "seed": state.seed, **record, "wall_s": round(earlier + state.unwritten_s, 3)}
            for record in result.records
        ]
        if named:
            state.unwritten_s = 0.0
        self.folder.append_metrics(named)
        state.lines += named
        self.spent_s += seconds
        self.cost = self.cost.after(seconds, [result])
        if result.faults:
            self.display.note(f"{state.title}: {describe_faults(result.faults)}")
        confusion = saved.confusion if result.confusion is None else result.confusion
        saved = saved._replace(snapshot=result.snapshot, confusion=confusion)
        np.add.at(saved.chosen, result.chosen, 1)
        state.follow(saved)
        self.show(run, result.snapshot.round, result.client_updates / seconds)
        return saved

    def fail(self, run: tuple[int, int], reason: str) -> None:
        """Notes that a run has failed; its last checkpoint stays."""
        state = self.states[run]
        state.failure = reason
        kept = checkpoint.generations(self.folder.checkpoints(*run))
        last = f"its last good checkpoint is {kept[0]}" if kept else "it had no checkpoint yet"
        self.display.note(f"{state.title}: diverged in {reason}; {last}")

    def recall_failures(self) -> None:
        """Reads the failures of earlier sessions from the summary, so that diverged runs aren't tried again."""
        known = known_runs(self.before)
        for state in self.states.values():
            failure = known.get((state.method, state.seed), {}).get("failure")
            state.failure = failure if isinstance(failure, str) else None

    def add_built(self, built: BuiltBatch, runs: int) -> None:
        """Counts a run's share of the time that compiling took, and notes the device."""
        self.cost = self.cost._replace(compile_s=self.cost.compile_s + built.compile_s / runs)
        self.device = built.device

    def show(self, run: tuple[int, int], round: int, pace: float) -> None:
        """Shows a run's progress on the display and in the trackers."""
        self.show_progress(run, round, pace)
        if self.mirror:
            self.mirror.follow(*run, self.states[run].lines, finished=self.over(run, round))

    def show_progress(self, run: tuple[int, int], round: int, pace: float) -> None:
        """Shows a run's progress on the display."""
        state = self.states[run]
        accuracy = state.lines[-1]["test_accuracy"] if state.lines else None
        self.display.advance(state.key, round, pace, accuracy)

    def summarise(self, run: tuple[int, int]) -> dict[str, Any]:
        """A run's entry in the summary."""
        config, simulation = self.comparison.methods[run[0]], self.comparison.simulation(run)
        personalised, leaks = self.folder.read_personalised(*run), self.folder.read_leaks(*run)
        return summarise_state(self.states[run], config, simulation, personalised, leaks)

    def _write_metrics(self) -> None:
        self.folder.write_metrics([line for state in self.states.values() for line in state.lines])

    def _summary(self) -> dict[str, Any]:
        # In a session for several folders each counts its own part.
        session_s = self.spent_s if self.swept else time.perf_counter() - self.began
        # Of the sessions that trained: one that only finds all of it done may run elsewhere.
        device, trained_with = self.before.get("device"), self.before.get("versions")
        if self.device is not None or not trained_with:
            earlier = trained_with if isinstance(trained_with, dict) else {}
            device = with_earlier(self.device or device_name(), device)
            trained_with = {name: with_earlier(now, earlier.get(name)) for name, now in versions().items()}
        return {
            "name": self.config.name,
            "finished": all(state.concluded for state in self.states.values()),
            "device": device,
            "versions": trained_with,
            "command": command_options(self.config, self.data_dir),
            "compile_s": round(self.cost.compile_s, 3),
            "wall_s": round(self.wall_s + session_s, 3),
            **self.cost.rates(),
            "cost": self.cost._asdict(),
            "target_accuracy": self.config.evaluation.target_accuracy,
            "class_names": list(self.comparison.dataset.class_names),
            "partitions": summarise_partitions(self.comparison),
            "batches": summarise_batches(self.config, self.comparison.simulations),
            "runs": [self.summarise(run) for run, state in self.states.items() if state.begun],
        }
