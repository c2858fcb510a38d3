"""Random runs: a federation, two or three methods at once, who takes part, and the layout, all from a seed."""

import dataclasses
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
import table
import toys

from fedjax_bal import data, recipes
from fedjax_bal.engine.device.evaluation import in_batches
from fedjax_bal.engine.host import build_simulation
from fedjax_bal.engine.host.simulation import DispatchResult, Simulation, Snapshot
from fedjax_bal.errors import DivergenceError
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.selection import Choice, always, bernoulli, clustered, periodic, speed
from fedjax_bal.testing import toy
from fedjax_bal.types import Federation, PyTree

LEFT_OUT = ("cbfl", "fedbn", "fedavg")
"""Recipes that these networks, dense layers on vectors, don't suit, and the one that adds nothing to others."""

SELECTORS = {
    "round_robin": (),
    "by_size": (),
    "power_of_choice": (("candidates", 6),),
    "mediated": (("size", 2), ("passes", 2)),
}
"""Selectors beside the recipes' own and the default, with their options."""

TOLERANCE, FACTOR = 5e-5, 30.0
"""What is rounding in any case, and as a multiple of what a change in the last digits leads to."""


class Draw:
    """A random run that the package accepts.

    Attributes:
        names: its recipes.
        seed: of the run.
        refused: the messages of those before it that were refused.
    """

    def __init__(self, seed: int, number: int) -> None:
        self.refused: list[str] = []
        for attempt in range(200):
            self.rng = random.Random(f"{seed}/{number}/{attempt}")
            self.seed = self.rng.randrange(1000)
            self._choose()
            try:
                self.recipe = recipes.combine(*(table.small(name)[0] for name in self.names))
                self.simulation = self.build()
                self.snapshots, self.results = run(self.simulation, self.seed)
                return
            except (ValueError, DivergenceError) as error:
                if isinstance(error, DivergenceError) and "faults" not in self.names:
                    raise
                self.refused.append(f"{'+'.join(self.names)}: {error}")  # of two clients both may be broken on purpose
        raise RuntimeError(f"200 draws in a row were refused: {self.refused[-1]}")

    def _choose(self) -> None:
        rng = self.rng
        pool = sorted(set(table.ACTIVE) - set(LEFT_OUT))
        self.names = tuple(rng.sample(pool, rng.choice((2, 2, 3))))
        bare = any(table.SPECIAL.get(name) is table.without_statistics for name in self.names)
        self.network = toys.network() if bare or rng.random() < 0.5 else toy.network()
        self.federation = self._federation()
        self.test = in_batches(self.federation.images[:40], self.federation.labels[:40])
        self.options = self._options()

    def _federation(self, like: Federation | None = None) -> Federation:
        """Clients of 0 to 15 rows with skewed labels; with another, of the same images and number of clients."""
        rng = np.random.default_rng(self.rng.randrange(2**32))
        classes, (_, width, _) = self.network.num_classes, self.network.input_shape
        clients = like.num_clients if like else self.rng.randrange(6, 14)
        sizes = rng.integers(0, 16, clients)
        sizes[:3] = 1, 15, 7
        spare = 4 * classes
        if like:
            images, labels = like.images, like.labels
        else:
            labels = np.concatenate([np.arange(spare) % classes, rng.integers(0, classes, 16 * 14)])
            images = rng.normal(size=(len(labels), width)) + 1.5 * np.eye(classes, width)[labels]
            images = images.astype(np.float32).reshape(-1, 1, width, 1)
        by_class = np.argsort(labels[spare:] + rng.normal(0, self.rng.choice((0.2, 1.0)), len(labels) - spare)) + spare
        rows = np.split(by_class, np.cumsum(sizes))[:-1]
        return data.federate(images, labels, rows, classes, {"balanced": np.arange(spare)})

    def _options(self) -> dict[str, Any]:
        rng = self.rng
        rate, selector = rng.choice((0.02, 0.1)), rng.choice(("", "", "", *SELECTORS))
        looks = selector == "power_of_choice" or "flcir" in self.names
        return {
            "rounds": rng.choice((3, 4, 5)),
            "local": LocalTraining(
                **{rng.choice(("epochs", "steps")): rng.choice((1, 2, 3))},
                batch_size=rng.choice((2, 4, 7)), drop_last=rng.random() < 0.1, lone_rows="keep",
                optimizer=optimizer("sgd", rate, momentum=rng.choice((0.0, 0.0, 0.5))),
            ),
            "participation": Participation(
                clients_per_round=rng.choice((4, 5, 6)),
                selector=Choice(selector, SELECTORS[selector]) if selector else None,
                availability=rng.choice((always(), bernoulli(0.6), clustered(), periodic(0.7, 2))),
                delivery=rng.choice((always(), bernoulli(0.7))),
                speed=rng.choice((None, None, speed.uniform(1.0, 9.0, deadline=1.0))),
            ),
            "evaluation": Evaluation(
                every=rng.choice((1, 2)), update_diversity=rng.random() < 0.3, traffic=rng.choice(("paper", "exact"))
            ),
            "execution": Execution(
                strategy="map", devices=1, rounds_per_dispatch=1 if looks else rng.choice((1, 2)),
                client_memory=rng.choice(("device", "device", "device", "device", "host")),
                broken_clients="exclude" if "faults" in self.names else rng.choice(("raise", "exclude", "clip")),
            ),
        }  # fmt: skip

    def build(self, federation: Federation | None = None, layout: Mapping[str, Any] = {}, **changes: Any) -> Simulation:
        """The run's simulation, or one that differs in its layout or in some options."""
        given = self.options | {"execution": replace(self.options["execution"], **layout)} | changes
        return build_simulation(self.recipe, self.network, federation or self.federation, self.test, **given)

    def twin(self, simulation: Simulation | None = None, **changes: Any) -> Simulation:
        """A simulation, by default a new one of the run, with the compiled program of the run's own."""
        other = dataclasses.replace(simulation or self.simulation, **changes)
        other._compiled, other._traffic = self.simulation._compiled, self.simulation._traffic
        return other

    @cached_property
    def other(self) -> Simulation:
        """A run that differs from this one in numbers: its learning rate or its partition."""
        if self.rng.random() < 0.7:
            return self.twin(self.build(local=replace(self.options["local"], optimizer=optimizer("sgd", 0.05))))
        return self.build(self._federation(self.federation))

    @property
    def state(self) -> PyTree:
        """The last state."""
        return self.snapshots[-1].state

    @cached_property
    def tolerance(self) -> float:
        """How far rounding may lead: some times as far as a change of the first model's last digits does."""
        rng, start = np.random.default_rng(self.seed), self.simulation.init(self.seed)
        move = lambda leaf: (leaf * (1 + rng.choice((-1, 1), np.shape(leaf)) * 2.0**-23)).astype(np.float32)
        moved = jax.tree.map(move, jax.device_get(start.state.variables))
        ends, _ = run(self.simulation, self.seed, self.simulation.init(self.seed, moved))
        return max(TOLERANCE, FACTOR * toys.largest_difference(ends[-1].state, self.state))

    def __str__(self) -> str:
        chosen = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{'+'.join(self.names)} on {self.federation.num_clients} clients, {self.network.name}, {chosen}"


def run(
    simulation: Simulation, seed: int, start: Snapshot | None = None
) -> tuple[list[Snapshot], list[DispatchResult]]:
    """A run to its end: the snapshots before and after each dispatch, on the host, and their results."""
    snapshot = start or simulation.init(seed)
    snapshots, results = [_copy(snapshot)], []
    while snapshot.round < simulation.rounds:
        result = simulation.advance(seed, snapshot)
        snapshot = result.snapshot
        snapshots.append(_copy(snapshot))
        results.append(result)
    return snapshots, results


def _copy(snapshot: Snapshot) -> Snapshot:
    """A snapshot that stays as it is while the run goes on: clients' memory on the host changes in place."""
    return jax.tree.map(np.array, jax.device_get(snapshot))


def records(results: list[DispatchResult]) -> list[dict[str, Any]]:
    """The metrics of all evaluated rounds."""
    return [record for result in results for record in result.records]
