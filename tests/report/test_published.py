"""Our accuracies compared with those of a paper."""

import csv
import io

import pytest
import yaml
from report.test_sweep_results import HEADS

from fedjax_bal.config import ConfigError, load_config
from fedjax_bal.metrics import NOTHING
from fedjax_bal.report import write_run_page
from fedjax_bal.report.published import paper_comparison_of_run, paper_comparison_of_sweep
from fedjax_bal.report.reading import read_runs
from fedjax_bal.report.sweep_page import page_of_sweep
from fedjax_bal.report.sweep_results import read_results
from fedjax_bal.report.tables import MINUS

SHEET = {
    "name": "mine",
    "seeds": [0, 1, 2],
    "paper": {"source": "Table 1", "which": "best", "accuracy": {"b": 0.9, "absent": 0.5}},
    "sweep": [{"partition.alpha": [0.5, 0.1], "paper.accuracy.a": [0.8, 0.6]}],
}
# By condition and method: best accuracies of three seeds, then the last five.
OURS = {
    (0.5, 0.8, "a"): ((0.81, 0.82, 0.83), 0.5),
    (0.5, 0.8, "b"): ((0.80, 0.90, 0.85), 0.6),
    (0.1, 0.6, "a"): ((0.62, 0.62, 0.62), 0.7),
    (0.1, 0.6, "b"): ((None, None, None), None),
}


@pytest.fixture
def results(tmp_path):
    rows = [
        f"{alpha},{theirs},p,{method},{seed},{'done' if best else 'diverged'},{last5 or ''},,{best or ''}"
        for (alpha, theirs, method), (bests, last5) in OURS.items()
        for seed, best in enumerate(bests)
    ]
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(SHEET))
    heads = f"partition.alpha,paper.accuracy.a,{HEADS},best_accuracy"
    (tmp_path / "results.csv").write_text("\n".join([heads, *rows]) + "\n")
    return read_results(tmp_path)


def test_an_axis_may_have_the_published_accuracies_together(tmp_path):
    sheet = {"paper": {"source": "Table 1"}, "sweep": [{"partition.alpha": [1, 2], "paper.accuracy": [{"a": 0.5}, {}]}]}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sheet))
    rows = [f"{alpha},{text},p,a,0,done,0.6,,0.6" for alpha, text in ((1, "{'a': 0.5}"), (2, "{}"), (3, "{a"))]
    heads = f"partition.alpha,paper.accuracy,{HEADS},best_accuracy"
    (tmp_path / "results.csv").write_text("\n".join([heads, *rows]) + "\n")
    assert [(own.condition, own.theirs) for own in paper_comparison_of_sweep(read_results(tmp_path)).entries] == [
        ("alpha 1", 0.5)
    ]


def test_all_numbers_with_the_interval_over_seeds(results):
    (listed,) = paper_comparison_of_sweep(results).tables
    assert {row[2] for row in listed.rows} == {"Best of a run, %"} and "Published: Table 1." in listed.note
    # 62.0 against 60 is exactly two points, which no star marks.
    assert listed.rows[0] == ("a", "alpha 0.1", "Best of a run, %", "62.0 ± 0.0", "[62.0, 62.0]", "3", "60.0", "+2.0")
    # Deviation 5 of three seeds: half width 4.3027 * 5 / sqrt 3 = 12.4.
    assert listed.rows[-1][3:] == ("85.0 ± 5.0", "[72.6, 97.4]", "3", "90.0", f"{MINUS}5.0*")
    assert listed.rows[1][3:] == (NOTHING, NOTHING, "0", "90.0", NOTHING)


def test_the_verdict_counts_what_is_near(results):
    verdict = "2 of 3 accuracies are within 2 points of the published ones."
    assert paper_comparison_of_sweep(results).verdict == verdict


def test_page_and_tables_of_a_sweep_have_them(results):
    page = page_of_sweep(results)
    text = page.html().decode()
    assert ">Compared with the paper</h2>" in text and f"<td>{MINUS}5.0*</td>" in text
    files = {ending: content.decode() for ending, content in page.tables().items()}
    assert r"& 85.0 $\pm$ 5.0 & {[}72.6, 97.4{]} & 3 & 90.0 &" in files["tex"]
    rows = list(csv.DictReader(io.StringIO(files["csv"])))
    (own,) = [row for row in rows if row["method"] == "b" and row["metric"] == "best_accuracy" and row["mean"]]
    assert (own["partition.alpha"], own["published"]) == ("0.5", "0.9")
    assert float(own["from_published"]) == pytest.approx(-0.05)
    assert {row["published"] for row in rows if row["metric"] == "last5_accuracy"} == {""}


@pytest.mark.slow
def test_a_run_has_one_condition(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=2)
    file = folder / "config.yaml"
    file.write_text(file.read_text() + "paper: {source: Table 3, which: last5, accuracy: {rebafl: 0.7}}\n")
    text = write_run_page(folder).read_text()
    assert text.count(">Compared with the paper</h2>") == 1 and "<td>70.0</td>" in text
    assert "rebafl,last5_accuracy,3," in (folder / "tables.csv").read_text()


@pytest.mark.slow
def test_another_setting_than_the_papers_is_named_and_no_reproduction(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=2)
    file = folder / "config.yaml"
    setting = "{training.rounds: 200, model.name: lenet5, dataset.name: mnist, dataset.mean: [0.5], 'rebafl: mu': 0.5}"
    paper = f"paper: {{source: Table 3, accuracy: {{rebafl: 0.9}}, setting: {setting}}}\n"
    file.write_text(file.read_text() + paper)
    text = write_run_page(folder).read_text()
    assert paper_comparison_of_run(read_runs([folder])).changes == [
        ("training.rounds", "2", "200"), ("model.name", "rebafl_fmnist", "lenet5"),
        ("dataset.name", "fashion_mnist_small", "mnist"), ("rebafl: mu", "none", "0.5"),
    ]  # fmt: skip
    assert "reproduce the paper: the accuracies" in text and "<td>rebafl_fmnist</td><td>lenet5</td>" in text
    assert "90.0</td>" in text and "*</td>" not in text and "Difference, points</th>" not in text
    assert text.index("Compared with the paper") < text.index(">Curves</h2>")
    rows = list(csv.DictReader((folder / "tables.csv").read_text().splitlines()))
    assert {(row["published"], row["from_published"]) for row in rows} == {("", "")}


def test_a_sweep_over_what_the_paper_has_one_value_of_is_no_reproduction(tmp_path):
    sheet = {
        "paper": {"source": "Table 1", "which": "best", "accuracy": {"a": 0.5}, "setting": {"training.rounds": 30}},
        "training": {"rounds": 3},
        "sweep": [{"training.optimizer.learning_rate": [0.1, 0.2]}],
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sheet))
    rows = [f"{rate},p,a,0,done,0.6,,0.6" for rate in (0.1, 0.2)]
    heads = f"training.optimizer.learning_rate,{HEADS},best_accuracy"
    (tmp_path / "results.csv").write_text("\n".join([heads, *rows]) + "\n")
    compared = paper_comparison_of_sweep(read_results(tmp_path))
    assert compared.changes == [("training.rounds", "3", "30"), ("learning_rate", "swept", "one value")]
    listed, _ = compared.tables  # without differences
    assert [row[:1] + row[-1:] for row in listed.rows] == [("a", "50.0")] and compared.by_metric() == {}


def test_a_papers_table_may_have_more_methods_than_are_run():
    config = load_config(None, ["paper={source: Table 3, accuracy: {fedavg: 0.7, theirs: 0.8}}"])
    assert config.paper is not None and config.paper.accuracy == {"fedavg": 0.7, "theirs": 0.8}
    with pytest.raises(ConfigError, match=r"paper.accuracy: .*each to a finite number above 0 and of at most 1"):
        load_config(None, ["paper={source: Table 3, accuracy: {fedavg: 70}}"])
