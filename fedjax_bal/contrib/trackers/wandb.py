"""Weights & Biases, and other packages with its interface: one run of theirs for each run."""

import importlib
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_bal.files import own_folder
from fedjax_bal.lab.trackers import TrackedRun, scalars


class LikeWandb:
    """A package whose `init` returns a run with `log` and `finish`, as that of Weights & Biases does.

    The package must allow several open runs at a time. A resumed run continues the run of the same name, and logs its
    earlier rounds again at the same steps. Raises `ImportError` without the package.

    Args:
        module: the package, such as `trackio`.
        folder: the folder of the comparison or sweep; the package itself decides where it writes.
    """

    def __init__(self, module: str, folder: Path) -> None:
        self._module = importlib.import_module(module)

    def begin(self, run: TrackedRun) -> Any:
        """Starts or continues a run."""
        name = f"{run.name} ({run.id})"
        return self._module.init(
            project=run.project, group=run.group, name=name, config=dict(run.config), resume="allow"
        )

    def log(self, opened: Any, lines: Sequence[Mapping[str, Any]]) -> None:
        """Logs the scalars of each line, its round as the step."""
        for line in lines:
            opened.log(scalars(line), step=line["round"])

    def finish(self, opened: Any) -> None:
        """Finishes the run."""
        opened.finish()

    def hint(self) -> str:
        """Returns the command that shows the metrics."""
        return f"look with: {self._module.__name__} show"


class WeightsAndBiases(LikeWandb):
    """Writes offline runs, for `wandb sync`; with WANDB_MODE=online it uploads at once.

    A run keeps its id, so that a resumed or rewritten one stays one run in W&B. Files go to `wandb` in the folder of
    the comparison or sweep, including those that W&B would put into the home folder, unless its environment variables
    say otherwise. Raises `ImportError` without the package `wandb`.
    """

    def __init__(self, folder: Path) -> None:
        self._named = folder / "wandb"
        self._root = folder.absolute() / "wandb"
        self._mode = os.environ.get("WANDB_MODE") or "offline"
        # W&B reads its variables when it starts its process, at the first run.
        for variable in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR"):
            os.environ.setdefault(variable, str(self._root / "cache"))
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # By default W&B waits for the network 90 s before a run, and without end after it.
        os.environ.setdefault("WANDB_INIT_TIMEOUT", "30")
        os.environ.setdefault("WANDB_FINISH_TIMEOUT", "60")
        importlib.import_module("wandb.sdk")  # fails for an unrelated folder called wandb
        super().__init__("wandb", folder)

    def begin(self, run: TrackedRun) -> Any:
        """Starts a W&B run, which replaces the run's earlier files.

        Raises:
            RuntimeError: W&B refuses the run, with its reason and the remedy.
        """
        own_folder(self._root.parent, "wandb/cache")
        id = f"fedjax-bal-{run.id}"
        for earlier in list(self._root.glob(f"*run-*-{id}")):
            if earlier.is_dir() and not earlier.is_symlink():
                shutil.rmtree(earlier)
        settings = self._module.Settings(
            console="off", silent=True, symlink=False, disable_git=True, disable_code=True, disable_job_creation=True
        )
        try:
            return self._module.init(
                project=os.environ.get("WANDB_PROJECT") or run.project,
                group=run.group,
                name=run.name,
                id=id,
                config=dict(run.config),
                dir=str(self._root.parent),
                mode=self._mode,
                reinit="create_new",
                settings=settings,
            )
        except Exception as error:
            # The server takes the id of a deleted run never again, and a resumed run must keep its id otherwise.
            cause = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise RuntimeError(
                f"{cause}; if W&B refuses the id {id}, as it does after its run was deleted there, remove the file "
                "tracking-id in the run folder, and the next session has another"
            ) from error

    def hint(self) -> str:
        """Returns the command that uploads offline runs."""
        if self._mode != "offline":
            return f"WANDB_MODE is {self._mode}"
        return f"upload with: wandb sync {shlex.quote(str(self._named))}/offline-run-*"
