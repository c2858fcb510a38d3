"""A run that ends early: where, what it says, and that it goes on to the same end after an interruption."""

import json

import pytest
import small_run

from fedjax_bal.lab import Stopped

SETTING = (
    "methods=[{recipe: fedavg}]",
    "seeds=[0]",
    "training.rounds=40",
    "evaluation={every: 1, validation: {per_class: 20}, client_test: {fraction: 0.25}, personalised: 2}",
    # Nothing is ever so much better: the first round is the best, and the fourth the third without an improvement.
    "training.early_stopping={patience: 3, metric: validation_loss, min_delta: 50}",
    "execution.rounds_per_dispatch=3",
)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A folder with a run that was stopped early, and what was noted meanwhile."""
    path = tmp_path_factory.mktemp("ended") / "run"
    return path, small_run.run(path, small_run.config(path.parent, *SETTING))


def summary(path):
    return json.loads((path / "summary.json").read_text())


@pytest.mark.slow
def test_it_ends_with_the_dispatch_in_which_patience_runs_out(ended):
    path, display = ended
    assert [line["round"] for line in small_run.metrics(path)] == [1, 2, 3, 4, 5, 6]
    assert display.steps == [("fedavg", 0, 0), ("fedavg", 0, 3), ("fedavg", 0, 6), ("fedavg", 0, "ended")]
    run = summary(path)["runs"][0]
    assert summary(path)["finished"] is True
    assert (run["stopped_early"], run["rounds"]) == (6, 6)


@pytest.mark.slow
def test_the_summary_says_what_validation_chose_and_how_clients_do(ended):
    path, _ = ended
    lines, run = small_run.metrics(path), summary(ended[0])["runs"][0]
    best = min(lines, key=lambda line: line["validation_loss"])
    assert run["best_validation_round"] == best["round"]
    assert run["accuracy_at_best_validation"] == best["test_accuracy"]
    for key in ("balanced_accuracy", "worst_class_accuracy", "client_accuracy_worst10", "own_accuracy"):
        assert run[key] == lines[-1][key]
    noted = json.loads((path / "personalised" / "fedavg-seed-0.json").read_text())
    assert (noted["epochs"], noted["clients"], noted["diverged"]) == (2, 10, 0)
    assert run["personalised_accuracy"] == noted["personalised_accuracy"]
    # Two classes a client: after two epochs of its own data a model knows these far better than the global one.
    assert noted["personalised_accuracy"] > run["client_accuracy"] + 0.2


@pytest.mark.slow
def test_nothing_is_done_again(ended, tmp_path):
    path, _ = ended
    before = {file: file.read_bytes() for file in path.glob("*/*/*") if file.is_file()}
    lines = (path / "metrics.jsonl").read_bytes()
    display = small_run.run(path, small_run.config(tmp_path, *SETTING))
    assert display.steps == [("fedavg", 0, 6), ("fedavg", 0, "ended")]
    assert [note.partition(":")[0] for note in display.notes] == ["data", "training"]
    assert (path / "metrics.jsonl").read_bytes() == lines
    assert {file: file.read_bytes() for file in path.glob("*/*/*") if file.is_file()} == before


@pytest.mark.slow
def test_a_run_that_was_shorter_comes_to_the_same_end(ended, tmp_path):
    # Patience runs out in its last round, the fourth, which is inside a dispatch of the longer run.
    path = tmp_path / "run"
    small_run.run(path, small_run.config(tmp_path, *SETTING, "training.rounds=4"))
    small_run.run(path, small_run.config(tmp_path, *SETTING))
    assert small_run.metrics(path) == small_run.metrics(ended[0])
    assert summary(path)["runs"] == summary(ended[0])["runs"]


@pytest.mark.slow
def test_an_interrupted_run_comes_to_the_same_end(ended, tmp_path):
    path, wanted = tmp_path / "run", small_run.config(tmp_path, *SETTING)
    with pytest.raises(Stopped):
        small_run.run(path, wanted, should_stop=lambda: True)
    assert summary(path)["finished"] is False
    assert summary(path)["runs"][0]["stopped_early"] is None
    with pytest.raises(Stopped):  # with all rounds done, and the clients' own models still to be made
        small_run.run(path, wanted, should_stop=lambda: True)
    assert not (path / "personalised").exists()
    small_run.run(path, wanted)
    assert small_run.metrics(path) == small_run.metrics(ended[0])
    ours, theirs = ((x / "personalised" / "fedavg-seed-0.json").read_bytes() for x in (path, ended[0]))
    assert ours == theirs
