"""The run folder as a process sees it that isn't the first one of its run."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_bal.config import Config
from fedjax_bal.runs import RunFolder
from fedjax_bal.types import PyTree


class RemoteRunFolder(RunFolder):
    """A folder that another process reads and writes: nothing is there, and nothing is done to it.

    What has to be known of it comes from the first process, so that it need not lie on a file system that all share.
    """

    @contextlib.contextmanager
    def claimed(self, config: Config) -> Iterator[None]:
        """Leaves it to the first process."""
        yield

    def begin(self, config: Config, *, fresh: bool) -> None:
        """Leaves it to the first process."""

    def save(self, method: int, seed: int, round: int, tree: PyTree) -> None:
        """Leaves it to the first process."""

    def clear_checkpoints(self, method: int, seed: int) -> None:
        """Leaves it to the first process."""

    def read_metrics(self) -> list[dict[str, Any]]:
        """None that this process knows of."""
        return []

    def write_metrics(self, lines: Sequence[dict[str, Any]]) -> None:
        """Leaves it to the first process."""

    def append_metrics(self, lines: Sequence[dict[str, Any]]) -> None:
        """Leaves it to the first process."""

    def write_pictures(self, method: int, seed: int, pictures: Mapping[str, np.ndarray]) -> None:
        """Leaves it to the first process."""

    def clear_pictures(self, method: int, seed: int) -> None:
        """Leaves it to the first process."""

    def read_summary(self) -> dict[str, Any]:
        """None that this process knows of."""
        return {}

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Leaves it to the first process."""

    def _note(self, place: str, method: int, seed: int, figures: Mapping[str, Any]) -> None:
        """Leaves it to the first process."""

    def _noted(self, place: str, method: int, seed: int) -> dict[str, Any] | None:
        """None that this process knows of."""
        return None
