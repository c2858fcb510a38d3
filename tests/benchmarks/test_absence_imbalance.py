"""What the comparison of pairs makes of its runs: each figure against one computed by hand."""

import csv
import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import absence_imbalance as tables

from fedjax_bal.config import builtin_configs
from fedjax_bal.lab import load_sweep

pytestmark = pytest.mark.slow

DRAWS = range(4)


def test_a_sweep_is_kept_with_the_means_of_the_last_five_evaluations(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    folder = tmp_path / "absence_images"
    (folder / "points" / "p").mkdir(parents=True)
    where = "\"{'scheme': 'long_tail', 'alpha': 0.7}\",\"{'name': 'markov'}\""
    rows = [f"{where},p,fedavg,0,done", f"{where},p,mifa,0,diverged"]
    (folder / "results.csv").write_text("\n".join(["partition,availability,point,method,seed,status", *rows]))
    lines = [
        {"method": "fedavg", "seed": 0} | dict.fromkeys(tables.MEASURES, share)
        for share in (1, 0.2, 0.2, 0.3, 0.3, 0.5)
    ]
    (folder / "points" / "p" / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    tables.collect(folder)
    kept = list(csv.reader((tmp_path / "absence_images.csv").read_text().splitlines()[1:]))
    assert kept[0] == ["long_tail", "markov", "fedavg", "0", "done", "0.30000", "0.30000", "0.30000"]
    assert kept[1] == ["long_tail", "markov", "mifa", "0", "diverged", "", "", ""]


def drawn(rng, methods):
    """Random results of methods in two patterns."""
    return {
        (pattern, method, seed): rng.uniform(0.4, 0.9)
        for pattern, method, seed in itertools.product(("markov", "cyclic"), methods, DRAWS)
    }


def test_a_pair_is_compared_with_the_better_part_and_the_sum_of_both():
    rng = np.random.default_rng(0)
    methods = ("fedavg", "mifa", "rebafl", "rebafl+mifa")
    values = drawn(rng, methods)
    rows = [
        {"partition": "iid", "pattern": pattern, "method": method, "seed": str(seed), "status": "done"}
        | dict.fromkeys(tables.MEASURES, str(value))
        for (pattern, method, seed), value in values.items()
    ]
    rows[3]["status"] = "diverged"  # FedAvg with the pattern markov and draw 3, which then counts for no comparison
    results = tables.Results(rows)
    pair = tables.compare_pair(lambda name: results.draws("iid", ("markov", "cyclic"), name), "mifa", "rebafl")

    mean = {
        name: np.array([(values["markov", name, seed] + values["cyclic", name, seed]) / 2 for seed in DRAWS])
        for name in methods
    }
    better = max(("mifa", "rebafl"), key=lambda name: mean[name].mean())
    expected = {
        "gain": (mean["rebafl+mifa"] - mean["fedavg"])[:3],
        "over_better": mean["rebafl+mifa"] - mean[better],
        "interaction": (mean["rebafl+mifa"] - mean["mifa"] - mean["rebafl"] + mean["fedavg"])[:3],
    }
    for name, differences in expected.items():
        ours = getattr(pair, name)
        interval = stats.ttest_1samp(differences, 0).confidence_interval()
        assert (ours.mean, ours.low, ours.high) == pytest.approx((differences.mean(), *interval))
    assert results.failed == 1


@pytest.mark.parametrize("name", tables.SWEEPS)
def test_sweeps_have_every_combination_pattern_and_partition(name):
    sweep = load_sweep(builtin_configs()[f"protocols/{name}"])
    names = {tables.method(*pair) for pair in itertools.product(tables.ABSENCE, tables.IMBALANCE)}
    assert len(names) == 36
    for values, config in ((point.values, point.config) for point in sweep.points):
        assert {method.name for method in config.methods} == names
        assert values["partition"]["scheme"] in tables.PARTITIONS and values["availability"]["name"] in tables.PATTERNS
    assert len(sweep.points) == len(tables.PARTITIONS) * len(tables.PATTERNS)
