"""Dry runs: describes what a run or a sweep would do, and writes nothing."""

import os
from collections.abc import Iterator

from fedjax_bal.config import Config
from fedjax_bal.experiments.grouping import SweepRun
from fedjax_bal.experiments.outline import run_outline
from fedjax_bal.experiments.setup import SharedInputs, set_up
from fedjax_bal.experiments.summary import known_runs
from fedjax_bal.experiments.summary import number as undamaged
from fedjax_bal.runs import RunFolder, SweepFolder


def dry_run(
    config: Config, folder: RunFolder, data_dir: str | os.PathLike | None, devices: str | int | None, *, fresh: bool
) -> Iterator[str]:
    """Describes a run that would go on in its folder, or with `fresh` start over there."""
    with folder.files.writing():  # for the messages of a folder that couldn't be written
        folder.check_owner(config)
    before = None if fresh else folder
    inputs = SharedInputs(data_dir, devices, before and before.read_devices())
    yield from run_outline(config, find_left(0, config, before, inputs, retried=True))
    yield from (f"  {line}" for line in inputs.data_lines())
    yield place_of_results(folder, fresh=fresh)


def place_of_results(folder: RunFolder | SweepFolder, *, fresh: bool = False) -> str:
    """Says where results would be written."""
    does = "would be written to" if not folder.exists() else "would start over in" if fresh else "would go on in"
    return f"  {does} {folder.path}"


def find_left(
    number: int, config: Config, folder: RunFolder | None, inputs: SharedInputs, *, retried: bool = False
) -> list[SweepRun]:
    """The runs of a point of this number that have rounds left, by the summary in its folder, if it has one.

    Runs that have diverged are among them only if they are `retried`, as `run` does and a sweep doesn't.
    """
    comparison = set_up(config, inputs=inputs)
    known = known_runs(folder.read_summary()) if folder else {}
    tasks = []
    for index, method in enumerate(config.methods):
        for seed in config.seeds:
            simulation = comparison.simulation((index, seed))
            run = known.get((method.name, seed), {})
            done = min(int(undamaged(run.get("rounds"))), simulation.rounds)
            over = run.get("stopped_early") is not None or (run.get("failure") and not retried)
            if done < simulation.rounds and not over:
                tasks.append(SweepRun(number, (index, seed), simulation, done))
    return tasks
