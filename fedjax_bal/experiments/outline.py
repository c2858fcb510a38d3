"""What a sweep says before it begins: how many runs, which programs for which of them, about how long."""

import json
from collections.abc import Iterator, Sequence

from fedjax_bal.config import to_plain
from fedjax_bal.experiments.axes import Axis
from fedjax_bal.experiments.display.tally import duration
from fedjax_bal.experiments.estimate import estimate
from fedjax_bal.experiments.grouping import SweepBatch
from fedjax_bal.experiments.plan import Point, Sweep, short_keys, shown
from fedjax_bal.experiments.sweep_work import SweepWork

_MOST_VALUES = 6  # of a key in a line


def sweep_outline(sweep: Sweep, work: SweepWork) -> Iterator[str]:
    """Lines about what there is to do.

    Args:
        sweep: the sweep.
        work: what is left of it.

    Yields:
        A line about all of it, one about the cluster if there is one, one for each method that sets what is swept, and
        one for each program.
    """
    yield _whole(sweep, work)
    if work.backend.about():
        yield f"  {work.backend.about()}"
    for name in unused_axes(sweep):
        yield f"  {name}: sets what is swept itself, so that some of its runs are the same"
    batches: dict[int, list[SweepBatch]] = {}
    for own in work.groups:
        batches.setdefault(own.program, []).append(own)
    for number, own in batches.items():
        yield f"  program {number + 1}: {_program(sweep, own)}"


def batch_title(sweep: Sweep, own: SweepBatch) -> str:
    """What a group of runs is called: its methods, and how many runs it has."""
    several = len(own.tasks) > 1
    told = _methods(sweep, [own])
    return f"{told} x {len(own.tasks)}" if several else f"{told}, {sweep.points[next(iter(own.tasks)).point].label}"


def unused_axes(sweep: Sweep) -> list[str]:
    """The methods that come to the same at several points, for their entries override what is swept."""
    seen: dict[str, list[str]] = {}
    for point in sweep.points:
        for index, method in enumerate(point.config.methods):
            whole = json.dumps([to_plain(point.config.for_method(index)), point.config.seeds], sort_keys=True)
            seen.setdefault(method.name, []).append(whole)
    return [name for name, own in seen.items() if len(set(own)) < len(own)]


def _whole(sweep: Sweep, work: SweepWork) -> str:
    expected = estimate(work.groups)
    runs = sum(len(point.config.methods) * len(point.config.seeds) for point in sweep.points)
    broken = sum(len(sweep.points[n].config.methods) * len(sweep.points[n].config.seeds) for n in work.broken)
    before = runs - broken - expected.runs
    told = [f"{before} done or given up before"] * (before > 0) + [f"{broken} can't be set up"] * (broken > 0)
    done = f" ({', '.join(told)})" if told else ""
    axes = " x ".join(f"{len(axis)} {'+'.join(axis.keys)}" for axis in sweep.axes)
    pace = "" if work.backend.home else ", group after group and at this machine's pace"
    batches = f" for {len(work.groups)} batches" if len(work.groups) > expected.programs else ""
    return (
        f"{sweep.name}: {runs} runs{done} from {len(sweep.points)} points ({axes}), {expected.programs} program(s) to "
        f"compile{batches}; about {duration(expected.seconds)} of training{pace}, without the time to compile, which "
        f"may be longer, and without what methods add to a step; {expected.device_bytes / 1e6:,.0f} MB"
    )


def _program(sweep: Sweep, batches: Sequence[SweepBatch]) -> str:
    """Which runs a program trains, by method and by the values of the axes."""
    tasks = [task for own in batches for task in own.tasks]
    points = [sweep.points[number] for number in dict.fromkeys(task.point for task in tasks)]
    together = f" in {len(batches)} batches" if len(batches) > 1 else ""
    before = f" from round {tasks[0].round} on" if tasks[0].round else ""
    megabytes = max(own.state_bytes for own in batches) / 1e6
    return (
        f"{_methods(sweep, batches)}{_seeds(sweep, batches)} with {_values(sweep.axes, points)}: {len(tasks)} "
        f"run{'s' * (len(tasks) > 1)} of {tasks[0].simulation.rounds} rounds{before}{together}, {megabytes:,.1f} MB of "
        f"state{' at a time' if together else ''}"
    )


def _methods(sweep: Sweep, groups: Sequence[SweepBatch]) -> str:
    tasks = [task for own in groups for task in own.tasks]
    names = list(dict.fromkeys(sweep.points[task.point].config.methods[task.run[0]].name for task in tasks))
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _seeds(sweep: Sweep, groups: Sequence[SweepBatch]) -> str:
    """The seeds, where they are not all of those of their points."""
    tasks = [task for own in groups for task in own.tasks]
    seeds: dict[int, set[int]] = {}
    for task in tasks:
        seeds.setdefault(task.point, set()).add(task.run[1])
    if all(own == set(sweep.points[number].config.seeds) for number, own in seeds.items()):
        return ""
    named = sorted(set().union(*seeds.values()))
    return f", seed{'s' * (len(named) > 1)} {_listed([str(seed) for seed in named])}"


def _values(axes: Sequence[Axis], points: Sequence[Point]) -> str:
    """The values that some points have along each axis.

    Example:
        >>> axes = [Axis(("training.rounds",), ((5, 9),)), Axis(("partition.clients",), ((10, 20),))]
        >>> at = lambda *values: Point("", dict(zip(("training.rounds", "partition.clients"), values)), None)
        >>> _values(axes, [at(5, 10), at(5, 20)])
        'rounds=5; clients=10, 20'
        >>> _values(axes, [at(5, 10), at(9, 20)])
        'rounds=5, 9; clients=10, 20 (2 of the 4 combinations)'
    """
    names, told, combinations = short_keys(axes), [], 1
    for axis in axes:
        present = list(dict.fromkeys(tuple(shown(point.values[key]) for key in axis.keys) for point in points))
        combinations *= len(present)
        told += [
            f"{names[key]}={_listed([values[place] for values in present])}" for place, key in enumerate(axis.keys)
        ]
    some = f" ({len(points)} of the {combinations} combinations)" if len(points) < combinations else ""
    return "; ".join(told) + some


def _listed(values: Sequence[str]) -> str:
    """Values in a row, those in the middle of many left out.

    Example:
        >>> _listed(["1", "2"]), _listed([str(number) for number in range(30)])
        ('1, 2', '0, 1, 2, 3, ..., 29 (30 values)')
    """
    if len(values) <= _MOST_VALUES:
        return ", ".join(values)
    return f"{', '.join(values[: _MOST_VALUES - 2])}, ..., {values[-1]} ({len(values)} values)"
