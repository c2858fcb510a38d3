"""The tables of the guide's page on long tails follow from the stored results."""

import csv
import json
import sys
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import long_tail


def test_the_page_has_the_tables_of_the_results():
    assert long_tail.PAGE.read_text() == long_tail.page(), "python benchmarks/long_tail.py"


def test_every_accuracy_is_the_mean_of_its_runs():
    with (long_tail.RESULTS / "long_tail.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    first = long_tail.PAGE.read_text().partition("<!-- end -->")[0].splitlines()
    shown = {line.split("`")[1]: line.split(" | ") for line in first if "| `" in line}
    for method in {row["method"] for row in rows}:
        own = [float(row["last5_accuracy"]) for row in rows if row["method"] == method]
        assert len(own) == 9 and shown[method][1].startswith(f"{100 * fmean(own):.1f} ± ")


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
