"""The outline of a run or a sweep before it starts: its runs, the programs that train them, and the expected time."""

import json
from collections.abc import Collection, Iterator, Sequence

from fedjax_bal.config import Config, to_plain
from fedjax_bal.experiments.axes import Axis
from fedjax_bal.experiments.display import duration
from fedjax_bal.experiments.estimate import estimate
from fedjax_bal.experiments.grouping import SweepBatch, SweepRun, batch_runs
from fedjax_bal.experiments.plan import Point, Sweep, short_keys, shown
from fedjax_bal.experiments.training import BuiltBatch

_MOST_VALUES = 6  # of a key in a line


def run_outline(config: Config, tasks: Sequence[SweepRun]) -> Iterator[str]:
    """Describes a run, a sweep of one point, with these rounds left."""
    sweep = Sweep(config.name, (), (Point("", {}, config),), "")
    return sweep_outline(sweep, batch_runs(tasks, most=1))


def sweep_outline(
    sweep: Sweep,
    own: Sequence[SweepBatch],
    broken: Collection[int] = (),
    cluster: str = "",
) -> Iterator[str]:
    """Describes a sweep: a line on the whole, then lines on the cluster, overriding methods and programs.

    `own` are the batches that are left, `broken` the numbers of the points that can't be set up.
    """
    yield _whole(sweep, own, broken, cluster)
    if cluster:
        yield f"  {cluster}"
    for name in _overriding(sweep):
        yield f"  {name}: sets what is swept itself, so that some of its runs are the same"
    batches: dict[int, list[SweepBatch]] = {}
    for batch in own:
        batches.setdefault(batch.program, []).append(batch)
    for number, alike in batches.items():
        yield f"  program {number + 1}: {_program(sweep, alike)}"


def program_line(title: str, built: BuiltBatch) -> str:
    """Describes a compiled program: its time, its placement and its memory."""
    layout, seconds = built.layout, f"{built.compile_s:.1f} s"
    return (
        f"{title}: program ready after {seconds}; {layout.strategy}, {layout.width} client(s) at a time on each of "
        f"{layout.devices} device(s); {built.device_bytes / 1e6:,.0f} MB on each"
    )


def batch_title(sweep: Sweep, batch: SweepBatch) -> str:
    """The title of a batch: its methods, and the number of its runs."""
    methods, (first, *others) = _methods(sweep, batch.tasks), batch.tasks
    return f"{methods} x {len(batch.tasks)}" if others else f"{methods}, {sweep.points[first.point].label}"


def _overriding(sweep: Sweep) -> list[str]:
    """The methods whose own entries override an axis, so that some of their runs are the same."""
    seen: dict[str, list[str]] = {}
    for point in sweep.points:
        for index, method in enumerate(point.config.methods):
            whole = json.dumps([to_plain(point.config.for_method(index)), point.config.seeds], sort_keys=True)
            seen.setdefault(method.name, []).append(whole)
    return [name for name, own in seen.items() if len(set(own)) < len(own)]


def _whole(sweep: Sweep, own: Sequence[SweepBatch], broken_points: Collection[int], cluster: str) -> str:
    expected = estimate(own)
    sizes = [len(point.config.methods) * len(point.config.seeds) for point in sweep.points]
    runs, broken = sum(sizes), sum(sizes[number] for number in broken_points)
    before = runs - broken - expected.runs
    remarks = [f"{before} done or given up before"] * (before > 0) + [f"{broken} can't be set up"] * (broken > 0)
    done = f" ({', '.join(remarks)})" if remarks else ""
    named = short_keys(sweep.axes)
    axes = " x ".join(f"{len(axis)} {'+'.join(key for key in axis.keys if key in named)}" for axis in sweep.axes)
    points = f" from {len(sweep.points)} points ({axes})" if sweep.axes else ""
    pace = "" if not cluster else ", group after group and at this machine's pace"
    batches = f" for {len(own)} batches" if sweep.axes and len(own) > expected.programs else ""
    return (
        f"{sweep.name}: {runs} run{'s' * (runs > 1)}{done}{points}, {expected.programs} program(s) to "
        f"compile{batches}; about {duration(expected.seconds)} of training{pace}, without the time to compile, which "
        f"may be longer, and without what methods add to a step; {expected.device_bytes / 1e6:,.0f} MB"
    )


def _program(sweep: Sweep, batches: Sequence[SweepBatch]) -> str:
    """The runs that a program trains, by method and by the values of the axes."""
    tasks = [task for own in batches for task in own.tasks]
    points = [sweep.points[number] for number in dict.fromkeys(task.point for task in tasks)]
    together = f" in {len(batches)} batches" if len(batches) > 1 else ""
    values = f" with {_values(sweep.axes, points)}" if sweep.axes else ""
    before = f" from round {tasks[0].round} on" if tasks[0].round else ""
    megabytes = max(own.state_bytes for own in batches) / 1e6
    return (
        f"{_methods(sweep, tasks)}{_seeds(sweep, tasks)}{values}: {len(tasks)} "
        f"run{'s' * (len(tasks) > 1)} of {tasks[0].simulation.rounds} rounds{before}{together}, {megabytes:,.1f} MB of "
        f"state{' at a time' if together else ''}"
    )


def _methods(sweep: Sweep, tasks: Sequence[SweepRun]) -> str:
    names = list(dict.fromkeys(sweep.points[task.point].config.methods[task.run[0]].name for task in tasks))
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _seeds(sweep: Sweep, tasks: Sequence[SweepRun]) -> str:
    """The seeds, unless they are all of their points' seeds."""
    seeds: dict[int, set[int]] = {}
    for task in tasks:
        seeds.setdefault(task.point, set()).add(task.run[1])
    if all(own == set(sweep.points[number].config.seeds) for number, own in seeds.items()):
        return ""
    named = sorted(set().union(*seeds.values()))
    return f", seed{'s' * (len(named) > 1)} {_listed([str(seed) for seed in named])}"


def _values(axes: Sequence[Axis], points: Sequence[Point]) -> str:
    """The values that some points have along each axis."""
    names, texts, combinations = short_keys(axes), [], 1
    for axis in axes:
        present = list(dict.fromkeys(tuple(shown(point.values[key]) for key in axis.keys) for point in points))
        combinations *= len(present)
        texts += [
            f"{names[key]}={_listed([values[place] for values in present])}"
            for place, key in enumerate(axis.keys)
            if key in names
        ]
    some = f" ({len(points)} of the {combinations} combinations)" if len(points) < combinations else ""
    return "; ".join(texts) + some


def _listed(values: Sequence[str]) -> str:
    """Values in a row, those in the middle of many left out."""
    if len(values) <= _MOST_VALUES:
        return ", ".join(values)
    return f"{', '.join(values[: _MOST_VALUES - 2])}, ..., {values[-1]} ({len(values)} values)"
