"""Names of methods in reports other than those in results."""

import csv
import json

import pytest
import yaml

from fedjax_bal.cli.arguments import parse_names
from fedjax_bal.lab import SweepFolder
from fedjax_bal.report.gallery import sweep_figures
from fedjax_bal.report.labels import labels_of, split_math, with_labels
from fedjax_bal.report.page import (
    build,
    groups_by_data,
    join,
    missing_runs,
    read_all,
    read_run,
    setting_in_words,
)
from fedjax_bal.report.published import paper_comparison_of_run, paper_comparison_of_sweep
from fedjax_bal.report.sweep_page import answer
from fedjax_bal.report.sweep_results import read_results, sweep_curves
from fedjax_bal.report.tables import summarise_group

SHEET = (
    "methods: [fedavg, {recipe: [scaffold, {name: balanced_softmax}], label: Both}]\n"
    "paper: {source: x, accuracy: {fedavg: 0.5}}\n"
    "sweep: [{partition.clients: [10, 20], paper.accuracy.scaffold+balanced_softmax: [0.5, 0.6]}]\n"
)


@pytest.fixture
def folder(make_run, tmp_path):
    """A run whose second method has a label."""
    folder = make_run(tmp_path / "run", rounds=2)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["methods"][1]["label"] = "ReBaFL (ours)"
    config["paper"] = {"source": "Table 1", "accuracy": {"rebafl": 0.7}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return folder


@pytest.fixture
def sweep(tmp_path):
    """A sweep of two methods, of which the second has a label and a metric by round."""
    rows = [
        "partition.clients,paper.accuracy.scaffold+balanced_softmax,point,method,seed,status,last5_accuracy,failure"
    ]
    for clients in (10, 20):
        for method, accuracy in (("fedavg", 0.5), ("scaffold+balanced_softmax", 0.6)):
            rows.append(f"{clients},0.5,p{clients},{method},0,done,{accuracy},")
        point = tmp_path / "points" / f"p{clients}"
        point.mkdir(parents=True)
        line = {"method": "scaffold+balanced_softmax", "seed": 0, "round": 1, "test_accuracy": 0.5, "test_loss": 1.0}
        (point / "metrics.jsonl").write_text(json.dumps(line | {"bytes_up": 1, "bytes_down": 1, "wall_s": 0.1}) + "\n")
    (tmp_path / "sweep.yaml").write_text(SHEET)
    (tmp_path / "results.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_a_run_is_read_with_its_labels(folder):
    run = read_run(folder)
    names = ["fedavg", "ReBaFL (ours)"]
    assert list(dict.fromkeys(entry["method"] for entry in run.summary["runs"])) == names
    assert list(dict.fromkeys(line["method"] for line in run.lines)) == names
    assert run.summary["partitions"][0]["methods"] == names
    assert missing_runs(run.config, run.summary["runs"]) == []
    paper = paper_comparison_of_run(run.config, summarise_group(run.summary["runs"]))
    assert [(entry.method, entry.theirs) for entry in paper.entries] == [("ReBaFL (ours)", 0.7)]


def test_a_comma_that_no_name_follows_is_part_of_a_label():
    names = parse_names(["a=Smooth, beta 0.9,b=B", r"c=Tilt, $\tau=1$"])
    assert names == {"a": "Smooth, beta 0.9", "b": "B", "c": r"Tilt, $\tau=1$"}


def test_a_formula_that_figures_cannot_show_is_refused_as_a_name_and_text_as_a_label():
    with pytest.raises(ValueError, match="--names: received '.*'"):
        with_labels({"methods": ["a"]}, {"a": r"A $\frac{1}{$"})
    assert split_math(r"A $\frac{1}{$") == [r"A $\frac{1}{$"]


def test_a_caption_says_the_setting_unless_runs_have_several(folder):
    run = read_run(folder)
    words = setting_in_words([run.config], run.summary["runs"])
    assert words.startswith("Fashion-MNIST (a balanced sixth that comes with the package), ")
    assert words.endswith(" clients (pathological, classes per client 2), 2 rounds")
    assert setting_in_words([run.config] * 2, run.summary["runs"]) == words
    other = {**run.config, "partition": {**run.config["partition"], "clients": 99}}
    assert setting_in_words([run.config, other], run.summary["runs"]) == ""
    own = {**run.config, "methods": [{"name": "a", "partition": {"clients": 3}}]}
    assert setting_in_words([own], run.summary["runs"]) == ""


@pytest.mark.slow
def test_the_page_has_the_label_and_the_results_the_name(folder):
    text = build(folder).read_text()
    assert "ReBaFL (ours) has the highest accuracy" in text and "method ReBaFL (ours)" in text
    assert '"method": "rebafl"' in (folder / "summary.json").read_text()


def test_names_come_before_labels_and_folders_after_both(folder, make_run, tmp_path):
    other = make_run(tmp_path / "other", rounds=2)
    names = {"fedavg": "FedAvg", "rebafl": "R"}
    assert labels_of(read_run(folder, names).config) == names
    joined = join([folder, other], names)
    every = list(dict.fromkeys(entry["method"] for entry in joined.summary["runs"]))
    assert every == ["FedAvg (run)", "R (run)", "FedAvg (other)", "R (other)"] and joined.summary["finished"]
    assert len(groups_by_data(joined, joined=True)) == 1


def test_runs_on_files_of_one_name_are_on_the_same_data_if_the_content_is_equal(make_run, tmp_path):
    folders = [make_run(tmp_path / name) for name in "abc"]
    for folder, digest in zip(folders, ("12", "12", "34"), strict=True):
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config |= {"dataset": {"name": "csv", "path": "../rows.csv"}, "files": {f"/{folder.name}/rows.csv": digest}}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    groups = groups_by_data(join(folders), joined=True)
    assert [{run["method"][-2] for run in group} for group in groups] == [{"a", "b"}, {"c"}]


def test_a_sweep_is_read_with_its_labels_and_the_files_keep_the_names(sweep):
    results = read_results(sweep)
    assert results.methods == ["fedavg", "Both"] and "Both" in answer(results)
    lines = sweep_curves(results, SweepFolder(sweep))
    assert {line["method"] for line in lines} == {"scaffold+balanced_softmax"}
    figure = next(figure for name, _, _, figure in sweep_figures(results, lines) if name == "accuracy")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Both"]
    paper = paper_comparison_of_sweep(results)
    assert {entry.method for entry in paper.entries} == {"fedavg", "Both"}
    with (sweep / "results.csv").open() as file:
        assert {row["method"] for row in csv.DictReader(file)} == {"fedavg", "scaffold+balanced_softmax"}


def test_a_label_that_a_damaged_configuration_has_twice_is_left_out():
    assert labels_of({"methods": ["fedavg", {"recipe": "rebafl", "label": "fedavg"}]}) == {
        "fedavg": "fedavg", "rebafl": "rebafl",
    }  # fmt: skip
    assert labels_of({"methods": 3}) == {}


def test_labels_of_swept_methods_count_unless_a_method_has_several():
    one, two = [{"recipe": "fedavg", "label": "FedAvg"}], [{"recipe": "rebafl", "label": "ReBaFL"}, "iwds"]
    sheet = {"methods": ["fedprox"], "sweep": [{"lr": [0.1]}, {"methods": [one, two]}]}
    assert labels_of(sheet) == {"fedavg": "FedAvg", "rebafl": "ReBaFL", "iwds": "iwds"}
    sheet["sweep"][1]["methods"].append([{"recipe": "fedavg", "label": "Plain"}])
    assert labels_of(sheet) == {"fedavg": "fedavg", "rebafl": "ReBaFL", "iwds": "iwds"}


def test_wrong_names_are_refused(folder, sweep):
    with pytest.raises(ValueError, match="--names: received 'rebalf'"):
        read_all([folder], {"rebalf": "x"})
    with pytest.raises(ValueError, match="--names: received 'rebafl'"):
        read_all([sweep], {"rebafl": "x"})
    with pytest.raises(ValueError, match=r"received 'ReBaFL \(ours\)' for several methods"):
        read_all([folder], {"fedavg": "ReBaFL (ours)"})
