"""Several run folders on one page, and what a paper reports beside a run's own figures."""

import json
import shutil

import pytest

from fedjax_bal.config import ConfigError, load_config
from fedjax_bal.report import ReportError, build
from fedjax_bal.report.comparison import build_comparison, join


@pytest.fixture
def folders(make_run, tmp_path):
    """Two runs of the same methods, the second with another learning rate and other accuracies."""
    first = make_run(tmp_path / "one" / "run")
    second = shutil.copytree(first, tmp_path / "two" / "run")
    config = (second / "config.yaml").read_text()
    assert "learning_rate: 0.05" in config
    (second / "config.yaml").write_text(config.replace("learning_rate: 0.05", "learning_rate: 0.2"))
    return [first, second]


def test_methods_are_named_by_their_folders(folders):
    both = join(folders)
    own = [run["method"] for run in json.loads((folders[0] / "summary.json").read_text())["runs"]]
    assert [run["method"] for run in both.summary["runs"]] == [f"{m} ({d}/run)" for d in ("one", "two") for m in own]
    assert {line["method"] for line in both.lines} == {run["method"] for run in both.summary["runs"]}


def test_the_page_compares_and_says_where_settings_differ(folders, tmp_path):
    page = build_comparison(folders, tmp_path / "out.html").read_text()
    assert "one/run: 0.05; two/run: 0.2" in page
    assert "training.optimizer.learning_rate" in page and "training.rounds" not in page
    assert page.count("Accuracy by round") >= 1


def test_the_page_says_that_runs_are_on_other_data(folders, tmp_path):
    page = build_comparison(folders, tmp_path / "out.html").read_text()
    assert "not on the same data" not in page
    config = (folders[1] / "config.yaml").read_text()
    assert config.count("clients: ") == 1
    (folders[1] / "config.yaml").write_text(config.replace("clients: ", "clients: 1"))
    page = build_comparison(folders, tmp_path / "out.html").read_text()
    assert "The runs are not on the same data (partition.clients): " in page


BAD = [
    (lambda own: own[:1], "received 1 folders; a comparison takes 2 to 20 different ones"),
    (lambda own: [own[0], own[0]], "2 to 20 different ones"),
    (lambda own: [own[0], own[0].parent], "can't be read"),
]


@pytest.mark.parametrize(("pick", "message"), BAD, ids=[message for _, message in BAD])
def test_what_can_not_be_compared_is_told(folders, tmp_path, pick, message):
    with pytest.raises(ReportError, match=message):
        build_comparison(pick(folders), tmp_path / "out.html")


def test_runs_on_other_classes_are_refused(make_run, folders, tmp_path):
    other = make_run(tmp_path / "other", classes=7)
    with pytest.raises(ReportError, match="has other classes than"):
        join([folders[0], other])


def test_a_paper_stands_beside(folders):
    file = folders[0] / "config.yaml"
    method = json.loads((folders[0] / "summary.json").read_text())["runs"][0]["method"]
    file.write_text(file.read_text() + f"paper: {{source: Table 3 <b>, accuracy: {{{method}: 0.25, x: 0.5}}}}\n")
    page = build(folders[0]).read_text()
    assert "Beside the paper" in page and "<td>25.0</td>" in page
    assert "Table 3 &lt;b&gt;" in page
    assert "Beside the paper" not in build(folders[1]).read_text()


def test_a_paper_names_methods_that_there_are():
    config = load_config(None, ["paper={source: Table 3, accuracy: {fedavg: 0.7}}"])
    assert config.paper is not None and config.paper.accuracy == {"fedavg": 0.7}
    with pytest.raises(ConfigError, match=r"accuracy.fedavgg: there is no method of this name.*did you mean 'fedavg'"):
        load_config(None, ["paper={source: Table 3, accuracy: {fedavgg: 0.7}}"])
    with pytest.raises(ConfigError, match=r"paper.accuracy: .*each to a finite number above 0 and of at most 1"):
        load_config(None, ["paper={source: Table 3, accuracy: {fedavg: 70}}"])
