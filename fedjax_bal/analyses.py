"""Analyses of trained runs, which plug-ins register by name and `evaluation.analyses` asks for.

An analysis examines each method's run with the first seed, after its last round. The run folder keeps what it finds,
and the report draws it as the analysis says. One that a kill interrupts is done again in the next session.
"""

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_bal.registry import Registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedjax_bal.engine.host import Simulation, Snapshot


class Findings(NamedTuple):
    """What an analysis finds in a run.

    Attributes:
        numbers: numbers, texts, and lists and mappings of them; a number that isn't finite is read back as None.
        arrays: arrays by name, such as pixels.
    """

    numbers: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray] = MappingProxyType({})


class Analysis(abc.ABC):
    """The base of analyses; the parameters of a subclass are its options in a configuration.

    Example:
        >>> from fedjax_bal import register
        >>> @register("analysis", "norm")
        ... class Norm(Analysis):
        ...     def examine(self, simulation, snapshot):
        ...         return Findings({"norm": float(optax.tree.norm(snapshot.state.variables.params))})
        >>> from fedjax_bal.config import load_config
        >>> load_config(None, ["evaluation.analyses=[norm]"]).evaluation.analyses
        {'norm': {}}
    """

    def check(self, simulation: "Simulation") -> None:
        """Raises `ValueError`, before training, for a method that can't be examined."""
        del simulation

    @abc.abstractmethod
    def examine(self, simulation: "Simulation", snapshot: "Snapshot") -> Findings:
        """Examines a run after its last round."""

    @staticmethod
    def figures(method: str, found: Findings, classes: Sequence[str]) -> Iterable[tuple[str, str, str, "Figure"]]:
        """Draws what was found for a report: for each figure a short name, a title, a caption and the figure."""
        del method, found, classes
        return ()


ANALYSES: Registry[Callable[..., Analysis]] = Registry({})
"""The analyses of the plug-ins that are loaded, by name; the options of one are the arguments of its class."""
