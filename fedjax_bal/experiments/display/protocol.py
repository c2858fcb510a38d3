"""What the runner tells whoever shows its progress."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class Progress(Protocol):
    """What the runner tells while it works."""

    def start(self, methods: Sequence[str], seeds: Sequence[int], rounds: Mapping[str, int], folder: Path) -> None:
        """The work begins: every method with every seed, so many rounds of each method, into a folder."""
        ...

    def compiling(self, method: str) -> None:
        """A method's program is being compiled, until its next `advance`; that time doesn't count as training."""
        ...

    def advance(self, method: str, seed: int, round: int, accuracy: float | None, clients_per_s: float) -> None:
        """A run stands after so many rounds, with this test accuracy in [0, 1].

        `clients_per_s` is 0 where nothing was trained since the last call: for a run that was found on disk, finished
        or not, and for one that is about to train.
        """
        ...

    def ended(self, method: str, seed: int) -> None:
        """A run ends where it stands, before its last round; the rounds that are left will not come."""
        ...

    def note(self, text: str) -> None:
        """A warning or a remark."""
        ...

    def stop(self) -> None:
        """The work ends, finished or not."""
        ...
