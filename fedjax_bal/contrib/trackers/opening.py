"""Trackers by name; each one's package is imported only when it is used."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fedjax_bal.contrib.trackers.protocol import Tracker
from fedjax_bal.contrib.trackers.tensorboard import TensorBoard
from fedjax_bal.contrib.trackers.wandb import WeightsAndBiases
from fedjax_bal.validate import one_of

TRACKERS: Mapping[str, Callable[[Path], Tracker]] = {
    TensorBoard.name: TensorBoard,
    WeightsAndBiases.name: WeightsAndBiases,
}
"""Class of each tracker by name, which is also the name of the package's extra."""


def open_trackers(names: Iterable[str], folder: Path) -> tuple[Tracker, ...]:
    """Opens trackers for a run folder; writes nothing yet.

    Example:
        >>> open_trackers(["tensorbord"], Path("runs/mine"))
        Traceback (most recent call last):
        ValueError: --track: received 'tensorbord'; did you mean 'tensorboard'? allowed: tensorboard, wandb
    """
    return tuple(_open(one_of("--track", name, TRACKERS), folder) for name in dict.fromkeys(names))


def _open(name: str, folder: Path) -> Tracker:
    try:
        return TRACKERS[name](folder)
    except Exception as error:  # the import of an incompatible package may raise anything
        raise ValueError(
            f"--track: {name} can't be imported ({error}); install it with pip install 'fedjax_bal[{name}]', "
            f"or leave out --track {name}"
        ) from error
