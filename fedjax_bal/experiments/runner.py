"""Runs a comparison: every method with every seed, saved as it goes, resumed where it stopped."""

import io
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.config import Config
from fedjax_bal.contrib.trackers import Mirror
from fedjax_bal.engine.host import DispatchResult, Snapshot, describe_faults, fetch, generated_images
from fedjax_bal.engine.processes import processes
from fedjax_bal.experiments.backends.backend import BatchTask, BuiltBatch, StepResult
from fedjax_bal.experiments.backends.local import LocalBackend
from fedjax_bal.experiments.display import Progress
from fedjax_bal.experiments.environment import device_name, versions
from fedjax_bal.experiments.fine_tuned import FineTuningTask
from fedjax_bal.experiments.grouping import SweepBatch, SweepRun
from fedjax_bal.experiments.leaks import attack_prototypes, nearest_images, some_of_each_class
from fedjax_bal.experiments.saved_runs import SavedRun, newest_saved, saved_template
from fedjax_bal.experiments.setup import Comparison, SharedInputs, set_up
from fedjax_bal.experiments.summary import (
    Cost,
    batches,
    cost_of,
    history_of,
    is_over,
    number,
    summarise_partitions,
    summarise_selection,
)
from fedjax_bal.experiments.training import BatchTraining
from fedjax_bal.metrics import Counts, summarise_run
from fedjax_bal.runs import RunFolder, checkpoint


class Runner:
    """Trains a comparison, in as many sessions as it takes.

    Args:
        config: the configuration.
        folder: its run folder, already claimed.
        display: the progress display.
        data_dir: the folder with the data set's files, unless that is embedded.
        devices: number of devices that share the work, whatever the configuration says; None leaves it to that.
        fresh: start over, whatever the folder holds.
        should_stop: asked between dispatches; True ends the session with `Stopped`.
        mirror: shows the metrics in trackers too; the caller closes it.
        inputs: inputs shared with other comparisons.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        display: Progress,
        *,
        data_dir: str | None = None,
        devices: str | int | None = None,
        fresh: bool = False,
        should_stop: Callable[[], bool] = lambda: False,
        mirror: Mirror | None = None,
        inputs: SharedInputs | None = None,
    ) -> None:
        self.folder, self.display, self.should_stop, self.mirror = folder, display, should_stop, mirror
        self.config = config
        self.comparison: Comparison = set_up(config, data_dir, devices, inputs)
        processes().agree(self._data())
        folder.begin(config, fresh=fresh)
        self.runs = [(index, seed) for seed in config.seeds for index in range(len(config.methods))]
        self.began = time.perf_counter()
        self.before = folder.read_summary()
        self.cost = cost_of(self.before.get("cost"))
        self.wall_s = number(self.before.get("wall_s"))
        self.lines: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self.confusions: dict[tuple[str, int], Any] = {}
        self.clients: dict[tuple[str, int], tuple[Any, Any]] = {}  # selection counts; the selector's state
        self.failures: dict[tuple[str, int], str] = {}
        self.concluded: set[tuple[int, int]] = set()
        self.unwritten_s: dict[tuple[str, int], float] = {}  # seconds since the last line
        self._stop_asked = False
        self.shared, self.spent_s = inputs is not None, 0.0  # in a session for several folders each counts its part
        self.fine_tuning = FineTuningTask(folder, display)
        # A backend's workers may run on another device than this process.
        known = self.before.get("device")
        self.device: str | None = known if self.shared and isinstance(known, str) else None

    def run(self) -> dict[str, Any]:
        """Trains the runs that are not finished; returns the summary, which is also on disk.

        A run that diverges is noted and ends there; the others go on.

        Raises:
            Stopped: `should_stop` returned True.
        """
        starts = self.resume()
        self.display.start(
            [method.name for method in self.config.methods],
            self.config.seeds,
            {method.name: method.training.rounds for method in self.comparison.methods},
            self.folder.path,
        )
        try:
            for run, saved in starts.items():
                if saved:
                    self.show(run, saved.snapshot.round, 0.0)
            tasks = (self._task(run, starts.pop(run)) for run in self.runs)
            LocalBackend().run_tasks(tasks, lambda: self._stop_asked)
        finally:
            self._write_summary()
        return self.finish()

    def _task(self, run: tuple[int, int], saved: SavedRun | None) -> BatchTask:
        """Trains a run, in a batch of its own."""
        if saved and self.over(run, saved):
            self.conclude(run, saved.snapshot)  # in case the session was killed before it
            return
        name, done = self.name(run), saved.snapshot.round if saved else 0
        if saved:
            self.display.note(f"{name[0]}, seed {name[1]}: going on after round {done}")
        batch = SweepBatch(0, (SweepRun(0, run, self.comparison.simulations[run[0]], done),))
        yield from BatchTraining(batch, {0: self}, [saved], _RunObserver(self, run, done)).task(LocalBackend())

    def stopping(self) -> bool:
        """Whether the user of any process wants to stop."""
        self._stop_asked = processes().any(self.should_stop())
        return self._stop_asked

    def finish(self) -> dict[str, Any]:
        """Writes all metrics and the summary; returns the summary."""
        self.folder.write_metrics(self._all_lines())
        return self._write_summary()

    def resume(self) -> dict[tuple[int, int], SavedRun | None]:
        """The saved state of each run (method and seed); None for a run that hasn't started."""
        found: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for line in processes().from_first(self.folder.read_metrics, _packed, json.loads):
            found.setdefault((line["method"], line["seed"]), []).append(line)
        starts = {}
        for run in self.runs:
            name = self.name(run)
            if self.failed(run) is not None:
                self.lines[name], starts[run] = found.get(name, []), None
                self.confusions[name] = np.zeros((0, 0))
                continue
            starts[run] = self._take_up(run, found.get(name, []))
        self.folder.write_metrics(self._all_lines())
        return starts

    def rewind(self, run: tuple[int, int]) -> SavedRun | None:
        """Takes a run back to its newest checkpoint; None for its start."""
        name = self.name(run)
        self.unwritten_s.pop(name, None)
        self.clients.pop(name, None)
        saved = self._take_up(run, self.lines[name])
        self.folder.write_metrics(self._all_lines())
        return saved

    def _take_up(self, run: tuple[int, int], known: list[dict[str, Any]]) -> SavedRun | None:
        """The saved state of a run, whose metrics after that are dropped."""
        name, saved = self.name(run), self._load(run)
        done = saved.snapshot.round if saved else 0
        self.lines[name] = [line for line in known if line["round"] <= done]
        if [line["round"] for line in self.lines[name]] != self._evaluated(run[0], done):
            self.display.note(f"warning: metrics.jsonl lacks rounds of {name[0]}, seed {name[1]}; starting it anew")
            self.lines[name], saved = [], None
        if saved is None:  # or else the old ones would count as newer than those saved from now on
            self.folder.clear_checkpoints(*run)
            self.folder.clear_pictures(*run)
        self.confusions[name] = saved.confusion if saved else np.zeros((0, 0))
        if saved:
            self.clients[name] = saved.chosen, saved.snapshot.selector
        return saved

    def _evaluated(self, method: int, done: int) -> list[int]:
        simulation = self.comparison.simulations[method]
        every, last = simulation.setting.evaluation.every, simulation.rounds
        return [round for round in range(1, done + 1) if round % every == 0 or round == last]

    def _data(self) -> dict[str, str]:
        """Fingerprints of the methods' data, in words."""
        prints = zip(self.config.methods, self.comparison.fingerprints, strict=True)
        return {f"images, labels and partition of {method.name}": own.tobytes().hex()[:12] for method, own in prints}

    def _load(self, run: tuple[int, int]) -> SavedRun | None:
        wanted = saved_template(self.config, self.comparison, run)
        pack = lambda saved: b"" if saved is None else checkpoint.encode(saved)
        unpack = lambda content: checkpoint.load(io.BytesIO(content), wanted) if content else None
        saved = processes().from_first(lambda: newest_saved(self.folder, run, wanted, self.display.note), pack, unpack)
        return saved and saved._replace(snapshot=saved.snapshot._replace(round=int(saved.snapshot.round)))

    def over(self, run: tuple[int, int], saved: SavedRun) -> bool:
        """Whether a run has ended, possibly early."""
        return is_over(self.comparison.methods[run[0]], saved.snapshot.round, self.lines[self.name(run)])

    def conclude(self, run: tuple[int, int], snapshot: Snapshot) -> None:
        """Looks for leaks and fine-tunes, once a run is over."""
        if snapshot.round < self.comparison.simulations[run[0]].rounds:
            self.display.ended(*self.name(run))
        self._look_for_leaks(run, snapshot)
        epochs = self.comparison.methods[run[0]].evaluation.personalised
        if epochs is not None:
            self.fine_tuning.fine_tune(run, self.name(run)[0], self.comparison.simulations[run[0]], snapshot, epochs)
        self.concluded.add(run)

    def unstarted(self, run: tuple[int, int]) -> SavedRun:
        """The saved run before its first round, without a state."""
        nothing: Any = None
        return saved_template(self.config, self.comparison, run)._replace(
            snapshot=Snapshot(0, nothing, nothing, Counts())
        )

    def save(self, run: tuple[int, int], saved: SavedRun) -> None:
        """Writes a checkpoint, and pictures if there are any."""
        self._keep_pictures(run, saved.snapshot)  # first: a round with a checkpoint is never repeated
        self.folder.save(*run, saved.snapshot.round, fetch(saved))

    def _keep_pictures(self, run: tuple[int, int], snapshot: Snapshot) -> dict[str, np.ndarray]:
        simulation = self.comparison.simulations[run[0]]
        generated = generated_images(simulation, snapshot)
        if generated is None:
            return {}
        pictures = {"real": some_of_each_class(simulation.federation, *generated.shape[:2]), "generated": generated}
        self.folder.write_pictures(*run, pictures)
        return pictures

    def _look_for_leaks(self, run: tuple[int, int], snapshot: Snapshot) -> None:
        evaluation = self.comparison.methods[run[0]].evaluation
        if not evaluation.privacy or run[1] != self.config.seeds[0]:
            return
        if processes().any(self.folder.read_leaks(*run) is not None):
            return
        simulation = self.comparison.simulations[run[0]]
        self.display.note(f"{self.name(run)[0]}, seed {run[1]}: looking for what it gives away")
        pictures = self._keep_pictures(run, snapshot)
        found = [attack_prototypes(simulation, snapshot, evaluation.attack_steps)]
        if pictures:
            found.append(nearest_images(simulation, pictures["generated"]))
        for leaks in found:
            pictures |= leaks.pictures
        if pictures:
            self.folder.write_pictures(*run, pictures)
        self.folder.write_leaks(*run, {name: value for leaks in found for name, value in leaks.figures.items()})

    def take(self, run: tuple[int, int], saved: SavedRun, advance: DispatchResult, seconds: float) -> SavedRun:
        """Writes the results of a dispatch, which took so many seconds; returns the saved run after it."""
        name = self.name(run)
        self.spent_s += seconds
        earlier = self.lines[name][-1]["wall_s"] if self.lines[name] else 0.0
        taken = self.unwritten_s.pop(name, 0.0) + seconds
        named = [
            {"method": name[0], "seed": name[1], **record, "wall_s": round(earlier + taken, 3)}
            for record in advance.records
        ]
        if not named:
            self.unwritten_s[name] = taken
        self.folder.append_metrics(named)
        self.lines[name] += named
        self.cost = Cost(
            self.cost.compile_s,
            self.cost.train_s + seconds,
            self.cost.client_updates + advance.client_updates,
            self.cost.samples + advance.samples,
        )
        self.confusions[name] = saved.confusion if advance.confusion is None else advance.confusion
        if advance.faults:
            self.display.note(f"{name[0]}, seed {name[1]}: {describe_faults(advance.faults)}")
        saved = saved._replace(snapshot=advance.snapshot, confusion=self.confusions[name])
        np.add.at(saved.chosen, advance.chosen, 1)
        self.clients[name] = saved.chosen, advance.snapshot.selector
        self.show(run, advance.snapshot.round, advance.client_updates / seconds)
        return saved

    def fail(self, run: tuple[int, int], reason: str) -> None:
        """Notes that a run has failed; its last checkpoint stays."""
        self.failures[self.name(run)] = reason
        kept = checkpoint.generations(self.folder.checkpoints(*run))
        last = f"its last good checkpoint is {kept[0]}" if kept else "it had no checkpoint yet"
        self.display.note(f"{self.name(run)[0]}, seed {run[1]}: diverged in {reason}; {last}")

    def failed(self, run: tuple[int, int]) -> str | None:
        """The reason why a run has failed; None if it hasn't."""
        return self.failures.get(self.name(run))

    def recall_failures(self) -> None:
        """Reads the failures of earlier sessions from the summary, so that diverged runs aren't tried again."""
        runs = self.before.get("runs")
        for known in runs if isinstance(runs, list) else []:
            if not isinstance(known, dict):
                continue
            if isinstance(known.get("failure"), str):
                self.failures[str(known.get("method")), number(known.get("seed"))] = known["failure"]

    def add_built(self, built: BuiltBatch, runs: int) -> None:
        """Counts a run's share of the time that compiling took, and notes the device."""
        self.cost = self.cost._replace(compile_s=self.cost.compile_s + built.compile_s / runs)
        self.device = built.device

    def checkpoint_every(self, run: tuple[int, int]) -> int:
        """Rounds between two checkpoints of a run."""
        return self.comparison.methods[run[0]].execution.checkpoint_every

    def show(self, run: tuple[int, int], round: int, pace: float) -> None:
        """Shows a run's progress on the display and in the trackers."""
        self.show_progress(run, round, pace)
        if self.mirror:
            lines = self.lines[self.name(run)]
            finished = is_over(self.comparison.methods[run[0]], round, lines)
            self.mirror.follow(*run, lines, finished=finished)

    def show_progress(self, run: tuple[int, int], round: int, pace: float) -> None:
        """Shows a run's progress on the display."""
        name = self.name(run)
        accuracy = self.lines[name][-1]["test_accuracy"] if self.lines[name] else None
        self.display.advance(name[0], name[1], round, accuracy, pace)

    def name(self, run: tuple[int, int]) -> tuple[str, int]:
        """A run's method by name, and its seed."""
        return self.config.methods[run[0]].name, run[1]

    def _all_lines(self) -> list[dict[str, Any]]:
        return [line for run in self.runs for line in self.lines.get(self.name(run), [])]

    def _write_summary(self) -> dict[str, Any]:
        runs = [self.summarise(run) for run in self.runs if self.lines[self.name(run)] or self.failed(run)]
        wanted = {method.name: method.training.rounds for method in self.comparison.methods}
        done = sum(run["rounds"] == wanted[run["method"]] or run["stopped_early"] is not None for run in runs)
        summary = {
            "name": self.config.name,
            "finished": done == len(self.runs),
            "device": self.device or device_name(),
            "versions": versions(),
            "compile_s": round(self.cost.compile_s, 3),
            "wall_s": round(self.wall_s + (self.spent_s if self.shared else time.perf_counter() - self.began), 3),
            **self.cost.record(),
            "target_accuracy": self.config.evaluation.target_accuracy,
            "class_names": list(self.comparison.dataset.class_names),
            "partitions": summarise_partitions(self.config, self.comparison.simulations),
            "batches": batches(self.config, self.comparison.simulations),
            "runs": runs,
        }
        self.folder.write_summary(summary)
        return summary

    def summarise(self, run: tuple[int, int]) -> dict[str, Any]:
        """A run's entry in the summary."""
        (method, seed), name, failure = run, self.name(run), self.failed(run)
        simulation, known = self.comparison.simulations[method], self.clients.get(name)
        personalised = self.folder.read_personalised(*run)
        history = history_of(self.comparison.methods[method], simulation, self.lines[name], personalised, failure)
        return {
            "method": name[0],
            "seed": seed,
            **summarise_run(history),
            "confusion_matrix": [] if failure else np.asarray(self.confusions[name]).tolist(),
            **({} if known is None else summarise_selection(simulation, *known)),
            "leaks": self.folder.read_leaks(*run),
            "failure": failure,
        }


class _RunObserver(NamedTuple):
    """Shows a run that is trained by itself."""

    runner: Runner
    run: tuple[int, int]
    began: int  # rounds done before

    def compiling(self) -> None:
        if not self.runner.comparison.simulations[self.run[0]].compile_s:
            self.runner.display.compiling(self.runner.name(self.run)[0])

    def built(self, built: BuiltBatch) -> None:
        self.runner.show_progress(self.run, self.began, 0.0)

    def stepped(self, step: StepResult) -> None: ...

    def written(self) -> None: ...

    def should_stop(self) -> bool:
        return self.runner.stopping()


def _packed(lines: list[dict[str, Any]]) -> bytes:
    return json.dumps(lines).encode()
