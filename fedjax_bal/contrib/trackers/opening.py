"""Trackers by name; the package of each is imported when it is asked for."""

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
"""Name of each tracker -> what makes it for a run folder. It is that of its extra, too."""


def open_trackers(names: Iterable[str], folder: Path) -> tuple[Tracker, ...]:
    """Trackers for a run folder, ready to be told of runs; nothing is written yet.

    Args:
        names: of `TRACKERS`; one that comes twice counts once.
        folder: the run folder.

    Returns:
        The trackers.

    Raises:
        ValueError: an unknown name, or a package that isn't installed.

    Example:
        >>> open_trackers(["tensorbord"], Path("runs/mine"))
        Traceback (most recent call last):
        ValueError: --track: received 'tensorbord'; allowed: tensorboard, wandb; did you mean 'tensorboard'?
    """
    return tuple(_opened(one_of("--track", name, TRACKERS), folder) for name in dict.fromkeys(names))


def _opened(name: str, folder: Path) -> Tracker:
    try:
        return TRACKERS[name](folder)
    except Exception as error:  # a package that doesn't fit the others here may raise anything when it is imported
        raise ValueError(
            f"--track: {name} can't be imported ({error}); install it with pip install 'fedjax_bal[{name}]', "
            f"or leave out --track {name}"
        ) from error
