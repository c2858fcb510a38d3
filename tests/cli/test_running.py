"""Tables in the terminal, of a sweep too."""

import io
from typing import NamedTuple

import numpy as np
import pytest
import typer
import yaml

from fedjax_bal.cli import running
from fedjax_bal.cli.console import Output, names_table
from fedjax_bal.cli.listing import _written_out
from fedjax_bal.cli.running import print_table, show_results, with_short_names
from fedjax_bal.lab import SweepFolder
from fedjax_bal.report import Table

TABLE = Table(
    ("method", "last 5", "vs a [95%]"), [("a", "70.0 ± 1.0", "-"), ("b" * 60, "75.0 ± 2.0", "+5.0 [+1.0, +9.0]")]
)


class Row(NamedTuple):
    method: str


def console(width):
    return Output(file=io.StringIO(), width=width)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (120, ["75.0 ± 2.0  +5.0 [+1.0, +9.0]"]),
        (90, ["  75.0          +5.0", " ± 2.0  [+1.0, +9.0]"]),
        (70, ["  last 5: 75.0 ± 2.0", "  vs a [95%]: +5.0 [+1.0, +9.0]"]),
    ],
)
def test_a_table_takes_the_form_for_which_there_is_room(width, expected):
    own = console(width)
    print_table(TABLE, own, "in %", "alpha [0.5]")
    lines = [line.rstrip() for line in own.file.getvalue().splitlines()]
    assert lines[0] == "alpha [0.5]" and max(map(len, lines)) <= width
    assert all(any(line.endswith(text) for line in lines) for text in expected)


def test_defaults_of_any_type_are_listed():
    defaults = {"mu": np.float32(0.5), "act": max, "name": "x", "most": None, "needed": ...}
    assert _written_out(defaults, ...) == "mu=0.5, act=max, name=x, most=null, needed"


def test_a_name_without_a_text_is_listed():
    own = console(80)
    own.print(names_table([("mine", []), ("fedavg", ["The mean."])]))
    assert [line.split() for line in own.file.getvalue().splitlines()] == [["mine"], ["fedavg", "The", "mean."]]


def test_names_are_shortened_to_the_room_there_is():
    def shortened(width, *names):
        return [row.method for row in with_short_names([Row(name) for name in names], console(width))]

    assert [len(shortened(width, "m" * 40)[0]) for width in (120, 90)] == [24, 16]
    alike = ("balanced_softmax+astraea", "balanced_softmax+cbfl")
    assert shortened(90, *alike) == ["balance…+astraea", "balance…max+cbfl"]
    assert shortened(90, "a" * 20 + "b" + "a" * 20, "a" * 41) == ["a" * 20 + "b" + "a" * 20, "a" * 41]


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


def test_a_sweep_counts_the_failures_that_it_does_not_name(folder, monkeypatch, capsys):
    monkeypatch.setattr(running, "build_page", lambda path: path / "sweep.html")
    row = {"point": "p", "method": "a", "status": "diverged", "failure": "round 1"}
    with pytest.raises(typer.Exit):
        running._conclude_sweep(SweepFolder(folder), [{**row, "seed": seed} for seed in range(22)], console(100))
    told = capsys.readouterr().err.splitlines()
    assert told[-2:] == ["  p, a, seed 19: diverged: round 1", "  and 2 more, see the table"]


def test_a_sweep_ends_with_its_conditions_the_paper_and_the_result(folder):
    own = console(100)
    show_results(folder, own)
    text = " ".join(own.file.getvalue().split())
    assert "alpha 0.1 method last 5 vs a [95%] worst final MB seeds" in text
    assert "b 70.0 ± 1.4 +10.0 [+10.0, +10.0] 25.0 ± 0.0 10.0 ± 0.0" in text
    assert "Method alpha 0.1 alpha 0.5 " in text and "b 70.0 ± 1.4 (72.0) 70.0 ± 1.4 (90.0)*" in text
    assert "alpha 0.1: b 70.0 ± 1.4% (+10.0 [+10.0, +10.0] points from a); alpha 0.5: a 80.0 ± 1.4%." in text
    assert "1 of 2 accuracies are within 2 points of the published ones" in text
