"""The work left in a run or sweep: programs, runs, local steps and memory; in a dry run also the time."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from fedjax_bal.config import Config, resolved_sheet
from fedjax_bal.data import resident_peak
from fedjax_bal.engine.host import Member, Snapshot, open_stack
from fedjax_bal.lab import checkpoint
from fedjax_bal.lab.folder import RunFolder
from fedjax_bal.lab.loop import RunBatch, batch_runs, steps_per_round
from fedjax_bal.lab.run import Run, runs_of
from fedjax_bal.lab.setup import SharedInputs, set_up
from fedjax_bal.lab.summary import known_runs
from fedjax_bal.lab.sweep_plan import Sweep
from fedjax_bal.lab.training_line import training_line
from fedjax_bal.status import duration, size
from fedjax_bal.target import target_platform
from fedjax_bal.types import size_in_bytes

_LONGEST_NAMES = 40  # characters


def outline(name: str, runs: int, batches: Sequence[RunBatch], *, timed: bool = False) -> Iterator[str]:
    """Describes what remains to be done: a line, a table of the programs, and the memory.

    Args:
        name: of the comparison or sweep.
        runs: number of its runs.
        batches: the batches to train.
        timed: compile each program, and time two of its dispatches.
    """
    left = [run for batch in batches for run in batch.runs]
    steps = sum((run.simulation.rounds - run.round) * steps_per_round(run.simulation) for run in left)
    yield f"{name}: {len(left)} of {runs} runs to train; about {steps:,.0f} local steps"
    programs: dict[int, list[RunBatch]] = {}
    for batch in batches:
        programs.setdefault(batch.program, []).append(batch)
    rows = [["program", "methods", "runs", "together", "rounds", "state", *(["dispatch", "all"] if timed else [])]]
    for number, of_program in programs.items():
        largest = max(of_program, key=lambda batch: len(batch.runs))
        row = [str(number + 1), method_names(*of_program), str(sum(len(batch.runs) for batch in of_program))]
        row += [str(len(largest.runs)), str(largest.rounds - largest.runs[0].round), size(largest.state_bytes)]
        if timed:
            seconds = _seconds_per_dispatch(largest)
            dispatches = -(-(largest.rounds - largest.runs[0].round) // largest.runs[0].simulation.rounds_per_dispatch)
            row += [f"{seconds:.2g} s", duration(seconds * dispatches * len(of_program))]
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if batches else ():
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield f"  memory: {_memory(batches, timed=timed)}"


def method_names(*batches: RunBatch) -> str:
    """Names the methods of batches, shortened to fit."""
    names = ", ".join(dict.fromkeys(run.id.method for batch in batches for run in batch.runs))
    return names if len(names) <= _LONGEST_NAMES else f"{names[: _LONGEST_NAMES - 4]} ..."


def _memory(batches: Sequence[RunBatch], *, timed: bool) -> str:
    """Describes the memory that the runs need; what programs need for themselves is known once they were timed."""
    needed = []
    for batch in batches:
        simulation = batch.runs[0].simulation
        device, host = (len(batch.runs) * each for each in simulation.state_bytes)
        needed.append((device, host, simulation.setting.layout.devices))
    if target_platform() == "cpu":
        if timed:
            return f"about {size(resident_peak())}"
        # The data are in this process already, as is Python with the libraries.
        states = max((device * devices + host for device, host, devices in needed), default=0)
        return f"at least {size(resident_peak() + states)}"
    # Images, partitions and test sets that simulations share are counted once.
    leaves = [leaf for batch in batches for run in batch.runs for leaf in jax.tree.leaves(run.simulation.on_device)]
    data = size_in_bytes(list({id(leaf): leaf for leaf in leaves}.values()))
    on_device = data + max((device for device, _, _ in needed), default=0)
    on_host = resident_peak() + max((host for _, host, _ in needed), default=0)
    return f"at least {size(on_device)} on each device and {size(on_host)} on the host"


def _seconds_per_dispatch(batch: RunBatch) -> float:
    """Times the second dispatch of a batch that starts from scratch, or its only one; keeps nothing."""
    stack = open_stack([Member(run.simulation, run.id.seed) for run in batch.runs], [None] * len(batch.runs))
    stack.compile()
    seconds = 0.0
    for _ in range(2):
        if stack.round < batch.rounds:
            began = time.perf_counter()
            stack.advance()
            seconds = time.perf_counter() - began
    return seconds


def dry_run(
    sweep: Sweep, folders: Mapping[str, RunFolder | None], inputs: SharedInputs, most: int | None
) -> Iterator[str]:
    """Describes what remains to be done in a sweep, or in a run as a sweep of one point; changes nothing.

    Args:
        sweep: the sweep, or the part of it to train.
        folders: the folder of each point, by label; None to start over.
        inputs: the data, as a `plan`.
        most: maximum number of runs per batch; None for as many as fit into memory.
    """
    runs: list[Run] = []
    for point in sweep.points:
        try:
            runs += _unfinished(point.config, folders[point.label], inputs, retry_diverged=not sweep.axes)
        except ValueError as error:
            if not sweep.axes:
                raise
            yield f"{point.label}: left out: {error}"
    batches = batch_runs(runs, most)
    yield from outline(sweep.name, sweep.runs, batches, timed=not inputs.assumed)
    yield from (f"  {line}" for line in inputs.data_lines())
    yield f"  training: {training_line(resolved_sheet(sweep.points[0].config), sweep.values)}"


def _unfinished(
    config: Config, folder: RunFolder | None, inputs: SharedInputs, *, retry_diverged: bool
) -> Iterator[Run]:
    """Yields the runs of a configuration with rounds left, according to the checkpoints and summary in its folder."""
    earlier = known_runs(folder.read_summary()) if folder else {}
    nothing: Any = None
    for run in runs_of(config, set_up(config, inputs), folder, lambda text: None):
        known = earlier.get(run.id, {})
        saved = checkpoint.generations(folder.checkpoints(*run.id)) if folder else []
        done = min(checkpoint.round_of(saved[0]), run.simulation.rounds) if saved else 0
        over = known.get("stopped_early") is not None or (known.get("failure") and not retry_diverged)
        if done < run.simulation.rounds and not over:
            run.snapshot = Snapshot(done, nothing, nothing, nothing, nothing) if done else None
            yield run
