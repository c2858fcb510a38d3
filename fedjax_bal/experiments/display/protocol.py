"""The protocol of progress displays."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class Progress(Protocol):
    """Receives the progress of a comparison from its runner."""

    def start(self, methods: Sequence[str], seeds: Sequence[int], rounds: Mapping[str, int], folder: Path) -> None:
        """Training starts: every method with every seed, so many rounds of each method, into a folder."""

    def compiling(self, method: str) -> None:
        """A method's program is being compiled, until its next `advance`; that time doesn't count as training."""

    def advance(self, method: str, seed: int, round: int, accuracy: float | None, clients_per_s: float) -> None:
        """A run has done so many rounds, with this test accuracy in [0, 1].

        `clients_per_s` is 0 if nothing was trained since the last call: for a run that was found on disk, finished or
        not, and for one that is about to train.
        """

    def ended(self, method: str, seed: int) -> None:
        """A run ends early, without its remaining rounds."""

    def note(self, text: str) -> None:
        """A warning or a remark."""

    def stop(self) -> None:
        """Training ends, finished or not."""
