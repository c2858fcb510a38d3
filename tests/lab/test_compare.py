"""A comparison without a folder comes to what it comes to in one."""

import pytest
import small_run

from fedjax_bal.lab.compare import Comparison, MemoryFolder, train_comparison
from fedjax_bal.lab.run import runs_of
from fedjax_bal.lab.setup import set_up


@pytest.mark.slow
def test_a_comparison_in_memory_comes_to_the_same(trained, tmp_path):
    config, folder = small_run.config(tmp_path), MemoryFolder()
    runs = runs_of(config, set_up(config), folder, print)
    summary = train_comparison(Comparison(runs, folder, print))
    without_time = lambda line: {key: value for key, value in line.items() if key != "wall_s"}
    assert [without_time(line) for run in runs for line in run.lines] == small_run.metrics(trained())
    assert summary["finished"] and len(summary["runs"]) == 4
    assert {run.id for run in runs} == folder.snapshots.keys()
    assert {int(saved.snapshot.round) for saved in folder.snapshots.values()} == {7}
    assert not [file for file in tmp_path.iterdir() if file.name != "small.yaml"]
