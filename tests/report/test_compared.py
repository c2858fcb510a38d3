"""What a comparison in Python shows, and which arguments it refuses."""

import re
import sys
from typing import Any

import numpy as np
import pytest

from fedjax_bal import Evaluation, LocalTraining, Method, Participation, compare, optimizer, recipes
from fedjax_bal.testing import toy

pytestmark = pytest.mark.slow

NUMBER: Any = 3
METHODS = {"fedavg": recipes.fedavg(), "prox & <co>": recipes.fedprox(mu=0.0), "far": recipes.fedprox(mu=0.5)}


def compared(methods=METHODS, **changes):
    settings = {
        "seeds": [0, 1],
        "rounds": 3,
        "local": LocalTraining(batch_size=4, optimizer=optimizer("sgd", 0.1)),
        "participation": Participation(clients_per_round=3),
    }
    return compare(methods, toy.network(), toy.federation(), toy.test_set(), **{**settings, **changes})


@pytest.fixture(scope="module")
def result():
    return compared()


def test_it_prints_the_table_and_the_verdict(result):
    shown = repr(result)
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.startswith(result.table()) and re.search("accuracy", shown.removeprefix(result.table()))
    assert [line.split("  ")[0] for line in shown.splitlines() if line.startswith(tuple(METHODS))] == list(METHODS)
    assert max(map(len, result.table(width=40).splitlines())) <= 40
    html = result._repr_html_()
    assert html.count("<tr") == 1 + len(METHODS) and "prox &amp; &lt;co&gt;" in html and "<co>" not in html


def test_differences_are_paired(result):
    same = result.differences()["prox & <co>"]
    assert same[:4] == (0, 0, 0, 2)
    forth, back = result.differences(metric="final")["far"], result.differences("far", "final_accuracy")["fedavg"]
    finals = {(line["method"], line["seed"]): line["test_accuracy"] for line in result.history if line["round"] == 3}
    assert forth.mean == pytest.approx(np.mean([finals["far", s] - finals["fedavg", s] for s in (0, 1)])) == -back.mean


def test_it_gives_a_frame(result, monkeypatch):
    pandas = pytest.importorskip("pandas")
    frame = result.frame()
    assert len(frame) == 3 * 2 * 3 and {"method", "seed", "round", "test_accuracy"} <= set(frame)
    assert (
        frame.query("method == 'far' and seed == 1 and round == 3").test_loss.item() == result.history[-1]["test_loss"]
    )
    assert isinstance(frame, pandas.DataFrame)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        result.frame()


def test_it_draws_the_figures_of_the_report(result):
    axes = result.figure().axes[0]
    assert axes.get_xlabel() == "round" and result.figure("accuracy").axes[0].get_xlabel() == "round"
    assert result.figure("confusion")._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"figure: received 'clases'.*'classes'.*curves, .*confusion"):
        result.figure("clases")


def test_it_writes_tables_and_a_page(result, tmp_path):
    assert result.to_latex().count("\\\\") >= 4 and "prox \\& $<$co$>$" in result.to_latex()
    table = result.to_latex(["final", "worst_class"], bold=True)
    assert "Worst class" in table and "textbf" in table
    page = result.report(tmp_path / "mine.html")
    assert page.read_text().startswith("<!DOCTYPE html>") and (tmp_path / "mine-tables.csv").exists()
    with pytest.raises(ValueError, match=r"path: received None"):
        result.report()


def test_it_predicts_with_its_models(result):
    inputs, labels = toy.test_set()
    share = (result.predict(inputs, "far", 1) == labels).mean()
    assert share == pytest.approx(result.history[-1]["test_accuracy"])
    assert set(result.predict(inputs, "far", names=True)) <= {"0", "1", "2"}
    assert result.variables("far", 1).params["head"]["dense"]["kernel"].shape == (toy.FEATURES, toy.CLASSES)


def test_models_are_those_that_were_tested():
    """FedNCM changes the model for its evaluation."""
    result = compared({"fedncm": recipes.fedncm()}, seeds=1, evaluation=Evaluation(every=3))
    inputs, labels = toy.test_set()
    assert (result.predict(inputs) == labels).mean() == pytest.approx(result.history[-1]["test_accuracy"])


def test_names_that_it_lacks_are_refused(result):
    for call, message in [
        (lambda: result.differences("fedavgg"), r"baseline: received 'fedavgg'.*'fedavg'"),
        (lambda: result.differences(metric="worst_clas"), r"metric: received 'worst_clas'.*'worst_class'"),
        (lambda: result.to_latex(["finl"]), r"metrics: received 'finl'.*'final'"),
        (lambda: result.variables("far", 7), r"seed: received 7; allowed: 0, 1"),
        (lambda: result.predict(np.zeros((1, 3)), "far"), r"inputs: received \[1, 3\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": [recipes.fedavg()]}, r"methods: received \[.*by name"),
        ({"methods": {}}, r"methods: received \{\}"),
        ({"methods": {"fedavg": "fedavg"}}, r"methods: received 'fedavg'.*Method"),
        ({"methods": {" ": recipes.fedavg()}}, r"methods: received ' '"),
        ({"methods": {"a": Method(recipes.fedavg(), local=NUMBER)}}, r"methods: a: local: received 3"),
        ({"seeds": []}, r"seeds: received \[\]"),
        ({"seeds": [1, 1]}, r"seeds: received \[1, 1\]"),
        ({"seeds": 0}, r"seeds: received 0"),
        ({"seeds": [2**32]}, r"seeds: received \[4294967296\]"),
        ({"seeds": "two"}, r"seeds: received 'two'"),
        ({"rounds": 0}, r"rounds: received 0"),
        ({"target_accuracy": 60}, r"target_accuracy: received 60"),
        ({"early_stopping": 3}, r"early_stopping: received 3"),
        ({"evaluation": None}, r"evaluation: received None"),
        ({"variables": {}}, r"variables: "),
    ],
)
def test_arguments_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        compared(**changes)
