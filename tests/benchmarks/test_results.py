"""What the comparison makes of its runs: each figure against one computed by hand."""

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import _results

pytestmark = pytest.mark.slow


def run(workload, contestant, rate, number=1, params=7, train_loss=(2.0, 1.0)):
    result = {"client_updates_per_s": rate, "params": params, "train_loss": list(train_loss)}
    return {"workload": workload, "contestant": contestant, "pass": number, "result": result}


def of(summary, name):
    return next(one for one in summary["contestants"] if one["contestant"] == name)


def test_the_ratio_is_of_medians_to_the_fastest_rival():
    rates = {"fedjax-bal": (10.0, 30.0, 20.0), "slow": (1.0,), "fast": (9.0, 7.0, 8.0)}
    runs = [run("W1", name, rate, i) for name, all_of_it in rates.items() for i, rate in enumerate(all_of_it)]
    summary = _results.workload_summary("W1", runs)
    assert summary["fastest_rival"] == "fast"
    assert summary["ratio"] == 20.0 / 8.0
    fast = of(summary, "fast")
    assert (fast["lowest"], fast["highest"], fast["passes"]) == (7.0, 9.0, 3)


def test_the_geometric_mean_leaves_out_the_second_form_of_w4():
    ratios = {"W1": 2.0, "W4": 8.0, "W4b": 1000.0}
    runs = [run(name, who, rate) for name, ratio in ratios.items() for who, rate in (("fedjax-bal", ratio), ("a", 1.0))]
    assert _results.summarise(runs)["geometric_mean"] == pytest.approx(math.sqrt(2.0 * 8.0))


def test_losses_are_compared_after_the_same_rounds():
    ours = run("W3", "fedjax-bal", 3.0, train_loss=[[1, 2.0], [3, 1.0], [9, 0.1]])
    near, far = run("W3", "near", 1.0, train_loss=[2.2, 9.9, 1.1]), run("W3", "far", 1.0, train_loss=[2.0, 9.9, 1.3])
    summary = _results.workload_summary("W3", [ours, near, far])
    assert of(summary, "near")["equal_work"] == {"params": True, "loss": True, "round": 3, "ours": 1.0, "theirs": 1.1}
    assert of(summary, "far")["equal_work"]["loss"] is False


def test_every_ratio_of_the_table_comes_from_its_figures():
    table = _results.markdown(_results.summarise([run("W5", "fedjax-bal", 6.0), run("W5", "a", 4.0)]))
    assert "| W5 | **a** | 4 | 4 to 4 | 1 | 1.50 | yes: loss after round 2 1.000, its 1.000 |" in table
    assert "W5: 1.50 times a" in table
