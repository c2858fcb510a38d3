"""Several run folders on one page, and what a paper reports beside a run's own figures."""

import html
import json
import re
import shutil

import pytest
import yaml

from fedjax_bal.config import ConfigError, load_config
from fedjax_bal.lab import FolderError
from fedjax_bal.report import build, gallery
from fedjax_bal.report.comparison import build_comparison, join
from fedjax_bal.report.wording import NOTHING


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


@pytest.mark.slow
def test_the_page_compares_and_says_where_settings_differ(folders, tmp_path):
    page = build_comparison(folders, tmp_path / "out.html").read_text()
    assert "one/run: 0.05; two/run: 0.2" in page
    assert "training.optimizer.learning_rate" in page and "training.rounds" not in page
    assert "Accuracy by round" in page
    rows = (tmp_path / "out-tables.csv").read_text().splitlines()
    methods = [run["method"] for run in join(folders).summary["runs"]]
    assert {row.partition(",")[0] for row in rows[1:]} == set(methods) and rows[0].startswith("method,metric,n,mean")
    assert all(name in (tmp_path / "out-tables.tex").read_text().replace("\\_", "_") for name in methods)


@pytest.fixture
def undrawn(monkeypatch):
    """Leaves out the figures, which take seconds to draw."""
    monkeypatch.setattr(gallery, "draw", lambda run, origins=None: [])


def change(folder, **sections):
    """Changes some keys of sections in a run folder's configuration."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    for key, values in sections.items():
        config[key] = {**config.get(key, {}), **values}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def shown(page):
    """Headline and table of a page: the sentences, the heading of the differences, and each method's difference."""
    sentences = [html.unescape(text) for text in re.findall("<p class=verdict>(.*?)</p>", page)]
    heading = re.search('<th scope="col">(Difference from .*?)</th>', page)
    rows = re.findall('<th scope="row">(.*?)</th><td>.*?</td><td>(.*?)</td>', page)
    return sentences, heading and heading[1], {name.replace("<wbr>", ""): cell for name, cell in rows}


@pytest.mark.usefixtures("undrawn")
def test_methods_of_runs_on_other_data_are_not_paired(folders, tmp_path):
    page = build_comparison(folders, tmp_path / "out.html").read_text()
    alike = shown(page)
    assert "not on the same data" not in page
    assert alike[1] == "Difference from fedavg (one/run), points [95% interval]" and len(alike[0]) == 1
    change(folders[1], partition={"clients": 21})
    page = build_comparison(folders, tmp_path / "out.html").read_text()
    assert (
        "The runs are not on the same data (partition.clients): a difference between them is not due to the methods "
        "alone, so paired differences are given only between runs on the same data." in page
    )
    sentences, heading, cells = shown(page)
    assert heading == "Difference from the first method on the same data, points [95% interval]"
    assert cells == {**alike[2], "fedavg (two/run)": NOTHING, "rebafl (two/run)": cells["rebafl (one/run)"]}
    assert cells["fedavg (one/run)"] == NOTHING and cells["rebafl (one/run)"].startswith("+")
    assert [re.findall(r"\((?:one|two)/run\)", text) for text in sentences] == [3 * ["(one/run)"], 3 * ["(two/run)"]]
    assert sentences[1].startswith(
        "Among the 2 methods on the data of fedavg (two/run): rebafl (two/run) has the highest"
    )


@pytest.mark.usefixtures("undrawn")
def test_single_methods_on_other_data_have_no_differences_at_all(make_run, tmp_path):
    folders = [make_run(tmp_path / name, methods=("fedavg",)) for name in ("a", "b")]
    change(folders[1], evaluation={"validation": {"per_class": 5}})
    page = build_comparison(folders, tmp_path / "out.html").read_text()
    assert "(evaluation.validation.per_class): a difference" in page and "paired differences are left out." in page
    sentences, heading, _ = shown(page)
    assert heading is None and "percentage points" not in page and "tr class=best" not in page
    assert all(
        text.startswith(f"fedavg ({name}) reaches an accuracy of") for name, text in zip("ab", sentences, strict=True)
    )


@pytest.mark.usefixtures("undrawn")
def test_folders_that_share_data_are_paired_beside_one_that_does_not(make_run, tmp_path):
    folders = [make_run(tmp_path / name, methods=("fedavg",)) for name in "abc"]
    change(folders[1], dataset={"name": "mnist"})
    change(folders[2], training={"batch_size": 10})
    _, _, cells = shown(build_comparison(folders, tmp_path / "out.html").read_text())
    assert cells == {"fedavg (a)": NOTHING, "fedavg (c)": "+0.0 [+0.0, +0.0]", "fedavg (b)": NOTHING}


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_failed_is_told_with_its_reason_and_is_not_waited_for(folders, tmp_path):
    summary = json.loads((folders[0] / "summary.json").read_text())
    lost = dict.fromkeys(("final_accuracy", "last5_accuracy"))
    summary["runs"][-1] |= {"rounds": 3, "failure": "round 4: client 2 is <not> finite", **lost}
    (folders[0] / "summary.json").write_text(json.dumps({**summary, "finished": False}))
    both = build_comparison(folders, tmp_path / "out.html")
    for page, name in ((build(folders[0]), "rebafl"), (both, "rebafl (one/run)")):
        text = page.read_text()
        assert f"final accuracy: {name}, seed 2 (round 4: client 2 is &lt;not&gt; finite)." in text
        assert "not finished" not in text and "different numbers of rounds" not in text


@pytest.mark.usefixtures("undrawn")
def test_a_method_that_overrides_the_partition_is_on_other_data(folders, tmp_path):
    config = yaml.safe_load((folders[1] / "config.yaml").read_text())
    config["methods"][1]["partition"] = {"seed": 5}
    (folders[1] / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    page = build_comparison(folders, tmp_path / "out.html").read_text()
    assert "(methods.1.partition.seed): a difference" in page
    _, _, cells = shown(page)
    assert cells["rebafl (two/run)"] == NOTHING and cells["fedavg (two/run)"] == "+0.0 [+0.0, +0.0]"


BAD = [
    (lambda own: own[:1], "received 1 folder; a comparison takes 2 to 20 different ones"),
    (lambda own: [own[0], own[0]], "2 to 20 different ones"),
    (lambda own: [own[0], own[0].parent], "holds no run or sweep"),
]


@pytest.mark.parametrize(("pick", "message"), BAD, ids=[message for _, message in BAD])
def test_what_can_not_be_compared_is_told(folders, tmp_path, pick, message):
    with pytest.raises(FolderError, match=message):
        build_comparison(pick(folders), tmp_path / "out.html")


def test_a_sweep_is_not_compared_with_runs(folders, tmp_path):
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "sweep.yaml").write_text("sweep: []")
    with pytest.raises(
        FolderError, match="grid: is a sweep's folder, whose page compares its runs; give only folders of"
    ):
        build_comparison([*folders, tmp_path / "grid"], tmp_path / "out.html")


def test_runs_on_other_classes_are_refused(make_run, folders, tmp_path):
    other = make_run(tmp_path / "other", classes=7)
    with pytest.raises(FolderError, match="has other classes than"):
        join([folders[0], other])


@pytest.mark.slow
def test_a_paper_stands_beside(folders):
    file = folders[0] / "config.yaml"
    method = json.loads((folders[0] / "summary.json").read_text())["runs"][0]["method"]
    file.write_text(file.read_text() + f"paper: {{source: Table 3 <b>, accuracy: {{{method}: 0.25, x: 0.5}}}}\n")
    page = build(folders[0]).read_text()
    assert "Beside the paper" in page and "<td>25.0</td>" in page
    assert "Table 3 &lt;b&gt;" in page
    assert "Beside the paper" not in build(folders[1]).read_text()


def test_a_paper_may_have_more_methods_than_are_run():
    published = "paper={source: Table 3, accuracy: {fedavg: 0.7, fednova: 0.8, fedavg+moon: 0.9}}"
    assert load_config(None, ["methods=[fedavg]", published]).paper is not None


def test_a_method_that_is_wrong_is_not_missed_by_the_paper():
    published = "paper={source: Table 3, accuracy: {mine: 0.7}}"
    with pytest.raises(ConfigError) as caught:
        load_config(None, ["methods=[{recipe: fedprox, name: mine, mu: -1}]", published])
    assert "mu: received -1" in str(caught.value) and "paper" not in str(caught.value)


def test_a_suggested_name_may_have_capitals():
    mine = ["methods=[{recipe: fedavg, name: R-BSM}]", "paper={source: Table 3, accuracy: {R-BSN: 0.7}}"]
    with pytest.raises(ConfigError, match=r"accuracy.R-BSN: .*did you mean 'R-BSM'"):
        load_config(None, mine)


def test_a_paper_names_methods_that_there_are():
    config = load_config(None, ["paper={source: Table 3, accuracy: {fedavg: 0.7}}"])
    assert config.paper is not None and config.paper.accuracy == {"fedavg": 0.7}
    with pytest.raises(ConfigError, match=r"accuracy.fedavgg: there is no method of this name.*did you mean 'fedavg'"):
        load_config(None, ["paper={source: Table 3, accuracy: {fedavgg: 0.7}}"])
    with pytest.raises(ConfigError, match=r"paper.accuracy: .*each to a finite number above 0 and of at most 1"):
        load_config(None, ["paper={source: Table 3, accuracy: {fedavg: 70}}"])
