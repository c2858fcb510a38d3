"""All that the records know of the package: a change of names or of signatures is followed here, and in no record."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from typer.testing import CliRunner

from fedjax_bal import data, models, optimizer, recipes, selection
from fedjax_bal.cli.app import app
from fedjax_bal.config import load_config
from fedjax_bal.config.resolved import resolved_yaml
from fedjax_bal.engine.host import build
from fedjax_bal.engine.host.fine_tuning import FineTuner
from fedjax_bal.engine.host.stack import Member, Stack
from fedjax_bal.lab.sweep_plan import load_sweep
from fedjax_bal.optim.schedules import schedule

__all__ = [
    "MAP", "Federation", "Outcome", "command", "optimizer", "personalised", "recipes", "resolved",
    "resolved_points", "run", "run_together", "schedule", "selection", "simulation", "start",
]  # fmt: skip

RENAMED: Mapping[str, str] = {}
"""Parts of a leaf's path, and metrics, whose names have changed since the records were made: the new name, the old."""

CONVOLUTION = "fast"
"""The form of convolution of all records, the same on all machines."""

MAP = {"strategy": "map", "devices": 1}
"""One client after another on one device."""


class Outcome(NamedTuple):
    """How a run ends.

    Attributes:
        state: path and value of each leaf of the final state.
        history: the metrics of each evaluated round.
        chosen: the clients that were asked to train, round after round.
    """

    state: dict[str, np.ndarray]
    history: list[dict[str, Any]]
    chosen: list[int]


class Federation(NamedTuple):
    """Data in the form in which `data.federate` takes them."""

    images: np.ndarray
    labels: np.ndarray
    rows: Sequence[np.ndarray]
    classes: int
    auxiliary: Mapping[str, np.ndarray] = {}
    tests: Sequence[np.ndarray] | None = None


def simulation(recipe: Any, model: tuple[str, Mapping[str, Any]], own: Federation, test: Any, **options: Any) -> Any:
    """A simulation of a recipe."""
    name, arguments = model
    built = models.build(name, own.classes, own.images.shape[1:], convolution=CONVOLUTION, **arguments)
    federation = data.federate(own.images, own.labels, own.rows, own.classes, own.auxiliary, tests=own.tests)
    return build(recipe, built, federation, test, **options)


def start(sim: Any, seed: int) -> Any:
    """The snapshot from which a run begins, on the host, for simulations of any layout."""
    snapshot = sim.init(seed)
    return snapshot._replace(state=jax.device_get(snapshot.state))


def run(sim: Any, seed: int, snapshot: Any) -> Outcome:
    """A run by itself, from its start."""
    return _finished(sim, seed, snapshot)[0]


def run_together(sim: Any, starts: Mapping[int, Any]) -> list[Outcome]:
    """Runs, by seed with their starts, that are trained in one program as those of a sweep are."""
    members = [Member(sim, seed) for seed in starts]
    stack = Stack(members, list(starts.values()))
    histories, chosen = [[] for _ in members], [[] for _ in members]
    while stack.round < sim.rounds:
        for place, advance in enumerate(stack.advance()):
            histories[place] += advance.records
            chosen[place] += advance.chosen.tolist()
    snapshots = [stack.snapshot(place) for place in range(len(members))]
    return [Outcome(*parts) for parts in zip(map(_leaves, snapshots), histories, chosen, strict=True)]


def personalised(sim: Any, seed: int, snapshot: Any, epochs: int) -> list[float]:
    """Accuracies of the clients' own models, fine-tuned from the final one of a run."""
    accuracies, _ = FineTuner(sim, epochs).run(seed, _finished(sim, seed, snapshot)[1])
    return [float(value) for value in accuracies]


def _finished(sim: Any, seed: int, snapshot: Any) -> tuple[Outcome, Any]:
    history, chosen = [], []
    while snapshot.round < sim.rounds:
        advance = sim.advance(seed, snapshot)
        snapshot = advance.snapshot
        history += advance.records
        chosen += advance.chosen.tolist()
    return Outcome(_leaves(snapshot), history, chosen), snapshot


def _leaves(snapshot: Any) -> dict[str, np.ndarray]:
    kept = {**snapshot.state._asdict(), "selector": snapshot.selector}
    paths = jax.tree_util.tree_flatten_with_path(jax.device_get(kept))[0]
    return {".".join(map(_name, path)): np.asarray(leaf) for path, leaf in paths}


def _name(key: Any) -> str:
    name = str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key))))
    return RENAMED.get(name, name)


def resolved(file: Path) -> str:
    """What a configuration resolves to."""
    return resolved_yaml(load_config(file))


def resolved_points(file: Path) -> dict[str, str]:
    """What the points of a sweep resolve to, by label."""
    here = f"{file.parent}/"  # files beside a configuration have absolute paths once it is read
    return {point.label: resolved_yaml(point.config).replace(here, "") for point in load_sweep(file).points}


def command(*arguments: str | Path) -> str:
    """What a command line prints; it must end well."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output
