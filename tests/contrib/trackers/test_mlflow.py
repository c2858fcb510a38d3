"""What MLflow itself reads of tracked runs, from a folder."""

import time

import pytest
from remembering import run

from fedjax_bal.contrib.trackers import MLflow
from fedjax_bal.lab.trackers import Trackers


@pytest.fixture(autouse=True)
def mlflow(monkeypatch):
    module = pytest.importorskip("mlflow", reason="needs the extra [mlflow]")
    for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(name, "")  # set back after the test, with what the tracker sets
        monkeypatch.delenv(name)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return module


def lines(*rounds):
    return [{"round": n, "test_accuracy": n / 8, "per_class_accuracy": [n / 4, None], "wall_s": 0.5} for n in rounds]


def session(folder, *followed):
    printed = []
    trackers = Trackers({"mlflow": MLflow(folder)}, "mine", printed.append)
    for each in followed:
        trackers.recorded(each, 0.0)
    trackers.close()
    return printed


def stored(mlflow, folder):
    """The client, and the runs of the experiment by name."""
    client = mlflow.MlflowClient(str(folder / "mlflow"))
    found = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert len({each.info.run_name for each in found}) == len(found)
    return client, {each.info.run_name: each for each in found}


def curve(client, found, name="test_accuracy"):
    return [(metric.step, metric.value) for metric in client.get_metric_history(found.info.run_id, name)]


def test_a_resumed_run_continues_the_same_one_with_each_round_once(mlflow, tmp_path):
    first, second = run("fedavg", 0, lines(2, 4)), run("rebafl", 7, lines(2))
    (hint,) = session(tmp_path, first, second)
    assert str(tmp_path / "mlflow") in hint
    client, before = stored(mlflow, tmp_path)
    assert {each.info.status for each in before.values()} == {"FINISHED"}
    # Round 4 was trained again after a kill; the settings have more rounds.
    longer = run("fedavg", 0, lines(2, 4, 6), is_over=True)
    longer.settings = {"training": {"rounds": 60}}
    session(tmp_path, longer)
    client, found = stored(mlflow, tmp_path)
    assert found.keys() == {"fedavg, seed 0", "rebafl, seed 7"}
    mine = found["fedavg, seed 0"]
    assert mine.info.run_id == before["fedavg, seed 0"].info.run_id
    assert curve(client, mine) == [(2, 0.25), (4, 0.5), (6, 0.75)]
    assert curve(client, mine, "per_class_accuracy/0") == [(2, 0.5), (4, 1.0), (6, 1.5)]
    assert mine.data.params == {"training.rounds": "50", "seed": "0"}
    assert mine.data.tags["group"] == "fedavg"
    assert curve(client, found["rebafl, seed 7"]) == [(2, 0.25)]


def test_a_run_of_another_folder_is_another_run(mlflow, tmp_path):
    session(tmp_path, run(lines=lines(2)), run("fedavg", 0, lines(2), token="ffffffff"))
    client = mlflow.MlflowClient(str(tmp_path / "mlflow"))
    assert len(client.search_runs([client.get_experiment_by_name("mine").experiment_id])) == 2


def test_a_server_that_cannot_be_reached_is_named_soon(mlflow, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    began = time.monotonic()
    (warning,) = session(tmp_path, run(lines=lines(2)), run("rebafl", 7, lines(2)))
    assert "mlflow failed" in warning and "127.0.0.1" in warning
    assert time.monotonic() - began < 30
