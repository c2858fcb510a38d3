"""A comparison: runs of several methods and seeds on one federation, in a folder or in memory."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_bal.config import Config, resolved_sheet
from fedjax_bal.engine.processes import processes
from fedjax_bal.lab import environment, summary
from fedjax_bal.lab.callbacks import RunProgress
from fedjax_bal.lab.display import Progress, WorkUnit
from fedjax_bal.lab.errors import START_OVER, FolderError
from fedjax_bal.lab.folder import NEW_CLIENTS, PERSONALISED, PICTURES, RecordedExecution, RunFolder
from fedjax_bal.lab.loop import Callback, RunBatch, batch_runs, compiled_ahead, steps_per_round, train, unfinished
from fedjax_bal.lab.outline import outline
from fedjax_bal.lab.post_training import PostTraining
from fedjax_bal.lab.records import ClientResults, RunId, RunRecord
from fedjax_bal.lab.run import Run, RunState, runs_of
from fedjax_bal.lab.setup import Setup, SharedInputs, set_up
from fedjax_bal.lab.summary import Cost, total
from fedjax_bal.lab.training_line import training_line
from fedjax_bal.metrics import RunHistory, summarise_run


class MemoryFolder:
    """Keeps a comparison's results in memory, by the methods of a `RunFolder` that training calls; it can't resume.

    Attributes:
        path: a name for messages.
        snapshots: the last saved state of each run.
        analyses: results of analyses, by kind and run.
        summary: the last summary.
        lines, matrices, clients: what a `RunFolder` has in `metrics.jsonl`, `confusion.npz` and `clients.csv`.
    """

    def __init__(self) -> None:
        self.path = Path("in memory")
        self.snapshots: dict[RunId, Any] = {}
        self.analyses: dict[tuple[str, RunId], Any] = {}
        self.summary: dict[str, Any] = {}
        self.lines: list[dict[str, Any]] = []
        self.matrices: dict[tuple[str, int], np.ndarray] = {}
        self.clients: list[ClientResults] = []

    def checkpoints(self, method: str, seed: int) -> Path:
        """Returns a folder that doesn't exist."""
        return self.path

    def save(self, method: str, seed: int, round: int, tree: Any) -> None:
        """Keeps a run's state, without what only further training would need."""
        state = tree.snapshot.state._replace(optimizer=(), memory={}, downloads=())
        self.snapshots[RunId(method, seed)] = tree._replace(snapshot=tree.snapshot._replace(state=state))

    def read_summary(self) -> dict[str, Any]:
        """Returns the summary; empty before the first session's end."""
        return self.summary

    def write_summary(self, content: Mapping[str, Any]) -> None:
        """Keeps the summary."""
        self.summary = dict(content)

    def read_analysis(self, kind: str, method: str, seed: int) -> Any:
        """Returns a run's results of one kind; None if there are none."""
        return self.analyses.get((kind, RunId(method, seed)))

    def write_analysis(self, kind: str, method: str, seed: int, found: Any) -> None:
        """Keeps a run's results of one kind."""
        self.analyses[kind, RunId(method, seed)] = found

    def write_pictures(self, method: str, seed: int, pictures: Mapping[str, np.ndarray]) -> None:
        """Keeps a run's pictures."""
        self.write_analysis(PICTURES, method, seed, pictures)

    def write_metrics(self, lines: Sequence[dict[str, Any]]) -> None:
        """Keeps the runs' lines."""
        self.lines = list(lines)

    def write_confusion(self, matrices: Mapping[tuple[str, int], np.ndarray]) -> None:
        """Keeps the runs' confusion matrices."""
        self.matrices = dict(matrices)

    def write_clients(self, runs: Iterable[ClientResults]) -> None:
        """Keeps the results by client."""
        self.clients = list(runs)

    def read(self, config: Mapping[str, Any]) -> RunRecord:
        """Returns everything that a report shows; `config` describes the runs, as a folder's `config.yaml` does."""
        first: dict[str, int] = {}
        runs = []
        for run in self.summary["runs"]:
            first.setdefault(run["method"], run["seed"])
            runs.append({**run, "confusion_matrix": self.matrices.get((run["method"], run["seed"]))})
        pictures = {
            run.method: shown
            for (kind, run), shown in self.analyses.items()
            if kind == PICTURES and first[run.method] == run.seed
        }
        return RunRecord(dict(config), "", self.lines, {**self.summary, "runs": runs}, pictures, self.clients)

    def _do_nothing(self, *_: Any) -> None:
        """Writes nothing: `write_metrics` gets all lines at the end."""

    append_metrics = _do_nothing
    finish = _do_nothing


class Comparison:
    """The runs of several methods and seeds, and the folder that keeps their results.

    Args:
        runs: the runs, before any training.
        folder: the folder, already claimed; or a `MemoryFolder`, without which there is nothing to resume.
        note: called with messages for the user.
        describe: returns the part of the summary that doesn't depend on the results.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        folder: RunFolder | MemoryFolder,
        note: Callable[[str], None],
        describe: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self.runs = runs
        self.folder: Any = folder
        self.note = note
        self.before = folder.read_summary()  # the summary of earlier sessions
        self._describe = describe
        self._idle = False

    def resume(self, config: Any, *, retry_diverged: bool = True) -> None:
        """Loads every run from its newest checkpoint, then prepares the folder for this session.

        Args:
            config: the configuration, or what else the folder writes into `config.yaml`.
            retry_diverged: train a run again that diverged in an earlier session.

        Raises:
            FolderError: the folder can't resume; nothing in it is changed.
        """
        execution = processes().from_first(self.folder.read_execution)
        if not retry_diverged:
            earlier = summary.known_runs(self.before)
            for run in self.runs:
                run.failure = earlier.get(run.id, {}).get("failure")
        lines: dict[RunId, list[dict[str, Any]]] = {}
        for line in processes().from_first(self.folder.read_metrics):
            lines.setdefault(RunId(line["method"], line["seed"]), []).append(line)
        for run in self.runs:
            run.lines = lines.get(run.id, [])
            if run.failure is None:
                run.load()

        self._idle = self.before.get("finished") is True and all(run.is_over for run in self.runs)
        layouts = [run.simulation.setting.layout for run in self.runs]
        now = RecordedExecution(max(layout.devices for layout in layouts), environment.numeric_settings(), {})
        begun = execution if execution and any(run.round for run in self.runs) else now
        if not self._idle:
            self._check_execution(begun, now)
        self.folder.begin(config, fresh=False)
        if not self._idle:
            self.folder.write_execution(begun._replace(strategies=self._settle_strategies(begun)))
        for run in self.runs:
            self._drop_later(run)
        self._write_metrics()

    def _check_execution(self, first: RecordedExecution, now: RecordedExecution) -> None:
        """Refuses jax settings other than those of the runs' first session; notes a different number of devices."""
        differing = environment.differing_settings(first.settings, now.settings)
        if differing:
            raise FolderError(
                f"{self.folder.path}: was started with different jax settings, which change its numbers: {differing}; "
                f"restore them, or {START_OVER}"
            )
        if first.devices != now.devices:
            self.note(f"started on {first.devices} device(s), resumes on {now.devices}: last digits may differ")

    def _settle_strategies(self, first: RecordedExecution) -> dict[str, str]:
        """Makes runs continue with the strategies that they started with, and returns these by method."""
        for run in self.runs:
            strategy = first.strategies.get(run.id.method)
            if strategy and run.simulation.execution.strategy == "auto":
                run.simulation.set_strategy(strategy)
        return {run.id.method: run.simulation.setting.layout.strategy for run in self.runs}

    def last_state(self, run: Run) -> RunState | None:
        """Returns the last saved state of a run; None if it has saved none."""
        if isinstance(self.folder, MemoryFolder):
            return self.folder.snapshots.get(run.id)
        return run.load_checkpoint()

    def rewind(self, run: Run) -> None:
        """Resets a run to its newest checkpoint, or to its start."""
        run.load()
        self._drop_later(run)
        self._write_metrics()

    def _drop_later(self, run: Run) -> None:
        """Deletes a run's results from after its checkpoint, which an interrupted session left."""
        if run.failure is None and not run.round:
            self.folder.clear(*run.id, PICTURES)
        if run.failure is None and not run.is_over:
            self.folder.clear(*run.id, PERSONALISED, NEW_CLIENTS)
            self.folder.clear_findings(*run.id)

    def finish(self) -> Mapping[str, Any]:
        """Ends the session: writes metrics, results by client and the summary; returns the summary."""
        if self._idle:
            self.folder.finish()
            return self.before
        self._write_metrics()
        trained = [run for run in self.runs if run.failure is None and run.round]
        self.folder.write_confusion({run.id: np.asarray(run.confusion) for run in trained})
        self.folder.write_clients(results for run in trained for results in self._by_client(run))
        content = self._summary()
        self.folder.write_summary(content)
        self.folder.finish()
        return content

    def _by_client(self, run: Run) -> Iterator[ClientResults]:
        """Yields a run's results by client: of the clients that train, and of the new ones."""
        if run.client_hits is not None and run.lines:
            tuned = self._read(PERSONALISED, run).get("accuracies")
            yield summary.summarise_clients(run.id, run.simulation.federation, np.asarray(run.client_hits), tuned)
        found = self._read(NEW_CLIENTS, run)
        if run.tuner is not None and found:
            yield summary.new_clients(run.id, run.tuner.federation, run.simulation.federation.num_clients, found)

    def _read(self, kind: str, run: Run) -> Mapping[str, Any]:
        """Reads a run's results of one kind; empty if there are none."""
        return self.folder.read_analysis(kind, *run.id) or {}

    def _write_metrics(self) -> None:
        self.folder.write_metrics([line for run in self.runs for line in run.lines])

    def _summary(self) -> dict[str, Any]:
        session = total(run.cost for run in self.runs)
        cost = total([session, Cost.saved(self.before["cost"])]) if self.before else session
        # Only devices and versions of sessions that trained.
        device = self.before.get("device")
        versions = self.before.get("versions")
        if session.compile_s or session.train_s or not versions:
            device = environment.with_earlier(environment.device_name(), device)
            earlier = versions or {}
            versions = {
                name: environment.with_earlier(now, earlier.get(name)) for name, now in environment.versions().items()
            }
        return {
            "finished": all(run.ended for run in self.runs),
            "device": device,
            "versions": versions,
            "compile_s": round(cost.compile_s, 3),
            "wall_s": round(cost.compile_s + cost.train_s, 3),
            **cost.rates(),
            "cost": cost._asdict(),
            **self._describe(),
            "runs": [self.summarise(run) for run in self.runs if run.lines or run.failure is not None],
        }

    def summarise(self, run: Run) -> dict[str, Any]:
        """Builds a run's entry in the summary."""
        simulation = run.simulation
        history = RunHistory(
            lines=run.lines,
            rounds=simulation.rounds,
            target=run.target,
            stopping=run.stopping,
            fine_tuned={**self._read(PERSONALISED, run), **self._read(NEW_CLIENTS, run)},
            failure=run.failure,
            clients_per_chain=simulation.selector.chain_length,
            copies=int(np.count_nonzero(simulation.federation.copy)),
        )
        figures = summarise_run(history)
        estimates = simulation.selector.compositions
        if estimates is not None and run.snapshot is not None:
            counts = np.asarray(simulation.federation.class_counts)
            figures["composition"] = summary.compare_compositions(estimates(run.snapshot.selector), counts)
        return {**run.id._asdict(), **figures, "failure": run.failure}


def train_comparison(
    comparison: Comparison,
    callbacks: Sequence[Callback] = (),
    should_stop: Callable[[], bool] = lambda: False,
    *,
    stacked: bool = False,
) -> Mapping[str, Any]:
    """Trains the unfinished runs of a comparison, one after another; returns the summary.

    A run that diverges is recorded as failed; the others continue. With `stacked`, runs that one program can train are
    trained together, such as the seeds of a method.

    Raises:
        Stopped: `should_stop`, which is called between dispatches, returned True.
    """
    try:
        runs = unfinished(comparison.runs, callbacks)
        batches = batch_runs(runs) if stacked else [RunBatch((run,)) for run in runs]
        with compiled_ahead(batches):
            for batch in batches:
                train(batch, callbacks, should_stop)
    finally:
        content = comparison.finish()
    return content


def open_comparison(
    config: Config,
    folder: RunFolder,
    note: Callable[[str], None],
    inputs: SharedInputs,
    *,
    fresh: bool = False,
) -> Comparison:
    """Sets up the comparison of a configuration; changes nothing in the folder unless `fresh`, which empties it."""
    setup = set_up(config, inputs)
    # For the message about a process whose data differ.
    data = {
        f"images, labels and partition of {method.name}": digest.tobytes().hex()[:12]
        for method, digest in zip(config.methods, setup.fingerprints, strict=True)
    }
    processes().agree(data)
    if fresh:
        folder.begin(config, fresh=True)
    runs = runs_of(config, setup, folder, note)
    for run in runs:
        run.simulation.scratch = folder.path if folder.path.is_dir() else None
    return Comparison(runs, folder, note, lambda: _describe(config, setup, inputs))


def _describe(config: Config, setup: Setup, inputs: SharedInputs) -> dict[str, Any]:
    """Returns the part of the summary about the configuration and its data."""
    return {
        "name": config.name,
        "command": environment.command_options(config, inputs.data_dir),
        "target_accuracy": config.evaluation.target_accuracy,
        "class_names": list(setup.dataset.class_names),
        "partitions": summary.summarise_partitions(setup),
        "batches": summary.summarise_batches([method.name for method in config.methods], setup.simulations),
    }


def run_comparison(
    config: Config,
    folder: RunFolder,
    inputs: SharedInputs,
    display: Progress,
    should_stop: Callable[[], bool],
    *,
    callbacks: Sequence[Callback] = (),
    verbose: bool = False,
    fresh: bool = False,
) -> Mapping[str, Any]:
    """Trains the unfinished runs of a configuration; returns the summary, which is also saved.

    Args:
        config: the configuration, with a chosen form of convolution.
        folder: its run folder, already claimed.
        inputs: where its data are, and the devices that share the work.
        display: the progress display.
        should_stop: called between dispatches; True ends the session.
        callbacks: further callbacks, such as trackers.
        verbose: shows each compiled program, too.
        fresh: start over, regardless of the folder's content.

    Raises:
        Stopped: `should_stop` returned True.
    """
    comparison = open_comparison(config, folder, display.note, inputs, fresh=fresh)
    for line in (*inputs.data_lines(), f"training: {training_line(resolved_sheet(config))}"):
        display.note(line)
    comparison.resume(config)
    units: dict[Hashable, WorkUnit] = {
        run.id: WorkUnit(
            run.id.method,
            f"seed {run.id.seed}",
            run.simulation.rounds,
            program=run.id.method,
            steps=steps_per_round(run.simulation),
        )
        for run in comparison.runs
    }
    methods = len(config.methods)
    seeds = len(config.seeds)
    rounds = sum(unit.rounds for unit in units.values())
    count = f"{methods} method{'s' * (methods > 1)} x {seeds} seed{'s' * (seeds > 1)}"
    display.start(units, "seeds" if seeds > 1 else "seed", f"{count}, {rounds} rounds in all, into {folder.path}")
    callbacks = [RunProgress(display, verbose=verbose), PostTraining(), *callbacks]
    if verbose:
        left = [run for run in comparison.runs if not run.is_over]
        for line in outline(config.name, len(comparison.runs), batch_runs(left, 1)):
            display.note(line)
    try:
        # The user may stop any process.
        return train_comparison(comparison, callbacks, lambda: processes().any(should_stop()))
    finally:
        display.stop()
