"""What is kept of the sweep behind the guide's page on long tails."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import long_tail

pytestmark = pytest.mark.slow


def test_a_sweep_is_kept_with_the_last_accuracy_in_each_class(tmp_path, monkeypatch):
    monkeypatch.setattr(long_tail, "RESULTS", tmp_path)
    folder = tmp_path / "tail"
    (folder / "points" / "p").mkdir(parents=True)
    (folder / "results.csv").write_text("point,method,seed\np,fedavg,0\np,local,0\n")
    lines = [{"method": "fedavg", "seed": 0, "round": 1, "per_class_accuracy": [1.0, 0.5]}]
    lines += [{"method": "fedavg", "seed": 0, "round": 2, "per_class_accuracy": [0.25, 1 / 3]}]
    (folder / "points" / "p" / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    long_tail.collect(folder)
    kept = (tmp_path / "tail.csv").read_text().splitlines()
    assert kept == ["point,method,seed,per_class_accuracy", "p,fedavg,0,0.25 0.3333", "p,local,0,"]
