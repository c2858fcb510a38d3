"""Seeds with partitions of their own: each run is that of its seed and partition alone."""

import pytest
import small_run
import small_sweep

from fedjax_bal.lab import set_up

OPTIONS = ("methods=[{recipe: fedavg}, {recipe: fedprox}]", "training.rounds=2", "evaluation.every=1")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A folder with two seeds on two partitions; the second was added later."""
    path = tmp_path_factory.mktemp("both") / "run"
    small_run.run(path, small_run.config(path.parent, *OPTIONS, "seeds=[0]", "partition_seeds=[3]"))
    small_run.run(path, small_run.config(path.parent, *OPTIONS, "seeds=[0, 1]", "partition_seeds=[3, 4]"))
    return path


@pytest.mark.slow
def test_each_seed_runs_on_its_own_partition(both, tmp_path):
    alone = []
    for seed, partition in ((0, 3), (1, 4)):
        path = tmp_path / str(seed)
        small_run.run(path, small_run.config(tmp_path, *OPTIONS, f"seeds=[{seed}]", f"partition.seed={partition}"))
        alone += small_run.metrics(path)
    assert small_run.metrics(both) == alone


def test_methods_share_the_partition_of_a_seed(tmp_path):
    setup = set_up(small_run.config(tmp_path, *OPTIONS, "partition_seeds=[3, 4]"))
    (first, second), (third, fourth) = ([each.tolist() for each in setup.of(seed).fingerprints] for seed in (0, 1))
    assert first == second != third == fourth
    plain = set_up(small_run.config(tmp_path, *OPTIONS))
    assert plain.of(0) is plain.of(1)


@pytest.mark.slow
def test_a_sweep_trains_all_partitions_in_one_program(both, tmp_path):
    axis, seeds = "sweep: [{training.optimizer.learning_rate: [0.05]}]", ("seeds=[0, 1]", "partition_seeds=[3, 4]")
    rows, _ = small_sweep.carry(small_sweep.sweep(tmp_path, axis, *OPTIONS, *seeds), tmp_path / "swept")
    last = {(line["method"], line["seed"]): line["test_accuracy"] for line in small_run.metrics(both)}
    found = {(row["method"], row["seed"]): row["final_accuracy"] for row in rows}
    assert found == pytest.approx(last, abs=0.002)
    assert len({row["program"] for row in rows if row["method"] == "fedavg"}) == 1
    assert [row["runs_together"] for row in rows if row["method"] == "fedavg"] == [2, 2]
