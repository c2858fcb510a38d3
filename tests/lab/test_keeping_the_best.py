"""The callback that `fedjax_bal/lab/README.md` gives as an example: the best checkpoint of each run by validation."""

import re
from pathlib import Path

import numpy as np
import pytest
import small_run
import small_sweep

from fedjax_bal.engine.host import fetch
from fedjax_bal.lab import Stopped, checkpoint
from fedjax_bal.lab.folder import run_name
from fedjax_bal.lab.loop import Callback

README = Path(small_run.__file__).parents[1] / "fedjax_bal" / "lab" / "README.md"
VALIDATED = ("methods=[{recipe: fedavg}]", "evaluation.validation.per_class=5", "training.rounds=8")


def keep_best():
    """The example, as it is printed."""
    (block,) = re.findall(r"```python\n(class KeepBest.*?)```", README.read_text(), re.DOTALL)
    names = {"Callback": Callback, "checkpoint": checkpoint, "fetch": fetch, "run_name": run_name}
    exec(block, names)
    return names["KeepBest"]()


def best(path, method="fedavg"):
    """The best round of each seed by the lines, and what is kept: rounds and weights."""
    lines = {}
    for line in small_run.metrics(path):
        lines.setdefault(line["seed"], {})[line["round"]] = line["validation_loss"]
    rounds = {seed: min(losses, key=losses.get) for seed, losses in lines.items()}
    files = {seed: checkpoint.generations(path / "best" / run_name(method, seed))[0] for seed in lines}
    return rounds, {seed: (checkpoint.round_of(file), checkpoint.read(file)) for seed, file in files.items()}


def weights(arrays):
    return np.concatenate([value.ravel() for name, value in arrays.items() if "variables" in name])


@pytest.mark.slow
def test_the_best_round_is_kept_also_after_a_stop(tmp_path):
    uneven = ("training.optimizer.learning_rate=0.5", *VALIDATED)
    wanted = small_run.config(tmp_path, *uneven)
    for _ in range(2):
        with pytest.raises(Stopped):
            small_run.run(tmp_path / "run", wanted, should_stop=small_run.stop_after(2), callbacks=[keep_best()])
    small_run.run(tmp_path / "run", wanted, callbacks=[keep_best()])
    rounds, kept = best(tmp_path / "run")
    assert {seed: round for seed, (round, _) in kept.items()} == rounds
    assert set(rounds.values()) != {8}  # otherwise the last checkpoint would do
    for seed, round in rounds.items():  # a run that ends there has the same weights
        short = small_run.config(tmp_path, *uneven, f"training.rounds={round}", f"seeds=[{seed}]")
        small_run.run(tmp_path / f"short-{seed}", short)
        (last, *_) = checkpoint.generations(tmp_path / f"short-{seed}" / "checkpoints" / run_name("fedavg", seed))
        np.testing.assert_array_equal(weights(kept[seed][1]), weights(checkpoint.read(last)))


@pytest.mark.slow
def test_each_run_of_a_stack_keeps_its_own(tmp_path):
    axes = "sweep: [{training.optimizer.learning_rate: [0.05, 8.0]}]"
    wanted = small_sweep.sweep(tmp_path, axes, *VALIDATED)
    small_sweep.carry(wanted, tmp_path / "out", callbacks=[keep_best()])
    for point in (tmp_path / "out" / "points").iterdir():
        rounds, kept = best(point)
        assert {seed: round for seed, (round, _) in kept.items()} == rounds
