"""Loads, records, saves and summarises the runs of a comparison in their folder."""

import dataclasses
import io
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_bal.config import AUTO, Config, with_convolution
from fedjax_bal.engine.device import State, client_hits_shape
from fedjax_bal.engine.host import DispatchResult, Snapshot, describe_faults, fetch, memory_rows, rows_to_save
from fedjax_bal.engine.processes import processes
from fedjax_bal.lab import checkpoint, environment, summary
from fedjax_bal.lab.errors import START_OVER, FolderError, reading
from fedjax_bal.lab.folder import PERSONALISED, PICTURES, RecordedExecution, RunFolder
from fedjax_bal.lab.schema import RunId
from fedjax_bal.lab.setup import Comparison, SharedInputs, set_up, set_up_to_read
from fedjax_bal.lab.training import BuiltBatch, RunStart, is_over
from fedjax_bal.metrics import Counts, RunHistory, summarise_run
from fedjax_bal.models import automatic, convolves
from fedjax_bal.target import target_platform
from fedjax_bal.types import Variables


class SavedRun(NamedTuple):
    """The content of a checkpoint; field names are the array names in the file."""

    snapshot: Snapshot
    confusion: Any  # matrix of the last evaluation
    fingerprint: Any  # of the data with which the run began
    owner: Any  # hash that identifies the run
    client_hits: Any = None  # of the last evaluation, see `EvaluationResult`; None without test rows of clients


def saved_template(comparison: Comparison, run: RunId) -> SavedRun:
    """Returns the shapes that a run's checkpoint must have, with its fingerprint and owner, and zeros for counts."""
    simulation = comparison.simulation(run)
    fingerprint = comparison.fingerprint(run)
    classes = simulation.setting.model.num_classes
    matrix = np.zeros((classes, classes), np.int32)
    owner = checkpoint.owner(comparison.config, *run)
    tested = simulation.federation.tests is not None
    hits = np.zeros(client_hits_shape(simulation.federation), np.int32) if tested else None
    return SavedRun(simulation.state_shapes(), matrix, fingerprint, owner, hits)


def load_newest(folder: RunFolder, comparison: Comparison, run: RunId, note: Callable[[str], None]) -> SavedRun | None:
    """Loads a run's newest undamaged checkpoint; None if it has none. Reports damaged ones to `note`.

    Raises:
        FolderError: all checkpoints are damaged, or one can't be read or belongs to another run, other data or another
            state. Nothing is changed.
    """
    wanted = saved_template(comparison, run)

    def use(file: Path, arrays: Mapping[str, np.ndarray]) -> SavedRun:
        # The fingerprint is checked before the state: with other data its shapes may differ.
        if not np.array_equal(arrays.get(checkpoint.FINGERPRINT, ()), wanted.fingerprint):
            raise FolderError(
                f"{folder.path}: was begun with other images, labels, class names, owners of images, partition, traces "
                "or initial weights than those that are read now, and nothing in it is touched; pass the same "
                "--data-dir as then and leave the files that the configuration names as they were, or "
                f"{START_OVER}"
            )
        return _fitted(file, arrays, _with_rows_of(wanted, arrays))

    read = lambda: _read_newest(folder, comparison.config, run, note, use)
    encode = lambda saved: b"" if saved is None else checkpoint.encode(saved)

    def decode(content: bytes) -> SavedRun | None:
        if not content:
            return None
        arrays = checkpoint.read(io.BytesIO(content))
        return checkpoint.fit(arrays, _with_rows_of(wanted, arrays))

    saved = processes().from_first(read, encode, decode)
    return saved and saved._replace(snapshot=saved.snapshot._replace(round=int(saved.snapshot.round)))


def load_variables(
    folder: RunFolder, config: Config, run: RunId, shapes: Variables, note: Callable[[str], None]
) -> tuple[int, Variables] | None:
    """Loads the round and the global model of a run's newest undamaged checkpoint, without the data; None if none.

    Raises the same errors as `load_newest`, but can't tell whether the data have changed.
    """
    # The names of a checkpoint's arrays are those of the fields, so a template with nothing else selects these two.
    nothing: Any = None
    state = State(shapes, nothing, nothing, nothing)
    wanted = SavedRun(Snapshot(np.int64(0), state, nothing, nothing, nothing), nothing, nothing, nothing)
    starts = (".snapshot.round", ".snapshot.state.variables")

    def use(file: Path, arrays: Mapping[str, np.ndarray]) -> SavedRun:
        return _fitted(file, {name: array for name, array in arrays.items() if name.startswith(starts)}, wanted)

    saved = _read_newest(folder, config, run, note, use)
    return None if saved is None else (int(saved.snapshot.round), saved.snapshot.state.variables)


def _read_newest(
    folder: RunFolder,
    config: Config,
    run: RunId,
    note: Callable[[str], None],
    use: Callable[[Path, Mapping[str, np.ndarray]], SavedRun],
) -> SavedRun | None:
    """Returns what `use` makes of the arrays of a run's newest undamaged checkpoint; None if there is none."""
    damages: list[str] = []
    place = folder.checkpoints(config.methods[run.method].name, run.seed)
    with reading(place):
        files = checkpoint.generations(place)
    for file in files:
        try:
            with reading(file):
                arrays = checkpoint.read(file)
        except checkpoint.CheckpointError as error:
            damages.append(f"warning: {error}; resuming from the checkpoint before it")
            continue
        except checkpoint.StateError as error:
            raise FolderError(f"{error}; resume with the version that wrote it, or {START_OVER}") from error
        if not np.array_equal(arrays.get(checkpoint.OWNER, ()), checkpoint.owner(config, *run)):
            raise FolderError(f"{file}: belongs to another run; move it away, or {START_OVER}")
        saved = use(file, arrays)
        for text in damages:
            note(text)
        return saved
    if files:
        raise FolderError(f"{files[0].parent}: every checkpoint is damaged; put back a copy of one, or {START_OVER}")
    return None


def _with_rows_of(wanted: SavedRun, arrays: Mapping[str, np.ndarray]) -> SavedRun:
    """Returns the template for a checkpoint, which holds the memory of clients that were asked to train."""
    asked = arrays.get(".snapshot.asked")
    if asked is None or asked.dtype != bool or asked.shape != wanted.snapshot.asked.shape:
        return wanted  # which doesn't fit, as the message says
    rows = memory_rows(asked)
    state = wanted.snapshot.state
    saved = lambda leaf: leaf if rows is None else jax.ShapeDtypeStruct((len(rows), *leaf.shape[1:]), leaf.dtype)
    state = state._replace(memory=jax.tree.map(saved, state.memory))
    return wanted._replace(snapshot=wanted.snapshot._replace(state=state))


def _fitted(file: Path, arrays: Mapping[str, np.ndarray], wanted: SavedRun) -> SavedRun:
    """Arranges a checkpoint's arrays like the template."""
    try:
        return checkpoint.fit(arrays, wanted)
    except checkpoint.StateError as error:
        raise FolderError(
            f"{file}: is whole, but holds another state than this version's ({error}), and nothing is touched; "
            f"resume with the versions that wrote it (summary.json names them), or {START_OVER}"
        ) from error


@dataclasses.dataclass
class RunState:
    """A run's results so far."""

    method: str
    seed: int
    saved: SavedRun | None = None  # after the last dispatch; without the model during training; None before loading
    lines: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # of metrics.jsonl
    failure: str | None = None
    concluded: bool = False
    unwritten_s: float = 0.0  # seconds of training since the last line

    @property
    def key(self) -> tuple[str, int]:
        """The method's name, and the seed."""
        return self.method, self.seed

    @property
    def title(self) -> str:
        """Describes the run."""
        return f"{self.method}, seed {self.seed}"

    @property
    def round(self) -> int:
        """Number of finished rounds."""
        return self.saved.snapshot.round if self.saved else 0

    @property
    def has_results(self) -> bool:
        """True if there are results to summarise."""
        return bool(self.lines) or self.failure is not None


class Recorder:
    """Records the runs of a comparison in its folder. A run is a method number and a seed.

    Args:
        config: the configuration.
        folder: its run folder, already claimed.
        note: called with remarks for the user.
        inputs: the data and models.
        fresh: start over, regardless of the folder's content.
        swept: whether the session has several folders, each of which counts only its own time.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        note: Callable[[str], None],
        inputs: SharedInputs | None = None,
        *,
        fresh: bool = False,
        swept: bool = False,
    ) -> None:
        self.folder = folder
        self.note = note
        # Read before any change, so that a folder that can't resume stays as it is.
        self.first_execution = None if fresh else folder.read_execution()
        self.inputs = inputs or SharedInputs()
        self.resume_error = ""  # reason why this machine can't resume the runs
        self.config = config = self._with_chosen_convolution(config, fresh=fresh)
        self.comparison: Comparison = (set_up_to_read if self.resume_error else set_up)(config, self.inputs)
        # For the message about a process whose data differ.
        data = {
            f"images, labels and partition of {method.name}": digest.tobytes().hex()[:12]
            for method, digest in zip(config.methods, self.comparison.fingerprints, strict=True)
        }
        processes().agree(data)
        if fresh:
            folder.begin(config, fresh=True)
        runs = [RunId(method, seed) for seed in config.seeds for method in range(len(config.methods))]
        self.states = {run: RunState(config.methods[run.method].name, run.seed) for run in runs}
        for run in self.states:
            self.comparison.simulation(run).scratch = folder.path if folder.path.is_dir() else None
        self.before = folder.read_summary()
        self.cost = summary.Cost.saved(self.before["cost"]) if self.before else summary.Cost()
        self.wall_s = self.before.get("wall_s", 0.0)
        self.began = time.perf_counter()
        self.spent_s = 0.0
        self.swept = swept
        self.idle = False  # nothing is left to do
        self.device: str | None = None  # device of this session; a sweep's worker may be on another machine

    def _with_chosen_convolution(self, config: Config, *, fresh: bool) -> Config:
        """Replaces "auto" by a form of convolution, which stays the same in all sessions of the runs."""
        models = [method.model for method in config.methods]
        if not any(model.convolution == AUTO and convolves(model.name) for model in models):
            return with_convolution(config, "fast")  # no difference: no model with "auto" convolves
        find = lambda: AUTO if fresh else self.folder.initial_form(config) or AUTO
        form = processes().from_first(find, str.encode, bytes.decode)
        if form == "fast":
            return with_convolution(config, form)
        # All processes must use the same form.
        reasons = [reason for _, reason in processes().share(automatic.choice()) if reason]
        if form != AUTO:
            if reasons:
                self.resume_error = f"its runs began with convolution={form}, and {automatic.CANNOT}: {reasons[0]}"
            return with_convolution(config, form)
        if reasons:
            self.inputs.cached("note on convolution", lambda: self.note(automatic.note(reasons[0])))
        return with_convolution(config, "fast" if reasons else automatic.choice()[0])

    def resume(self) -> None:
        """Loads every run from its newest checkpoint, except failed runs.

        Raises:
            FolderError: the folder can't resume; nothing in it is changed.
        """
        lines: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for line in processes().from_first(
            self.folder.read_metrics, lambda lines: json.dumps(lines).encode(), json.loads
        ):
            lines.setdefault((line["method"], line["seed"]), []).append(line)
        for run, state in self.states.items():
            state.lines = lines.get(state.key, [])
            if state.failure is None:
                self._load(run)
        self._begin()
        for run, state in self.states.items():
            if state.failure is None:
                self._drop_later(run)
        self._write_metrics()

    def _begin(self) -> None:
        """Prepares the folder for this session, unless all runs are finished.

        Raises:
            FolderError: random numbers, precision or the form of convolution would differ from the first session's.
        """
        self.idle = self.before.get("finished") is True and all(self.is_over(run) for run in self.states)
        if self.idle:
            self.folder.begin(self.config, fresh=False)  # labels of methods may have changed
            return
        if self.resume_error:
            raise FolderError(f"{self.folder.path}: {self.resume_error}; resume on a machine that can, or {START_OVER}")
        devices = max(simulation.setting.layout.devices for simulation in self.comparison.simulations)
        instructions = automatic.instruction_set() if target_platform() == "cpu" else ""
        now = RecordedExecution(devices, environment.numeric_settings(), instructions)
        first = self.first_execution or now
        differing = environment.differing_settings(first.settings, now.settings)
        if differing and any(state.round for state in self.states.values()):
            raise FolderError(
                f"{self.folder.path}: was begun with other settings of jax, on which its numbers depend: {differing}; "
                f"set them as they were, or {START_OVER}"
            )
        self.folder.begin(self.config, fresh=False)
        rounding = "last digits may differ"
        if first.devices != devices:
            self.note(f"started on {first.devices} device(s), resumes on {devices}: {rounding}")
        if first.instructions not in ("", instructions):
            self.note(
                f"started with {first.instructions}, resumes with {instructions or 'other instructions'}: {rounding}"
            )
        self.folder.write_execution(now)

    def rewind(self, run: RunId) -> None:
        """Resets a run to its newest checkpoint, or to its start."""
        self._load(run)
        self._drop_later(run)
        self._write_metrics()

    def _load(self, run: RunId) -> None:
        """Loads the saved state of a run and its metrics up to then, in order; changes nothing in the folder.

        Of two lines for a round the later counts. A run without a checkpoint starts over if it is too short to have
        saved one, otherwise an error is raised. An error is also raised if lines before the checkpoint are missing,
        because sums over rounds would be wrong.
        """
        state = self.states[run]
        saved = load_newest(self.folder, self.comparison, run, self.note)
        nothing: Any = None  # before the first round there is no state
        state.saved = saved or saved_template(self.comparison, run)._replace(
            snapshot=Snapshot(0, nothing, nothing, Counts(), nothing)
        )
        file = self.folder.path / "metrics.jsonl"
        lines = {line["round"]: line for line in state.lines}
        simulation = self.comparison.simulation(run)
        every = self.comparison.methods[run.method].execution.checkpoint_every
        # By this round a checkpoint was due, so its file must have been lost.
        if not saved and max(lines, default=0) >= every + simulation.rounds_per_dispatch:
            raise FolderError(
                f"{self.folder.checkpoints(*state.key)}: has no checkpoint, but {file} has round {max(lines)} of "
                f"{state.title}; put back a copy of the checkpoints, or {START_OVER}"
            )
        # A shorter run evaluated its last round, which a longer run may skip.
        due = dict.fromkeys(simulation.setting.evaluation.rounds(state.round, simulation.rounds))
        missing = next((round for round in due if round not in lines), None)
        if missing is not None:
            raise FolderError(
                f"{file}: lacks round {missing} of {state.title}, whose checkpoint is of round {state.round}, and "
                f"nothing is touched; put back a copy of it, or {START_OVER}"
            )
        state.lines = [lines[round] for round in due]
        state.unwritten_s = 0.0

    def _drop_later(self, run: RunId) -> None:
        """Deletes a run's results from after its checkpoint, which an interrupted session left."""
        if not self.states[run].round:
            self.folder.clear(*self.states[run].key, PICTURES)
        if not self.is_over(run):
            self.folder.clear(*self.states[run].key, PERSONALISED)
            self.folder.clear_findings(*self.states[run].key)

    def is_over(self, run: RunId) -> bool:
        """Returns whether a run is over after its finished rounds."""
        state = self.states[run]
        return state.round > 0 and is_over(self.comparison, run, state.round, state.lines)

    def start(self, run: RunId) -> RunStart:
        """Returns the start of a run's training. Call once, because training takes ownership of the model."""
        state = self.states[run]
        assert state.saved is not None
        snapshot = state.saved.snapshot
        state.saved = state.saved._replace(snapshot=snapshot._replace(state=None))
        return RunStart(self.comparison, run, snapshot if snapshot.round else None, state.lines)

    def add_built(self, built: BuiltBatch, runs: int) -> None:
        """Adds a run's share of the compile time, and notes the device."""
        self.cost = self.cost._replace(compile_s=self.cost.compile_s + built.compile_s / runs)
        self.device = built.device

    def record(self, run: RunId, result: DispatchResult, seconds: float) -> None:
        """Records the results of a dispatch that took `seconds`."""
        state = self.states[run]
        assert state.saved is not None
        earlier = state.lines[-1]["wall_s"] if state.lines else 0.0
        state.unwritten_s += seconds
        lines = [
            {"method": state.method, "seed": state.seed, **record, "wall_s": round(earlier + state.unwritten_s, 3)}
            for record in result.records
        ]
        if lines:
            state.unwritten_s = 0.0
        self.folder.append_metrics(lines)
        state.lines += lines
        self.spent_s += seconds
        self.cost = self.cost.after(seconds, [result])
        if result.faults:
            self.note(f"{state.title}: {describe_faults(result.faults)}")
        confusion = state.saved.confusion if result.confusion is None else result.confusion
        hits = state.saved.client_hits if result.client_hits is None else result.client_hits
        state.saved = state.saved._replace(snapshot=result.snapshot, confusion=confusion, client_hits=hits)

    def save(self, run: RunId, snapshot: Snapshot) -> None:
        """Writes a checkpoint of a run; the snapshot must include the model."""
        state = self.states[run]
        assert state.saved is not None
        memory = rows_to_save(snapshot.state.memory, snapshot.asked)
        rest = snapshot._replace(state=snapshot.state._replace(memory=memory))
        self.folder.save(*state.key, snapshot.round, fetch(state.saved._replace(snapshot=rest)))

    def fail(self, run: RunId, reason: str) -> None:
        """Records a run's failure; its last checkpoint stays."""
        state = self.states[run]
        state.failure = reason
        kept = checkpoint.generations(self.folder.checkpoints(*state.key))
        last = f"its last good checkpoint is {kept[0]}" if kept else "it had no checkpoint yet"
        self.note(f"{state.title}: diverged in {reason}; {last}")

    def recall_failures(self) -> None:
        """Reads earlier failures from the summary, so that diverged runs aren't tried again."""
        earlier = summary.known_runs(self.before)
        for state in self.states.values():
            state.failure = earlier.get(state.key, {}).get("failure")

    def summarise(self, run: RunId) -> dict[str, Any]:
        """Builds a run's entry in the summary."""
        state = self.states[run]
        method = self.comparison.methods[run.method]
        simulation = self.comparison.simulation(run)
        history = RunHistory(
            lines=state.lines,
            rounds=method.training.rounds,
            target=method.evaluation.target_accuracy,
            stopping=method.training.early_stopping.rule,
            fine_tuned=self.folder.read_analysis(PERSONALISED, *state.key) or {},
            failure=state.failure,
            clients_per_chain=simulation.selector.chain_length,
            copies=int(np.count_nonzero(simulation.federation.copy)),
        )
        figures = summarise_run(history)
        estimates = simulation.selector.compositions
        if estimates is not None and state.saved and state.round:
            counts = np.asarray(simulation.federation.class_counts)
            figures["composition"] = summary.compare_compositions(estimates(state.saved.snapshot.selector), counts)
        return dict(
            method=state.method,
            seed=state.seed,
            **figures,
            failure=state.failure,
        )

    def finish(self) -> Mapping[str, Any]:
        """Ends the session: writes metrics, results by client, summary and `SHA256SUMS`; returns the summary.

        A session that changed nothing rewrites nothing.
        """
        if self.idle:
            self.folder.finish()
            return self.before
        self._write_metrics()
        trained = {run: state.saved for run, state in self.states.items() if state.failure is None and state.round}
        self.folder.write_confusion(
            {self.states[run].key: np.asarray(saved.confusion) for run, saved in trained.items() if saved}
        )
        self.folder.write_clients(
            summary.summarise_clients(
                self.states[run].key, self.comparison.simulation(run), np.asarray(saved.client_hits)
            )
            for run, saved in trained.items()
            if saved and saved.client_hits is not None and self.states[run].lines
        )
        content = self._summary()
        self.folder.write_summary(content)
        self.folder.finish()
        return content

    def _write_metrics(self) -> None:
        self.folder.write_metrics([line for state in self.states.values() for line in state.lines])

    def _summary(self) -> dict[str, Any]:
        session_s = self.spent_s if self.swept else time.perf_counter() - self.began
        # Only devices of sessions that trained; a session that finds everything done may run elsewhere.
        device = self.before.get("device")
        trained_with = self.before.get("versions")
        if self.device is not None or not trained_with:
            earlier = trained_with or {}
            device = environment.with_earlier(self.device or environment.device_name(), device)
            now = environment.versions()
            trained_with = {name: environment.with_earlier(now[name], earlier.get(name)) for name in now}
        return dict(
            name=self.config.name,
            finished=all(state.concluded for state in self.states.values()),
            device=device,
            versions=trained_with,
            command=environment.command_options(self.config, self.inputs.data_dir),
            compile_s=round(self.cost.compile_s, 3),
            wall_s=round(self.wall_s + session_s, 3),
            **self.cost.rates(),
            cost=self.cost._asdict(),
            target_accuracy=self.config.evaluation.target_accuracy,
            class_names=list(self.comparison.dataset.class_names),
            partitions=summary.summarise_partitions(self.comparison),
            batches=summary.summarise_batches(self.config, self.comparison.simulations),
            runs=[self.summarise(run) for run, state in self.states.items() if state.has_results],
        )
