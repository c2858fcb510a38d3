"""The time that training takes: measured before it starts, or remembered from earlier runs on this machine."""

import contextlib
import functools
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_bal.caches import cache_folder
from fedjax_bal.engine.device import mean_cross_entropy
from fedjax_bal.engine.host import Simulation, Snapshot
from fedjax_bal.files import write_atomically
from fedjax_bal.lab.environment import device_name
from fedjax_bal.lab.loop import Callback
from fedjax_bal.lab.recorder import Recorder
from fedjax_bal.lab.schema import RunId
from fedjax_bal.metrics import evenly_spaced
from fedjax_bal.parts import Shift
from fedjax_bal.target import target_platform
from fedjax_bal.types import Batch, Variables

_FORWARD = 1 / 3  # of a training step: one pass of the three that a step is made of
_STEPS = 10  # in one program, as in training; a step by itself takes longer, by the call
_FEWEST = 5
_MOST = 100
_SECONDS = 2.0
_LONGEST = 10.0
_KEPT = 10  # paces of each kind of run, two of a run
_PLANNED = 20  # rounds whose clients are counted


class Pace(NamedTuple):
    """Seconds that a local step takes: at least, with the processors to itself, and at most, beside other work."""

    least: float
    most: float


def pace_of(simulation: Simulation, timed: dict[Any, Pace]) -> Pace:
    """The pace measured in earlier runs of this kind on this machine, or else timed now, once for each kind."""
    earlier = _remembered().get(_kind(simulation))
    if earlier:
        return Pace(min(earlier), max(earlier))
    if _of_step(simulation) not in timed:
        timed[_of_step(simulation)] = _time_steps(simulation)
    return timed[_of_step(simulation)]


def count_steps(simulation: Simulation, rounds: int, seed: int) -> float:
    """Counts the local steps of each device in some rounds; evaluations count as steps that take as long."""
    setting = simulation.setting
    tests = -(-rounds // setting.evaluation.every) * setting.test_images / setting.batch_size
    gradients = 1 + sum(part.needs_gradient for part in setting.parts_with(Shift))
    _, steps = _average_round(simulation, seed)
    return float((gradients * steps * rounds + _FORWARD * tests) / setting.layout.devices)


def _average_round(simulation: Simulation, seed: int) -> tuple[float, float]:
    """Returns the local trainings and steps of an average round, in which not all clients are there or deliver."""
    rounds = evenly_spaced(simulation.rounds, _PLANNED)
    if simulation.selector.closed_loop:
        rounds = rounds[:1]  # later ones need what clients report
    elif simulation.selector.asynchrony is not None:
        rounds = range(len(rounds))  # each round goes on from the last one
    selector = simulation.selector.init(seed, simulation.federation.num_clients)
    trainings = steps = 0
    for number in rounds:
        plan, selector = simulation.plan(seed, int(number), selector)
        trainings += simulation.selector.passes * int(plan.delivered.sum())
        steps += int(simulation.planner.steps(plan).sum())
    return trainings / len(rounds), steps / len(rounds)


class Paces(Callback):
    """Remembers the pace of each finished run, in the user's cache folder."""

    def __init__(self) -> None:
        self.seen: dict[tuple[Recorder, RunId], list[tuple[float, float, float]]] = {}

    def recorded(self, recorder: Recorder, run: RunId, clients_per_s: float) -> None:
        """Notes the pace of a dispatch, the time and the processor time."""
        if clients_per_s:
            now = (clients_per_s, time.perf_counter(), time.process_time())
            self.seen.setdefault((recorder, run), []).append(now)

    def ended(self, recorder: Recorder, run: RunId, snapshot: Snapshot) -> None:
        """Keeps the median of the run's dispatches, which a pause doesn't change, with and without other work."""
        seen = self.seen.pop((recorder, run), None)
        if not seen:
            return
        simulation = recorder.comparison.simulation(run)
        trainings, _ = _average_round(simulation, run.seed)
        if not trainings:
            return
        clients_per_s, clock, worked = np.array(seen).T
        # Over the whole run, because not every round is evaluated.
        steps = count_steps(simulation, simulation.rounds, run.seed)
        seconds = trainings * simulation.rounds / float(np.median(clients_per_s)) / steps
        share = 1.0
        if len(seen) > 1 and target_platform() == "cpu":
            processors = np.median(np.diff(worked) / np.diff(clock)) / simulation.setting.layout.devices
            share = min(float(processors), 1.0)
        kind = _kind(simulation)
        kept = _remembered() | {kind: [*_remembered().get(kind, []), seconds * share, seconds][-_KEPT:]}
        with contextlib.suppress(OSError):  # only the next estimate is lost
            write_atomically(_file(), json.dumps(kept).encode())
            _remembered.cache_clear()


def _file() -> Path:
    return cache_folder("paces") / "paces.json"


@functools.cache
def _remembered() -> dict[str, list[float]]:
    try:
        kept = json.loads(_file().read_text())
        return {str(kind): [float(seconds) for seconds in paces] for kind, paces in kept.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _kind(simulation: Simulation) -> str:
    """Returns, as text, all that decides how long a step takes: runs of the same kind have the same pace."""
    setting = simulation.setting
    method = "+".join(type(part).__name__ for part in setting.parts)
    return repr((*_of_step(simulation), method, setting.layout.devices, device_name()))


def _of_step(simulation: Simulation) -> tuple[Any, ...]:
    """Returns all that decides how long a plain training step takes on one device."""
    setting = simulation.setting
    model = setting.model
    return model.name, model.options, model.input_shape, setting.batch_size, setting.execution.precision


def _time_steps(simulation: Simulation) -> Pace:
    """Times plain training steps on one mini-batch, several in a program."""
    model = simulation.setting.model
    size = simulation.setting.batch_size
    images = jnp.zeros((size, *model.input_shape), model.input_dtype)
    labels = jnp.zeros(size, jnp.int32)
    batch = Batch(images, labels, labels, jnp.ones(size, bool))

    def loss(params: Any, stats: Any, key: jax.Array) -> jax.Array:
        outputs, _ = model.apply(Variables(params, stats), images, train=True, key=key, real=batch.real)
        return mean_cross_entropy(outputs.logits, batch)

    def train(params: Any, stats: Any, key: jax.Array) -> Any:
        def step(index: jax.Array, params: Any) -> Any:
            slopes = jax.grad(loss)(params, stats, jax.random.fold_in(key, index))
            return jax.tree.map(lambda value, slope: value - 1e-3 * slope, params, slopes)

        return lax.fori_loop(0, _STEPS, step, params)

    variables = model.init(jax.random.key(0))
    program = jax.jit(train).lower(*variables, jax.random.key(0)).compile()

    def once() -> tuple[float, float]:
        began, worked = time.perf_counter(), time.process_time()
        jax.block_until_ready(program(*variables, jax.random.key(0)))
        elapsed = time.perf_counter() - began
        return elapsed, min(elapsed, time.process_time() - worked) if target_platform() == "cpu" else elapsed

    times = [once()]  # also warms up, so it counts only if it is so slow that it must do
    if times[0][0] < _LONGEST:
        times = []
        spent = 0.0
        while len(times) < _MOST and (spent < _SECONDS or (len(times) < _FEWEST and spent < _LONGEST)):
            times.append(once())
            spent += times[-1][0]
    elapsed, alone = np.array(times).T / _STEPS
    return Pace(float(np.quantile(alone, 0.1)), float(np.quantile(elapsed, 0.9)))
