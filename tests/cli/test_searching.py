"""The command `search`: from a configuration to the best values, compared on seeds that the search didn't use."""

import json
import re
import shlex

import pytest
import small_run
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.cli.arguments import split_arguments
from fedjax_bal.config import load_config
from fedjax_bal.lab import RunFolder

WORDS = ["search", "small.yaml", "methods=fedavg,fedprox", "hidden=[8]", "rounds=2", "evaluation.every=1", "seeds=2"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(small_run.TEXT)
    return tmp_path


def invoke(*words):
    return CliRunner().invoke(app, [*words, "--plain", "--devices", "1"])


@pytest.mark.slow
def test_a_search_ends_with_a_comparison_on_other_seeds(here):
    words = [*WORDS, "lr=0.1..0.3:log", "mu=0..1", "--trials", "4"]  # the configuration's rate is below the range
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    best = here / "runs/small-search/best-of-4"
    metrics = [json.loads(line) for line in (best / "metrics.jsonl").read_text().splitlines()]
    assert {line["method"] for line in metrics} >= {"fedavg", "fedprox"}
    assert {line["seed"] for line in metrics} == {0, 1}
    for method in ("fedavg", "fedprox"):
        for point in (here / "runs/small-search/trials" / method / "points").iterdir():
            lines = [json.loads(line) for line in (point / "metrics.jsonl").read_text().splitlines()]
            assert {line["seed"] for line in lines} == {1000}
            assert load_config(point / "config.yaml", recorded=True).partition_seeds == (1000,)
    # The command at the end trains the methods with their best values.
    [command] = re.findall("to train with the best values: fedjax-bal run (.*)", result.stdout)
    again = load_config(*split_arguments(shlex.split(command)))
    compared = load_config(best / "config.yaml", recorded=True)
    # The first of a name is the one at its best.
    tuned = {method.name.removesuffix("-tuned"): method for method in reversed(compared.methods)}
    for method in again.methods:
        assert method.training == tuned[method.name].training
        assert method.recipes == tuned[method.name].recipes
    # The same command trains nothing, and says the same.
    before = {file: file.read_bytes() for file in here.glob("runs/**/metrics.jsonl")}
    repeated = invoke(*words)
    table = lambda text: text[text.index("method  ") :].split("the comparison")[0]
    assert repeated.exit_code == 0 and table(repeated.stdout) == table(result.stdout)
    assert {file: file.read_bytes() for file in here.glob("runs/**/metrics.jsonl")} == before
    assert RunFolder(best).exists() and not (here / "runs/small-search-2").exists()


@pytest.mark.parametrize(
    ("words", "parts"),
    {
        "a metric of the test set": (["lr=0.1..1", "--metric", "test_accuracy"], ["--metric", "test_accuracy"]),
        "no key": ([], ["no key to search"]),
        "quiet and verbose": (["lr=0.1..1", "-q", "-v"], ["--quiet"]),
    }.values(),
)
def test_what_is_wrong_is_said_before_anything_is_written(here, words, parts):
    result = invoke(*WORDS, *words)
    assert result.exit_code == 2 and all(part in result.stderr for part in parts), result.output
    assert not (here / "runs").exists()


def test_a_missing_optuna_is_named(here, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = invoke(*WORDS, "lr=0.1..1")
    assert result.exit_code == 2 and "pip install optuna" in result.stderr


@pytest.mark.slow
def test_own_values_that_are_the_best_are_compared_with_nothing(here):
    result = invoke(*WORDS[:2], *WORDS[3:], "methods=fedavg", "lr=0.05..0.06", "--trials", "1")
    assert result.exit_code == 0 and "nothing to compare" in result.stdout
    assert not (here / "runs/small-search/best-of-1").exists()
