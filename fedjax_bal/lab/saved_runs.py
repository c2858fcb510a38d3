"""The state of a run: in this process, and in a checkpoint."""

import io
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.engine.host import Snapshot, all_rows, rows_to_save
from fedjax_bal.engine.processes import processes
from fedjax_bal.lab import checkpoint
from fedjax_bal.lab.folder import RunFolder
from fedjax_bal.lab.output_files import START_OVER, FolderError, unreadable
from fedjax_bal.lab.setup import Comparison
from fedjax_bal.metrics import Counts


class SavedRun(NamedTuple):
    """The content of a checkpoint; its field names are those of the arrays in the file."""

    snapshot: Snapshot
    confusion: Any  # matrix of the last evaluation
    fingerprint: Any  # of the data that the run was begun with
    owner: Any  # digest of what identifies the run
    chosen: Any  # number of times that each client was asked to train, Int32[N]


def saved_template(comparison: Comparison, run: tuple[int, int]) -> SavedRun:
    """The shapes that a run's checkpoint must have, with its fingerprint and owner, and zeros for counts."""
    simulation = comparison.simulation(run)
    fingerprint = comparison.fingerprint(run)
    classes = simulation.setting.model.num_classes
    matrix = np.zeros((classes, classes), np.int32)
    owner = checkpoint.owner(comparison.config, *run)
    chosen = np.zeros(simulation.federation.num_clients, np.int32)
    return SavedRun(simulation.state_shapes(), matrix, fingerprint, owner, chosen)


def unstarted(comparison: Comparison, run: tuple[int, int]) -> SavedRun:
    """The saved run before its first round, without a state."""
    nothing: Any = None
    return saved_template(comparison, run)._replace(snapshot=Snapshot(0, nothing, nothing, Counts()))


def load_newest(
    folder: RunFolder, comparison: Comparison, run: tuple[int, int], note: Callable[[str], None]
) -> SavedRun | None:
    """Loads a run's newest undamaged checkpoint, None if it has none; calls `note` about a damaged one.

    Raises:
        FolderError: all checkpoints are damaged, or one can't be read, is another run's, or was begun with other data
            or saved from another state. Nothing is changed.
    """
    wanted = saved_template(comparison, run)
    encode = lambda saved: b"" if saved is None else checkpoint.encode(saved)
    decode = lambda content: checkpoint.load(io.BytesIO(content), wanted) if content else None
    saved = processes().from_first(lambda: _newest(folder, run, wanted, note), encode, decode)
    return saved and saved._replace(snapshot=saved.snapshot._replace(round=int(saved.snapshot.round)))


def pack(saved: SavedRun) -> SavedRun:
    """The run as its checkpoint holds it: without the memory of clients that never trained, which may be most of it."""
    memory = rows_to_save(saved.snapshot.state.memory, saved.chosen)
    return _with_memory(saved, memory)


def unpack(saved: SavedRun, template: SavedRun) -> SavedRun:
    """Undoes `pack`; what doesn't fit the template stays as it is."""
    if saved.chosen.shape != template.chosen.shape or saved.chosen.dtype != template.chosen.dtype:
        return saved
    shapes = template.snapshot.state.memory
    return _with_memory(saved, all_rows(saved.snapshot.state.memory, saved.chosen, shapes))


def _with_memory(saved: SavedRun, memory: Any) -> SavedRun:
    state = saved.snapshot.state._replace(memory=memory)
    return saved._replace(snapshot=saved.snapshot._replace(state=state))


def _newest(folder: RunFolder, run: tuple[int, int], wanted: SavedRun, note: Callable[[str], None]) -> SavedRun | None:
    damages: list[str] = []
    try:
        files = checkpoint.generations(folder.checkpoints(*run))
    except OSError as error:
        raise unreadable(folder.checkpoints(*run), error) from error
    for file in files:
        try:
            arrays = checkpoint.read(file)
        except checkpoint.CheckpointError as error:
            damages.append(f"warning: {error}; going on from the checkpoint before it")
            continue
        except checkpoint.StateError as error:
            raise FolderError(f"{error}; go on with the version that wrote it, or {START_OVER}") from error
        except OSError as error:
            raise unreadable(file, error) from error
        # Whose it is, and on which data it was begun, come before its state: other data may have other shapes.
        if not np.array_equal(arrays.get(checkpoint.OWNER, ()), wanted.owner):
            raise FolderError(f"{file}: belongs to another run; move it away, or {START_OVER}")
        if not np.array_equal(arrays.get(checkpoint.FINGERPRINT, ()), wanted.fingerprint):
            raise FolderError(
                f"{folder.path}: was begun with other images, labels, class names, owners of images, partition or "
                "traces than those that are read now, and nothing in it is touched; pass the same --data-dir as then "
                f"and leave the files that the configuration names as they were, or {START_OVER}"
            )
        try:
            saved = checkpoint.fit(arrays, wanted, unpack)
        except checkpoint.StateError as error:
            raise FolderError(
                f"{file}: is whole, but holds another state than this version's ({error}), and nothing is touched; go "
                f"on with the versions that wrote it (summary.json names them), or {START_OVER}"
            ) from error
        for text in damages:
            note(text)
        return saved
    if files:
        raise FolderError(f"{files[0].parent}: every checkpoint is damaged; put back a copy of one, or {START_OVER}")
    return None
