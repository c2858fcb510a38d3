"""One measurement: compile, warm up, then whole dispatches of about a second."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fedjax_bal.bench import machine
from fedjax_bal.bench.federations import HORIZON
from fedjax_bal.bench.flops import model_flops
from fedjax_bal.engine.device import chunked
from fedjax_bal.engine.host import DispatchResult, Simulation, Snapshot
from fedjax_bal.models import num_params
from fedjax_bal.types import Model

_DISPATCH_S = 1.0
_FEWEST = 3
_SEED = 0


class Case(NamedTuple):
    """Something to measure.

    Attributes:
        name: how it is shown.
        make: builds the simulation.
        plain: the same model with JAX's own convolution, to count its operations.
        precision: of its arithmetic, for the peak that it is compared with; a name of `machine.PRECISIONS`.
    """

    name: str
    make: Callable[[], Simulation]
    plain: Callable[[], Model]
    precision: str = "float32"


class _Run:
    """A simulation under way."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.snapshot: Snapshot = simulation.init(_SEED)
        self.losses: list[list[float]] = []

    def time(self) -> tuple[float, DispatchResult]:
        """Runs one dispatch; its seconds and what came of it."""
        began = time.perf_counter()
        first = int(self.snapshot.round) + 1
        advance = self.simulation.advance(_SEED, self.snapshot)
        seconds = time.perf_counter() - began
        self.snapshot = advance.snapshot
        self.losses += [[number, loss] for number, loss in enumerate(advance.train_losses, first)]
        return seconds, advance

    def continue_with(self, simulation: Simulation) -> None:
        """Goes on with the same work in other dispatches."""
        self.simulation = simulation


def measure(
    case: Case, peak: Callable[[str], float], seconds: float, note: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Measures one case, without evaluation.

    Rounds are put together until a dispatch takes about a second; one dispatch warms up, those that follow count, at
    least three of them.

    Args:
        case: what to measure.
        peak: the best matmul peak seen so far, in operations per second, by precision; measures it anew.
        seconds: how long to measure, warm-up and compilation apart.
        note: told what is going on.

    Returns:
        The record, ready for JSON: `workload`; `client_updates_per_s` and `samples_per_s`, medians over dispatches;
        `spread`, the lowest and highest client updates per second; `compile_s`; `flops_per_s`, of the model's own
        arithmetic as `flops.model_flops` counts it; `matmul_peak_flops_per_s` and `matmul_peak_share`;
        `padding_waste`, steps computed for nobody as a share of all; `peak_memory_bytes` and `memory_kind`;
        `strategy`, `precision`, `devices` and `clients_at_a_time` on all of them; `rounds` and `dispatches` that
        counted, `rounds_per_dispatch`; `clients_per_round`; `train_loss`, pairs of a round and its loss; `params`.

    Raises:
        ValueError: a case that can't be built.
        DivergenceError: a client's parameters stopped being finite.
    """
    note(f"{case.name}: loading")
    operations = model_flops(case.plain())
    peak(case.precision)
    machine.forget_peak()
    run, compile_s = _warmed_up(case, note)
    timed = _dispatches(run, seconds)
    updates = [advance.client_updates / took for took, advance in timed]
    samples = statistics.median(advance.samples / took for took, advance in timed)
    memory = machine.memory_peak()
    matmul = peak(case.precision)  # again: on a machine that others use too, the best of both counts
    simulation, layout = run.simulation, run.simulation.setting.layout
    return {
        "workload": case.name,
        "client_updates_per_s": statistics.median(updates),
        "samples_per_s": samples,
        "spread": [min(updates), max(updates)],
        "compile_s": compile_s,
        "flops_per_s": samples * operations.training,
        "matmul_peak_flops_per_s": matmul,
        "matmul_peak_share": samples * operations.training / matmul,
        "padding_waste": _waste([advance for _, advance in timed]),
        "peak_memory_bytes": memory.size,
        "memory_kind": memory.kind,
        "strategy": layout.strategy,
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


def _warmed_up(case: Case, note: Callable[[str], None]) -> tuple[_Run, float]:
    simulation = _untested(case.make(), 1)
    note(f"{case.name}: compiling")
    compile_s = simulation.compile()
    run = _Run(simulation)
    seconds, _ = run.time()
    if seconds < 2 * _DISPATCH_S:
        seconds, _ = run.time()
    rounds = round(_DISPATCH_S / seconds)
    if rounds > 1 and not simulation.selector.closed_loop:
        simulation = _untested(simulation, rounds)
        compile_s = simulation.compile()
        run.continue_with(simulation)
        run.time()
    note(f"{case.name}: measuring, rounds a dispatch: {simulation.rounds_per_dispatch}")
    return run, compile_s


def _untested(simulation: Simulation, rounds: int) -> Simulation:
    """The same work in dispatches of so many rounds, of which one looks at a single test image."""
    federation, setting = simulation.federation, simulation.setting
    rounds = 1 if simulation.selector.closed_loop else rounds
    return dataclasses.replace(
        simulation,
        setting=dataclasses.replace(setting, evaluation=dataclasses.replace(setting.evaluation, every=rounds)),
        execution=dataclasses.replace(simulation.execution, rounds_per_dispatch=rounds),
        test=chunked(federation.images[:1], federation.labels[:1]),
        rounds=HORIZON,
        compile_s=0.0,
    )


def _dispatches(run: _Run, seconds: float) -> list[tuple[float, DispatchResult]]:
    timed: list[tuple[float, DispatchResult]] = []
    while len(timed) < _FEWEST or sum(took for took, _ in timed) < seconds:
        took, advance = run.time()
        # The state would be kept alive, once for each dispatch.
        timed.append((took, advance._replace(snapshot=None)))  # type: ignore[arg-type]
    return timed


def _waste(advances: list[DispatchResult]) -> float:
    useful, computed = (sum(counts) for counts in zip(*(advance.work for advance in advances), strict=True))
    return 1 - useful / computed if computed else 0.0
