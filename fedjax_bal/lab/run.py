"""A run, one method with one seed: its identity, its results so far, and its checkpoints.

A run's state is the snapshot after its last dispatch (round, model, selector, counts), the lines of its evaluated
rounds, and its last confusion matrix. A checkpoint holds all of it but the lines, which are in `metrics.jsonl`.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_bal.config import Config, MethodConfig, comparison_digest, method_digest
from fedjax_bal.engine.device import State, client_hits_shape
from fedjax_bal.engine.host import (
    DispatchResult,
    FineTuner,
    Simulation,
    Snapshot,
    describe_faults,
    fetch,
    memory_rows,
    rows_to_save,
)
from fedjax_bal.engine.processes import processes
from fedjax_bal.lab import checkpoint
from fedjax_bal.lab.errors import START_OVER, FolderError, reading
from fedjax_bal.lab.folder import RunFolder
from fedjax_bal.lab.records import RunId
from fedjax_bal.lab.setup import Setup
from fedjax_bal.lab.summary import Cost
from fedjax_bal.metrics import EarlyStopping
from fedjax_bal.types import Variables


class RunState(NamedTuple):
    """The content of a checkpoint; field names are the array names in the file."""

    snapshot: Snapshot
    confusion: Any  # matrix of the last evaluation
    fingerprint: Any  # of the data with which the run began
    owner: Any  # the run's identity
    client_hits: Any = None  # of the last evaluation, see `EvaluationResult`; None without test rows of clients


@dataclasses.dataclass(eq=False)
class Run:
    """One method with one seed, and its results so far.

    Attributes:
        id: the method's name and the seed.
        simulation: its program and data.
        identity: SHA-256 of the settings that its numbers depend on, `UInt8[32]`.
        fingerprint: SHA-256 of its data, `UInt8[32]`.
        folder: where its results go: a `RunFolder`, or a `MemoryFolder`.
        note: called with messages for the user.
        stopping: the rule of early stopping.
        checkpoint_every: rounds between two checkpoints.
        target: the accuracy whose first round is reported; None for none.
        settings: the method's configuration, for callbacks; None in a comparison that has none.
        of_first_seed: whether its seed is the comparison's first.
        tuner: fine-tunes the final model on new clients; None if there are none.
        snapshot: the state after the last dispatch; None before the first. Its model is None during training, when the
            stack owns it.
        confusion: confusion matrix of the last evaluation.
        client_hits: of the last evaluation, see `EvaluationResult`; None without test rows of clients.
        lines: its lines of `metrics.jsonl`.
        failure: why it diverged.
        ended: True once all callbacks have handled its end.
        cost: of this session.
    """

    id: RunId
    simulation: Simulation
    identity: np.ndarray
    fingerprint: np.ndarray
    folder: Any
    note: Callable[[str], None]
    stopping: EarlyStopping
    checkpoint_every: int
    target: float | None = None
    settings: MethodConfig | None = None
    of_first_seed: bool = True
    tuner: FineTuner | None = None
    snapshot: Snapshot | None = None
    confusion: Any = None
    client_hits: Any = None
    lines: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    failure: str | None = None
    ended: bool = False
    cost: Cost = dataclasses.field(default_factory=Cost)
    _unwritten_s: float = 0.0  # seconds of training since the last line

    @property
    def title(self) -> str:
        """Names the run in messages."""
        return f"{self.id.method}, seed {self.id.seed}"

    @property
    def round(self) -> int:
        """Number of finished rounds."""
        return 0 if self.snapshot is None else int(self.snapshot.round)

    @property
    def is_over(self) -> bool:
        """True if the run has no rounds left, or has stopped early; resuming doesn't change the round."""
        simulation = self.simulation
        # The rule is asked at the end of a dispatch. A shorter run that more rounds are asked of can end between.
        between = self.round % simulation.rounds_per_dispatch != 0
        return self.round >= simulation.rounds or (
            self.round > 0 and not between and self.stopping.should_stop(self.lines)
        )

    def start(self) -> Snapshot | None:
        """Hands over the snapshot with which training begins or resumes; None before the first round.

        Training takes the model's memory, so the run keeps only the rest.
        """
        snapshot = self.snapshot
        if snapshot is not None:
            self.snapshot = snapshot._replace(state=None)
        return snapshot

    def record(self, result: DispatchResult, seconds: float) -> None:
        """Records the results of a dispatch that took `seconds`, and writes its lines."""
        before = self.lines[-1]["wall_s"] if self.lines else 0.0
        self._unwritten_s += seconds
        lines = [
            {**self.id._asdict(), **record, "wall_s": round(before + self._unwritten_s, 3)} for record in result.records
        ]
        if lines:
            self._unwritten_s = 0.0
            self.folder.append_metrics(lines)
            self.lines += lines
        self.cost = self.cost.after(seconds, result.client_updates, result.samples)
        if result.faults:
            self.note(f"{self.title}: {describe_faults(result.faults, self.simulation.federation.client_name)}")
        self.snapshot = result.snapshot._replace(state=None)
        if result.confusion is not None:
            self.confusion = result.confusion
            self.client_hits = result.client_hits

    def save(self, snapshot: Snapshot) -> None:
        """Writes a checkpoint of a snapshot that includes the model."""
        self.folder.save(*self.id, snapshot.round, fetch(self.saved(snapshot)))

    def saved(self, snapshot: Snapshot) -> RunState:
        """Returns the content of a checkpoint, with only those clients' memories that were used."""
        memory = rows_to_save(snapshot.state.memory, snapshot.asked)
        snapshot = snapshot._replace(state=snapshot.state._replace(memory=memory))
        saved = self._template()._replace(snapshot=snapshot)  # with zeros for counts
        if self.confusion is not None:
            saved = saved._replace(confusion=self.confusion, client_hits=self.client_hits)
        return saved

    def fail(self, reason: str) -> None:
        """Records that the run diverged; its last checkpoint stays."""
        self.failure = reason
        kept = checkpoint.generations(self.folder.checkpoints(*self.id))
        last = f"its last good checkpoint is {kept[0]}" if kept else "it had no checkpoint yet"
        self.note(f"{self.title}: diverged in {reason}; {last}")

    def load(self) -> None:
        """Loads the newest checkpoint, and leaves out lines after it; changes nothing in the folder.

        Of two lines for a round the later one counts.

        Raises:
            FolderError: a checkpoint or a line that must exist is missing, or the checkpoint can't be used.
        """
        saved = self.load_checkpoint()
        self.snapshot = saved and saved.snapshot
        self.confusion = saved and saved.confusion
        self.client_hits = saved and saved.client_hits
        self._unwritten_s = 0.0
        file = self.folder.path / "metrics.jsonl"
        by_round = {line["round"]: line for line in self.lines}
        # A checkpoint was due by this round, so its file must have been lost.
        if saved is None and max(by_round, default=0) >= self.checkpoint_every + self.simulation.rounds_per_dispatch:
            raise FolderError(
                f"{self.folder.checkpoints(*self.id)}: has no checkpoint, but {file} has round {max(by_round)} of "
                f"{self.title}; restore a copy of the checkpoints, or {START_OVER}"
            )
        # Sums over rounds, such as traffic, need every line. A shorter run has also evaluated its last round, which a
        # longer one may skip.
        due = dict.fromkeys(self.simulation.setting.evaluation.rounds(self.round, self.simulation.rounds))
        missing = next((number for number in due if number not in by_round), None)
        if missing is not None:
            raise FolderError(
                f"{file}: lacks round {missing} of {self.title}, whose checkpoint is from round {self.round}; nothing "
                f"was changed. Restore a copy of it, or {START_OVER}"
            )
        self.lines = [by_round[number] for number in due]

    def load_checkpoint(self) -> RunState | None:
        """Loads the newest undamaged checkpoint; None if there is none. Several processes get that of the first.

        Raises:
            FolderError: all checkpoints are damaged, or one can't be read, or belongs to another run, other data or
                another state.
        """
        newest = processes().from_first(lambda: _read_newest(self.folder, self.id, self.identity, self.note))
        if newest is None:
            return None
        file, arrays = newest
        # The fingerprint is checked before the state: with other data its shapes may differ.
        if not np.array_equal(arrays.get(checkpoint.FINGERPRINT, ()), self.fingerprint):
            raise FolderError(
                f"{self.folder.path}: started with different images, labels, names, owners of images, partition, "
                "traces or initial weights; nothing in it was changed. Pass the same --data-dir as then and restore "
                f"the files that the configuration names, or {START_OVER}"
            )
        saved = _fitted(file, arrays, self._template(arrays.get(".snapshot.asked")))
        return saved._replace(snapshot=saved.snapshot._replace(round=int(saved.snapshot.round)))

    def _template(self, asked: np.ndarray | None = None) -> RunState:
        """Returns the shapes of the run's checkpoint, with zeros for counts of an evaluation.

        It holds the memories of the clients that were asked to train; without `asked`, of all clients.
        """
        simulation = self.simulation
        classes = simulation.setting.model.num_classes
        matrix = np.zeros((classes, classes), np.int32)
        tested = simulation.federation.tests is not None
        hits = np.zeros(client_hits_shape(simulation.federation), np.int32) if tested else None
        snapshot = simulation.state_shapes()
        if asked is not None and asked.dtype == bool and asked.shape == snapshot.asked.shape:
            rows = memory_rows(asked)
            if rows is not None:
                count = len(rows)
                saved = lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype)
                memory = jax.tree.map(saved, snapshot.state.memory)
                snapshot = snapshot._replace(state=snapshot.state._replace(memory=memory))
        return RunState(snapshot, matrix, self.fingerprint, self.identity, hits)


def runs_of(config: Config, setup: Setup, folder: Any, note: Callable[[str], None]) -> list[Run]:
    """Lists the runs of a configuration before any training, seed by seed."""
    runs = []
    for seed in config.seeds:
        of_seed = setup.of(seed)
        for index, method in enumerate(config.methods):
            runs.append(
                Run(
                    id=RunId(method.name, seed),
                    simulation=of_seed.simulations[index],
                    identity=run_identity(config, index, seed),
                    fingerprint=of_seed.fingerprints[index],
                    folder=folder,
                    note=note,
                    stopping=method.training.early_stopping.rule,
                    checkpoint_every=method.execution.checkpoint_every,
                    target=method.evaluation.target_accuracy,
                    settings=of_seed.methods[index],
                    of_first_seed=seed == config.seeds[0],
                    tuner=of_seed.tuners[index],
                )
            )
    return runs


def run_identity(config: Config, index: int, seed: int) -> np.ndarray:
    """Returns the SHA-256 that identifies a run, `UInt8[32]`: of the comparison, the method's settings and the seed.

    It doesn't depend on the other methods, their order, the other seeds or the number of rounds.
    """
    text = f"{comparison_digest(config)} {method_digest(config, index)} {seed}"
    return np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)


def load_variables(
    folder: RunFolder, config: Config, index: int, seed: int, shapes: Variables, note: Callable[[str], None]
) -> tuple[int, Variables] | None:
    """Loads the round and the global model of a run's newest undamaged checkpoint, without the data; None without any.

    Raises the same errors as `Run.load_checkpoint`, but can't tell whether the data have changed.
    """
    id = RunId(config.methods[index].name, seed)
    newest = _read_newest(folder, id, run_identity(config, index, seed), note)
    if newest is None:
        return None
    # The names of a checkpoint's arrays are those of the fields, so a template with nothing else selects these two.
    file, arrays = newest
    starts = (".snapshot.round", ".snapshot.state.variables")
    nothing: Any = None
    state = State(shapes, nothing, nothing, nothing)
    wanted = RunState(Snapshot(np.int64(0), state, nothing, nothing, nothing), nothing, nothing, nothing)
    saved = _fitted(file, {name: array for name, array in arrays.items() if name.startswith(starts)}, wanted)
    return int(saved.snapshot.round), saved.snapshot.state.variables


def _read_newest(
    folder: Any, id: RunId, identity: np.ndarray, note: Callable[[str], None]
) -> tuple[Path, Mapping[str, np.ndarray]] | None:
    """Reads a run's newest undamaged checkpoint: the file and its arrays by name; None if there is none."""
    damages: list[str] = []
    with reading(folder.checkpoints(*id)):
        files = checkpoint.generations(folder.checkpoints(*id))
    for file in files:
        try:
            with reading(file):
                arrays = checkpoint.read(file)
        except checkpoint.CheckpointError as error:
            damages.append(f"warning: {error}; using the one before it")
            continue
        except checkpoint.StateError as error:
            raise FolderError(f"{error}; resume with the version that wrote it, or {START_OVER}") from error
        if not np.array_equal(arrays.get(checkpoint.OWNER, ()), identity):
            raise FolderError(f"{file}: belongs to another run; move it away, or {START_OVER}")
        for text in damages:
            note(text)
        return file, arrays
    if files:
        raise FolderError(f"{files[0].parent}: every checkpoint is damaged; restore a copy of one, or {START_OVER}")
    return None


def _fitted(file: Path, arrays: Mapping[str, np.ndarray], wanted: RunState) -> RunState:
    """Arranges a checkpoint's arrays like the template."""
    try:
        return checkpoint.fit(arrays, wanted)
    except checkpoint.StateError as error:
        raise FolderError(
            f"{file}: undamaged, but doesn't fit the state of this version ({error}); nothing was changed. Resume "
            f"with the versions that wrote it (see summary.json), or {START_OVER}"
        ) from error
