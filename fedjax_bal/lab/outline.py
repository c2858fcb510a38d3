"""Describes the work and the expected duration of a run or sweep before it starts."""

import json
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax

from fedjax_bal.config import Config, leaves, resolved_sheet, to_plain
from fedjax_bal.data import resident_peak
from fedjax_bal.lab.errors import writing
from fedjax_bal.lab.folder import RunFolder
from fedjax_bal.lab.loop import RunBatch, RunTask, batch_runs, steps_per_round
from fedjax_bal.lab.schema import RunId
from fedjax_bal.lab.setup import SharedInputs, set_up
from fedjax_bal.lab.summary import known_runs
from fedjax_bal.lab.sweep_folder import SweepFolder
from fedjax_bal.lab.sweep_plan import Point, Sweep, short_keys, shown
from fedjax_bal.lab.training import BuiltBatch
from fedjax_bal.lab.training_line import training_line
from fedjax_bal.status import size
from fedjax_bal.target import target_platform
from fedjax_bal.types import size_in_bytes

_MOST_NAMED = 6  # points
_COMPILING = 200_000_000  # bytes that XLA's compiler and the figures of a page take, as measured


def run_outline(config: Config, tasks: Sequence[RunTask]) -> Iterator[str]:
    """Describes a run, which is a sweep of one point; `tasks` have rounds left."""
    sweep = Sweep(config.name, (), (Point("", {}, config),), "")
    return sweep_outline(sweep, batch_runs(tasks, max_size=1))


def sweep_outline(
    sweep: Sweep,
    batches: Sequence[RunBatch],
    setup_errors: Collection[int] = (),
    cluster: str = "",
) -> Iterator[str]:
    """Describes a sweep: a summary line, then lines about the cluster, overriding methods and programs.

    `batches` are the remaining ones; `setup_errors` are the numbers of points that can't be set up.
    """
    tasks = [task for batch in batches for task in batch.tasks]
    programs: dict[int, list[RunBatch]] = {}
    for batch in batches:
        programs.setdefault(batch.program, []).append(batch)

    sizes = [len(point.config.methods) * len(point.config.seeds) for point in sweep.points]
    runs = sum(sizes)
    left_out = sum(sizes[number] for number in setup_errors)
    before = runs - left_out - len(tasks)
    remarks = [f"{before} done or given up before"] * (before > 0) + [f"{left_out} can't be set up"] * (left_out > 0)
    done = f" ({', '.join(remarks)})" if remarks else ""
    named = short_keys(sweep.axes)
    axes = " x ".join(f"{len(axis)} {'+'.join(key for key in axis.keys if key in named)}" for axis in sweep.axes)
    points = f" from {len(sweep.points)} point{'s' * (len(sweep.points) > 1)} ({axes})" if sweep.axes else ""
    several = f" for {len(batches)} batches" if sweep.axes and len(batches) > len(programs) else ""
    # Images, partitions and test sets that simulations share are counted once.
    arrays = {id(leaf): leaf for task in tasks for leaf in jax.tree.leaves(task.simulation.on_device)}
    steps = sum((task.simulation.rounds - task.round) * steps_per_round(task.simulation) for task in tasks)
    yield (
        f"{sweep.name}: {runs} run{'s' * (runs > 1)}{done}{points}, "
        f"{len(programs)} program{'s' * (len(programs) != 1)} to compile{several}; about {steps:,.0f} local steps; "
        f"{_memory(size_in_bytes(list(arrays.values())), batches)}, without the programs' own"
    )
    if cluster:
        yield f"  {cluster}"

    yield from _repeated_runs(sweep)
    for number, group in programs.items():
        trained = [task for batch in group for task in batch.tasks]
        largest = max(len(batch.tasks) for batch in group)
        at_a_time = f", {'one' if largest == 1 else largest} at a time" if len(group) > 1 else ""
        resumed = f" from round {trained[0].round} on" if trained[0].round else ""
        yield (
            f"  program {number + 1}: {_methods(sweep, trained)}: {len(trained)} run{'s' * (len(trained) > 1)} of "
            f"{(rounds := trained[0].simulation.rounds)} round{'s' * (rounds > 1)}{resumed}{at_a_time}, "
            f"{size(max(batch.state_bytes for batch in group))} of state"
        )


def _memory(data: int, batches: Sequence[RunBatch]) -> str:
    """Describes the memory that the largest batch needs with the data, at most."""
    needed = []
    for batch in batches:
        simulation = batch.tasks[0].simulation
        device, host = (len(batch.tasks) * each for each in simulation.state_bytes)
        needed.append((device, host, simulation.setting.layout.devices))
    if target_platform() == "cpu":
        # The data are in this process already, as is Python with the libraries.
        peak = (
            resident_peak() + _COMPILING + max((device * devices + host for device, host, devices in needed), default=0)
        )
        return f"about {size(peak)} of memory"
    device = data + max((device for device, _, _ in needed), default=0)
    host = resident_peak() + max((host for _, host, _ in needed), default=0)
    return f"about {size(device)} of memory on each device and {size(host)} on the host"


def _repeated_runs(sweep: Sweep) -> Iterator[str]:
    """Names the methods that an axis doesn't change, and their own values of its keys."""
    seen: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for point in sweep.points:
        for method in point.config.methods:
            plain = to_plain(method)
            whole = json.dumps([plain, point.config.seeds], sort_keys=True)
            seen.setdefault(method.name, []).append((plain, whole))
    for name, configs in seen.items():
        if len({whole for _, whole in configs}) == len(configs):
            continue
        own = []
        for axis in sweep.axes:
            for key in short_keys([axis]) if len(axis) > 1 else ():
                values = [leaves(plain).get(key) for plain, _ in configs]
                if values[0] is not None and all(value == values[0] for value in values):
                    own.append(f"{key.rpartition('.')[2]}={shown(values[0])}")
        why = f"sets {', '.join(own)} itself; the axis doesn't change it" if own else "isn't changed by all axes"
        yield f"  {name}: {why}, so some of its runs are the same"


def describe_other_points(names: Sequence[str]) -> Iterator[str]:
    """Names earlier points of a folder that the sweep lacks."""
    if names:
        listed = "; ".join(names[:_MOST_NAMED]) + "; ..." * (len(names) > _MOST_NAMED)
        yield f"  earlier points that this sweep lacks: {listed}; to have them in the table, name their values, too"


def program_line(title: str, built: BuiltBatch) -> str:
    """Describes a compiled program: compile time, devices and memory."""
    layout = built.layout
    seconds = f"{built.compile_s:.1f} s"
    return (
        f"{title}: program ready after {seconds}; {layout.strategy}, {layout.width} client(s) at a time on each of "
        f"{layout.devices} device(s); {size(built.device_bytes)} on each"
    )


def batch_title(sweep: Sweep, batch: RunBatch) -> str:
    """The title of a batch: its methods and its number of runs."""
    methods = _methods(sweep, batch.tasks)
    (first, *others) = batch.tasks
    return f"{methods} x {len(batch.tasks)}" if others else f"{methods}, {sweep.points[first.point].label}"


def _methods(sweep: Sweep, tasks: Sequence[RunTask]) -> str:
    names = list(dict.fromkeys(sweep.points[task.point].config.methods[task.run.method].name for task in tasks))
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def dry_run(
    config: Config, folder: RunFolder, data_dir: str | os.PathLike | None, devices: str | int | None, *, fresh: bool
) -> Iterator[str]:
    """Describes the run that would resume in the folder, or with `fresh` start over there."""
    with writing(folder.path):  # reports a folder that couldn't be written
        folder.check_owner(config)
    before = None if fresh else folder
    inputs = SharedInputs(data_dir, devices, before and before.read_devices(), plan=True)
    yield from run_outline(config, remaining_runs(0, config, before, inputs, retried=True))
    yield from (f"  {line}" for line in inputs.data_lines())
    yield f"  training: {training_line(resolved_sheet(config))}"
    yield describe_destination(folder, fresh=fresh)


def describe_destination(folder: RunFolder | SweepFolder, *, fresh: bool = False) -> str:
    """Describes where results would be written."""
    does = "would be written to" if not folder.exists() else "would start over in" if fresh else "would resume in"
    return f"  {does} {folder.path}"


def remaining_runs(
    number: int, config: Config, folder: RunFolder | None, inputs: SharedInputs, *, retried: bool = False
) -> list[RunTask]:
    """Lists a point's runs with rounds left, according to the summary in its folder; all runs if there is none.

    Diverged runs are included only if they are `retried`, as `run` does and a sweep doesn't.
    """
    comparison = set_up(config, inputs)
    earlier = known_runs(folder.read_summary()) if folder else {}
    tasks = []
    for index, method in enumerate(config.methods):
        for seed in config.seeds:
            simulation = comparison.simulation(RunId(index, seed))
            run = earlier.get((method.name, seed), {})
            done = min(int(run.get("rounds") or 0), simulation.rounds)
            over = run.get("stopped_early") is not None or (run.get("failure") and not retried)
            if done < simulation.rounds and not over:
                tasks.append(RunTask(number, RunId(index, seed), simulation, done))
    return tasks
