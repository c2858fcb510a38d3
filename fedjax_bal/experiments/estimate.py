"""Estimates the time and memory of a sweep before it starts."""

import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_bal.engine.device import mean_cross_entropy
from fedjax_bal.engine.host import Simulation
from fedjax_bal.experiments.grouping import SweepBatch, SweepRun
from fedjax_bal.parts import Shift
from fedjax_bal.types import Batch, Variables, size_in_bytes

_TRIES = 5
_FORWARD = 1 / 3  # of a training step: one pass of the three that a step is made of


class Estimate(NamedTuple):
    """The expected cost of a sweep."""

    runs: int  # with rounds left
    programs: int
    seconds: float  # training and evaluation, without compiling
    device_bytes: int  # data, and the states of the largest batch


def estimate(batches: Sequence[SweepBatch]) -> Estimate:
    """Times one local step of every network; of what parts add to a step it counts gradients, no further networks."""
    tasks = [task for batch in batches for task in batch.tasks]
    if not tasks:
        return Estimate(0, 0, 0.0, 0)
    simulations = list({id(task.simulation): task.simulation for task in tasks}.values())
    paces: dict[Any, float] = {}
    seconds = sum(_seconds(task, paces) for task in tasks)
    states = max(batch.state_bytes for batch in batches)
    programs = len({batch.program for batch in batches})
    return Estimate(len(tasks), programs, seconds, _data_bytes(simulations) + states)


def _seconds(task: SweepRun, paces: dict[Any, float]) -> float:
    simulation, setting = task.simulation, task.simulation.setting
    model, selector, rounds = setting.model, simulation.selector, simulation.rounds - task.round
    key = (model.name, model.options, model.input_shape, setting.batch_size, setting.precision)
    if key not in paces:
        paces[key] = _time_a_step(simulation)
    trainings = selector.chains * selector.chain_length * selector.passes * rounds
    tests = -(-rounds // setting.evaluation.every) * setting.test_images / setting.batch_size
    gradients = 1 + sum(part.needs_gradient for part in setting.parts_with(Shift))
    steps = gradients * trainings * simulation.steps_of_clients.mean() + _FORWARD * tests
    return float(paces[key] * steps / setting.layout.devices)


def _data_bytes(simulations: Sequence[Simulation]) -> int:
    """Bytes that images, partitions and test sets take on the devices, each counted once."""
    arrays = [simulation.on_device for simulation in simulations]
    return size_in_bytes(list({id(leaf): leaf for leaf in jax.tree.leaves(arrays)}.values()))


def _time_a_step(simulation: Simulation) -> float:
    """Seconds of one forward and backward pass over a mini-batch, the median of a few."""
    model, size = simulation.setting.model, simulation.setting.batch_size
    images = jnp.zeros((size, *model.input_shape), model.input_dtype)
    labels = jnp.zeros(size, jnp.int32)
    batch = Batch(images, labels, labels, jnp.ones(size, bool))

    def loss(params: Any, stats: Any, key: jax.Array) -> jax.Array:
        outputs, _ = model.apply(Variables(params, stats), images, train=True, key=key, real=batch.real)
        return mean_cross_entropy(outputs.logits, batch)

    variables = model.init(jax.random.key(0))
    step = jax.jit(jax.grad(loss)).lower(*variables, jax.random.key(0)).compile()
    times = []
    for _ in range(_TRIES + 1):
        began = time.perf_counter()
        jax.block_until_ready(step(*variables, jax.random.key(0)))
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])
