"""What a run or sweep shows at its end."""

import io

import pytest
import yaml

from fedjax_bal.cli.console import Output
from fedjax_bal.cli.results import show_results


def console(width):
    return Output(file=io.StringIO(), width=width)


@pytest.fixture
def folder(tmp_path):
    """Two methods, two conditions, two seeds, and a published accuracy for one of them at each condition."""
    sheet = {
        "name": "mine",
        "paper": {"source": "Table 1", "which": "last5", "accuracy": {}},
        "sweep": [{"partition.alpha": [0.1, 0.5], "paper.accuracy.b": [0.72, 0.9]}],
    }
    means = {(0.1, 0.72, "a"): 0.6, (0.1, 0.72, "b"): 0.7, (0.5, 0.9, "a"): 0.8, (0.5, 0.9, "b"): 0.7}
    rows = [
        f"{alpha},{theirs},p,{method},{seed},done,{mean + 0.02 * seed - 0.01},0.1,{0.25},"
        for (alpha, theirs, method), mean in means.items()
        for seed in (0, 1)
    ]
    heads = (
        "partition.alpha,paper.accuracy.b,point,method,seed,status,last5_accuracy,final_accuracy,worst_class_accuracy"
    )
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sheet))
    (tmp_path / "results.csv").write_text("\n".join([f"{heads},failure", *rows]) + "\n")
    return tmp_path


def test_a_sweep_ends_with_its_conditions_the_paper_and_the_result(folder):
    own = console(100)
    show_results(folder, own, own)
    text = " ".join(own.file.getvalue().split())
    assert "alpha 0.1 method last 5 vs a [95%] worst final seeds" in text
    assert "b 70.0 ± 1.4 +10.0 [+10.0, +10.0] 25.0 ± 0.0 10.0 ± 0.0" in text
    assert "b alpha 0.5 Mean of last 5, % 70.0 ± 1.4 [57.3, 82.7] 2 90.0 \N{MINUS SIGN}20.0*" in text
    assert "alpha 0.1 b 70.0 ± 1.4 +10.0 [+10.0, +10.0]" in text
    assert "alpha 0.5 a 80.0 ± 1.4 +10.0 [+10.0, +10.0]" in text
    assert "1 of 2 accuracies are within 2 points of the published ones" in text
