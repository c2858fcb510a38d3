"""Measures cases (compile, warm up, time dispatches of about a second), and the machine's peak speed and memory."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_bal.bench.flops import model_flops
from fedjax_bal.bench.workloads import HORIZON
from fedjax_bal.data import resident_peak
from fedjax_bal.engine.device import in_batches
from fedjax_bal.engine.host import DispatchResult, Simulation, Snapshot
from fedjax_bal.models import num_params
from fedjax_bal.target import target_platform

_DISPATCH_S = 1.0
_FEWEST = 3
_SEED = 0
_CLEAR = Path("/proc/self/clear_refs")
_SIDE = {"cpu": 2048}
_SIDE_OF_ACCELERATORS = 8192
PRECISIONS = {
    "float32": (jnp.float32, jax.lax.Precision.HIGHEST),
    "tensorfloat32": (jnp.float32, jax.lax.Precision.DEFAULT),
    "bfloat16": (jnp.bfloat16, jax.lax.Precision.DEFAULT),
}
"""Types and precisions of matrix products, by name."""


class Case(NamedTuple):
    """A case to measure.

    Attributes:
        name: the name in the table.
        make: builds the simulation.
        precision: a key of `PRECISIONS`; the case is compared with this precision's peak.
        convolution: the form of the model's convolutions; empty if it has none.
    """

    name: str
    make: Callable[[], Simulation]
    precision: str = "float32"
    convolution: str = ""


class _MeasuredRun:
    """A running simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.snapshot: Snapshot = simulation.init(_SEED)
        self.losses: list[list[float]] = []

    def time(self) -> tuple[float, DispatchResult]:
        """Runs one dispatch; returns its duration in seconds and its result."""
        began = time.perf_counter()
        first = int(self.snapshot.round) + 1
        advance = self.simulation.advance(_SEED, self.snapshot)
        seconds = time.perf_counter() - began
        self.snapshot = advance.snapshot
        self.losses += [[number, loss] for number, loss in enumerate(advance.train_losses, first)]
        return seconds, advance


def measure(
    case: Case,
    peak: Callable[[str], float],
    seconds: float,
    note: Callable[[str], None] = lambda text: None,
    turn: AbstractContextManager | None = None,
) -> dict[str, Any]:
    """Measures one case without evaluation; after compilation and warm-up, waits for and holds `turn`.

    Rounds are combined until a dispatch takes about a second. One dispatch warms up; then at least three are timed, for
    at least `seconds`. `peak` measures the matmul peak of a precision, in operations per second, and returns the best
    value so far.

    Returns:
        The record, ready for JSON: `workload`; `client_updates_per_s` and `samples_per_s`, medians over dispatches;
        `spread`, the lowest and highest client updates per second; `compile_s`; `flops_per_s`, of the model's own
        arithmetic as `flops.model_flops` counts it; `matmul_peak_flops_per_s` and `matmul_peak_share`;
        `padding_waste`, the share of computed steps that are padding; `peak_memory_bytes` and `memory_kind`;
        `strategy`, `convolution`, `precision`, `devices` and `clients_at_a_time` on all of them; `rounds` and
        `dispatches` that counted, `rounds_per_dispatch`; `clients_per_round`; `train_loss`, pairs of a round and its
        loss; `params`.
    """
    note(f"{case.name}: loading")
    forget_peak()
    simulation = _skip_evaluation(case.make(), 1)
    note(f"{case.name}: compiling")
    compile_s = simulation.compile()
    run = _MeasuredRun(simulation)
    took, _ = run.time()
    if took < 2 * _DISPATCH_S:
        took, _ = run.time()
    rounds = round(_DISPATCH_S / took)
    if rounds > 1 and not simulation.selector.closed_loop:
        simulation = _skip_evaluation(simulation, rounds)
        compile_s = simulation.compile()
        run.simulation = simulation
        run.time()
    note(f"{case.name}: measuring, rounds a dispatch: {simulation.rounds_per_dispatch}")
    memory = memory_peak()
    timed: list[tuple[float, DispatchResult]] = []
    with turn or nullcontext():
        while len(timed) < _FEWEST or sum(took for took, _ in timed) < seconds:
            took, advance = run.time()
            # The snapshot is dropped, because it would keep one state alive per dispatch.
            timed.append((took, advance._replace(snapshot=None)))  # type: ignore[arg-type]
        # Measured after the memory peak, which an accelerator counts from the start of the process. Measured twice, in
        # case other programs slow down one of the measurements.
        matmul = max(peak(case.precision), peak(case.precision))
    updates = [advance.client_updates / took for took, advance in timed]
    samples = statistics.median(advance.samples / took for took, advance in timed)
    useful, computed = (sum(counts) for counts in zip(*(advance.work for _, advance in timed), strict=True))
    layout = simulation.setting.layout
    operations = model_flops(simulation.setting.model)
    return {
        "workload": case.name,
        "client_updates_per_s": statistics.median(updates),
        "samples_per_s": samples,
        "spread": [min(updates), max(updates)],
        "compile_s": compile_s,
        "flops_per_s": samples * operations.training,
        "matmul_peak_flops_per_s": matmul,
        "matmul_peak_share": samples * operations.training / matmul,
        "padding_waste": 1 - useful / computed if computed else 0.0,
        "peak_memory_bytes": memory.size,
        "memory_kind": memory.kind,
        "strategy": layout.strategy,
        "convolution": case.convolution,
        "devices": layout.devices,
        "clients_at_a_time": layout.width * layout.devices,
        "precision": case.precision,
        "rounds": len(timed) * simulation.rounds_per_dispatch,
        "dispatches": len(timed),
        "rounds_per_dispatch": simulation.rounds_per_dispatch,
        "clients_per_round": simulation.selector.chains * simulation.selector.chain_length,
        "train_loss": run.losses,
        "params": num_params(simulation.setting.model),
    }


def _skip_evaluation(simulation: Simulation, rounds: int) -> Simulation:
    """Replaces the test set by a single image, evaluated once per dispatch of `rounds` rounds."""
    federation = simulation.federation
    setting = simulation.setting
    rounds = 1 if simulation.selector.closed_loop else rounds
    return dataclasses.replace(
        simulation,
        setting=dataclasses.replace(setting, evaluation=dataclasses.replace(setting.evaluation, every=rounds)),
        execution=dataclasses.replace(simulation.execution, rounds_per_dispatch=rounds),
        test=in_batches(federation.images[:1], federation.labels[:1]),
        rounds=HORIZON,
        compile_s=0.0,
    )


class Peak(NamedTuple):
    """Peak memory.

    Attributes:
        size: in bytes.
        kind: "device" (the allocators of all devices, since the process began) or "resident" (memory of the process).
    """

    size: int
    kind: str


def matmul_peak(precision: str = "float32", repeats: int = 5) -> float:
    """Measures the operations per second of large square matrix products on all devices; the best of several tries.

    A multiply-add is two operations; `precision` is a key of `PRECISIONS`.
    """
    side = _SIDE.get(target_platform(), _SIDE_OF_ACCELERATORS)
    kind, exactness = PRECISIONS[precision]
    operands = [jax.device_put(jnp.full((side, side), 1 / side, kind), device) for device in jax.devices()]
    product = jax.jit(lambda a: jnp.dot(a, a, precision=exactness))
    shortest = math.inf
    for _ in range(repeats + 1):  # the first one compiles
        jax.block_until_ready(operands)
        began = time.perf_counter()
        jax.block_until_ready([product(operand) for operand in operands])
        shortest = min(shortest, time.perf_counter() - began)
    return len(operands) * 2 * side**3 / shortest


def forget_peak() -> None:
    """Resets the process's peak of resident memory, if the system supports it."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return


def memory_peak() -> Peak:
    """Returns the peak memory of all devices, or of the process if they don't report it."""
    stats = [device.memory_stats() or {} for device in jax.devices()]
    if all("peak_bytes_in_use" in each for each in stats):
        return Peak(sum(each["peak_bytes_in_use"] for each in stats), "device")
    return Peak(resident_peak(), "resident")
