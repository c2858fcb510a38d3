"""The tables of a sweep, whose partitions may be crossed with seeds."""

import csv
import io

import pytest

from fedjax_bal.report.published import beside_of_sweep
from fedjax_bal.report.sweep_results import read_results
from fedjax_bal.report.sweep_tables import sweep_tables
from fedjax_bal.report.wording import MINUS

SHEET = "name: mine\nseeds: [0, 1]\nsweep: [{lr: [0.1, 0.3]}, {AXIS}]\n"
# By partition, then by seed: FedAvg, and another method that is better by 1 and 3 points on the two partitions.
ACCURACIES = {"fedavg": [[0.50, 0.60], [0.70, 0.72]], "other": [[0.505, 0.615], [0.73, 0.75]]}


def _files(results):
    return sweep_tables(results, beside_of_sweep(results))


def tables(tmp_path, axis, values, lost=()):
    """The tables of a sweep with two rates, two partitions and two seeds; of `lost` places in it no run is done."""
    rows = [f"lr,{axis},point,method,seed,status,last5_accuracy,macro_f1,failure"]
    for rate in (0.1, 0.3):
        for method, partitions in ACCURACIES.items():
            for place, seeds in enumerate(partitions):
                for seed, value in enumerate(seeds):
                    status = "diverged" if (rate, method, place, seed) in lost else "done"
                    point = f"lr={rate},seed={place}"
                    rows.append(f'{rate},"{values[place]}","{point}",{method},{seed},{status},{value},,')
    (tmp_path / "sweep.yaml").write_text(SHEET.replace("AXIS", f"{axis}: {values}"))
    (tmp_path / "results.csv").write_text("\n".join(rows) + "\n")
    texts = {ending: content.decode() for ending, content in _files(read_results(tmp_path)).items()}
    return list(csv.DictReader(io.StringIO(texts["csv"]))), texts["md"], texts["tex"]


def test_runs_on_one_partition_are_averaged_first(tmp_path):
    rows, markdown, latex = tables(tmp_path, "partition.seed", [5, 6])
    assert [(row["lr"], row["method"], row["metric"], row["n"]) for row in rows] == [
        (rate, method, "last5_accuracy", "2") for rate in ("0.1", "0.3") for method in ACCURACIES
    ]
    own, other = rows[0], rows[1]
    # Of the means 0.55 and 0.71 the deviation is 0.16 / sqrt 2; with 1 degree of freedom the 0.975 quantile is 12.706.
    assert (float(own["mean"]), float(own["deviation"])) == pytest.approx((0.63, 0.16 / 2**0.5))
    assert float(own["high"]) - float(own["mean"]) == pytest.approx(12.7062 * 0.08, rel=1e-4)
    assert (float(other["difference"]), other["pairs"]) == (pytest.approx(0.02), "2")
    assert float(other["difference_low"]) == pytest.approx(0.02 - 12.7062 * 0.01, rel=1e-4)
    assert "| lr 0.1 | 63.0 ± 11.3 | 65.0 ± 12.7 |" in markdown and "seeds on one partition are averaged" in markdown
    assert f"| other | 65.0 ± 12.7 | +2.0 [{MINUS}10.7, +14.7] |" in markdown
    assert r"lr 0.3 & 63.0 $\pm$ 11.3 & 65.0 $\pm$ 12.7 \\" in latex


def test_partitions_by_seed_are_independent_or_crossed(tmp_path):
    rows, markdown, _ = tables(tmp_path, "partition_seeds", [[5, 6], [7, 8]])
    assert rows[0]["n"] == "4" and "Each seed has a partition of its own" in markdown
    rows, markdown, _ = tables(tmp_path, "partition_seeds", [[5, 6], [6, 5]])
    assert rows[0]["n"] == "2" and "seeds on one partition are averaged first" in markdown
    assert float(rows[0]["deviation"]) == pytest.approx(0.04 / 2**0.5)  # of (0.50 + 0.72) / 2 and (0.60 + 0.70) / 2


def test_seeds_alone_and_lost_runs(tmp_path):
    rows, markdown, _ = tables(tmp_path, "seeds", [[0, 1], [2, 3]], {(0.3, "fedavg", 0, 1), (0.3, "fedavg", 1, 0)})
    assert [row["n"] for row in rows] == ["4", "4", "2", "4"] and rows[3]["pairs"] == "2"
    assert float(rows[2]["mean"]) == pytest.approx((0.50 + 0.72) / 2)
    assert "between seeds only" in markdown
