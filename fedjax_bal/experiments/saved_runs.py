"""What a run's checkpoint holds, and which one a run goes on from."""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.config import Config, config_digest
from fedjax_bal.engine.host import Snapshot
from fedjax_bal.experiments.setup import Comparison
from fedjax_bal.runs import FolderError, RunFolder, checkpoint


class SavedRun(NamedTuple):
    """What a checkpoint holds.

    Attributes:
        snapshot: where the run stands.
        confusion: the confusion matrix of its last evaluation.
        fingerprint: of the data that it was begun with.
        owner: of the configuration, method and seed that it belongs to.
        chosen: how often each client has been asked to train, `Int32[N]`.
    """

    snapshot: Snapshot
    confusion: Any
    fingerprint: Any
    owner: Any
    chosen: Any


def saved_template(config: Config, comparison: Comparison, run: tuple[int, int]) -> SavedRun:
    """What a run's checkpoint has to look like: shapes of its state, its fingerprint and owner, zeros for counts."""
    method, seed = run
    simulation, fingerprint = comparison.simulations[method], comparison.fingerprints[method]
    classes = simulation.setting.model.num_classes
    matrix = np.zeros((classes, classes), np.int32)
    owner = hashlib.sha256(f"{config_digest(config)} {method} {seed}".encode()).digest()
    nobody = np.zeros(simulation.federation.num_clients, np.int32)
    return SavedRun(simulation.state_shapes(), matrix, fingerprint, np.frombuffer(owner, np.uint8), nobody)


def newest_saved(
    folder: RunFolder, run: tuple[int, int], wanted: SavedRun, note: Callable[[str], None]
) -> SavedRun | None:
    """What a run's newest checkpoint holds that is whole, None where there is none; `note` is told of the others.

    Raises:
        FolderError: the run was begun with other data.
    """
    for file in checkpoint.generations(folder.checkpoints(*run)):
        try:
            saved = checkpoint.load(file, wanted)
            if (saved.owner != wanted.owner).any():
                raise checkpoint.CheckpointError(f"{file}: belongs to another run")
        except checkpoint.CheckpointError as error:
            note(f"warning: {error}; going on from the checkpoint before it")
            continue
        if (saved.fingerprint != wanted.fingerprint).any():
            raise FolderError(
                f"{folder.path}: was begun with other images, labels, partition or traces than those that are "
                "read now; pass the same --data-dir as then and leave the files that the configuration names as they "
                "were, or start over with --fresh or in another folder with --out"
            )
        return saved
    return None
