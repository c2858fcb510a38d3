"""Weights & Biases: one W&B run for each run, kept in the run folder until the user uploads it."""

import importlib
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_bal.files import own_folder, read_bytes, write_atomically
from fedjax_bal.lab.trackers import TrackedRun, scalars

_ID_FILE = "fedjax-bal-id"


class WeightsAndBiases:
    """Writes offline runs, for `wandb sync`; with WANDB_MODE=online it uploads at once.

    A run keeps its id, so that a resumed or rewritten one stays one run in W&B. Files go to `wandb` in the run folder,
    including those that W&B would put into the home folder, unless its environment variables say otherwise. Raises
    `ImportError` without the package `wandb`.
    """

    name = "wandb"

    def __init__(self, folder: Path) -> None:
        self._named = folder / "wandb"
        self._root = folder.absolute() / "wandb"
        self._mode = os.environ.get("WANDB_MODE") or "offline"
        self._runs: dict[str, Any] = {}
        # W&B reads its variables when it starts its process, at the first run.
        for variable in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR"):
            os.environ.setdefault(variable, str(self._root / "cache"))
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        importlib.import_module("wandb.sdk")  # fails for an unrelated folder called wandb
        self._wandb = importlib.import_module("wandb")

    def begin(self, run: TrackedRun) -> None:
        """Starts a W&B run, which replaces the run's earlier files.

        Raises:
            RuntimeError: W&B refuses the run, with its reason and the file that holds the id.
        """
        own_folder(self._root.parent, "wandb/cache")
        for earlier in list(self._root.glob(f"*run-*-{self._id(run)}")):
            if earlier.is_dir() and not earlier.is_symlink():
                shutil.rmtree(earlier)
        settings = self._wandb.Settings(
            console="off", silent=True, symlink=False, disable_git=True, disable_code=True, disable_job_creation=True
        )
        try:
            self._runs[run.key] = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT") or run.project,
                group=run.method,
                name=f"{run.method}, seed {run.seed}",
                id=self._id(run),
                config={**run.config, "seed": run.seed},
                dir=str(self._root.parent),
                mode=self._mode,
                reinit="create_new",
                settings=settings,
            )
        except Exception as error:
            # The server takes the id of a deleted run never again, and a resumed run must keep its id otherwise.
            cause = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise RuntimeError(
                f"{cause}; if W&B refuses the id {self._id(run)}, as it does after its run was deleted there, remove "
                f"{self._named / _ID_FILE}, and the next session has another"
            ) from error

    def log(self, run: TrackedRun, lines: Sequence[Mapping[str, Any]]) -> None:
        """Logs the scalars of each line, its round as the step."""
        for line in lines:
            self._runs[run.key].log(scalars(line), step=line["round"])

    def finish(self, run: TrackedRun) -> None:
        """Finishes the W&B run."""
        self._runs.pop(run.key).finish()

    def hint(self) -> str:
        """Returns the command that uploads offline runs."""
        if self._mode != "offline":
            return f"WANDB_MODE is {self._mode}"
        return f"upload with: wandb sync {shlex.quote(str(self._named))}/offline-run-*"

    def _id(self, run: TrackedRun) -> str:
        """Returns the run's id in W&B: eight letters of the run folder's own, and the run's key."""
        file = self._root / _ID_FILE
        try:
            token = read_bytes(file, 100).decode("ascii")
        except (OSError, UnicodeDecodeError):
            token = ""
        if not re.fullmatch("[0-9a-f]{8}", token):
            token = secrets.token_hex(4)
            own_folder(self._root.parent, "wandb")
            write_atomically(file, token.encode())
        return f"fedjax-bal-{token}-{run.key}"
