"""Results by client: the file in a run's folder, with the names of a natural partition's users."""

import csv
import json

import numpy as np
import pytest
import registered
import small_run
from rounding import FORMULA
from typer.testing import CliRunner

import fedjax_bal
from fedjax_bal import data, load_run
from fedjax_bal.cli.app import app
from fedjax_bal.lab import ClientResults, RunFolder, Stopped
from fedjax_bal.lab.setup import SetupError, set_up
from fedjax_bal.report import gallery, write_run_page

NAMES = ("Mainz", "=Jena", "007", "Köln, Süd")
CHANGES = (
    "dataset={name: visits}", "partition={scheme: natural, clients: all, seed: 0}", "selection.clients_per_round=3",
    "methods=[{recipe: fedavg}, {recipe: fedper}]", "training.rounds=4", "evaluation.every=2", "seeds=[0, 1]",
)  # fmt: skip


def visits():
    """Patients of four hospitals, the last of which has no test rows."""
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    rows = rng.normal(size=(90, 4)) + 2 * np.eye(3, 4)[labels]
    owners = np.repeat([2, 0, 1, 3, 1, 0, 2], [20, 15, 15, 10, 8, 7, 15])
    dataset = data.from_arrays((rows[:60], labels[:60]), (rows[60:], labels[60:]), class_names=["a", "b", "c"])
    return dataset._replace(train_clients=owners[:60], test_clients=owners[60:], client_names=NAMES)


def plug_in():
    if "visits" not in data.DATASETS:
        fedjax_bal.register("dataset", "visits")(visits)


@pytest.fixture(autouse=True)
def plugin():
    plug_in()
    yield
    registered.forget()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run."""
    plug_in()
    path = tmp_path_factory.mktemp("by_client") / "run"
    small_run.run(path, small_run.config(path.parent, *CHANGES))
    return path


def table(path):
    with open(path / "clients.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_each_client_has_the_accuracy_of_the_model_that_it_uses(finished):
    rows = table(finished)
    assert [*rows[0]] == [
        "method",
        "seed",
        "client",
        "training_rows",
        "test_rows",
        "accuracy",
        "balanced_accuracy",
        "fine_tuned_accuracy",
        "new",
    ]
    assert [(row["method"], row["seed"]) for row in rows[::4]] == [(m, s) for s in "01" for m in ("fedavg", "fedper")]
    sizes = [(row["client"], row["training_rows"], row["test_rows"]) for row in rows[:4]]
    assert sizes == [("Mainz", "15", "7"), ("'=Jena", "15", "8"), ("007", "20", "15"), ("Köln, Süd", "10", "0")]
    run, dataset = load_run(finished), visits()
    right = run.predict(dataset.test_images, "fedavg", seed=1) == dataset.test_labels
    clients = run.clients()
    assert list(clients["client"][:4]) == list(NAMES)
    wanted = (np.asarray(clients["method"]) == "fedavg") & (np.asarray(clients["seed"]) == 1)
    accuracies = np.asarray(clients["accuracy"])[wanted]
    means = np.asarray(clients["balanced_accuracy"])[wanted]
    for user in range(3):
        own = dataset.test_clients == user
        assert accuracies[user] == pytest.approx(right[own].mean(), abs=FORMULA)
        recalls = [right[own & (dataset.test_labels == label)].mean() for label in np.unique(dataset.test_labels[own])]
        assert means[user] == pytest.approx(np.mean(recalls), abs=FORMULA)
    assert np.isnan(accuracies[3]) and np.isnan(means[3]) and rows[3]["accuracy"] == ""
    last = next(line for line in small_run.metrics(finished)[::-1] if (line["method"], line["seed"]) == ("fedper", 1))
    assert [row["accuracy"] and round(float(row["accuracy"]), 4) for row in rows[-4:]] == [
        "" if value is None else value for value in last["client_accuracies"]
    ]


@pytest.mark.slow
def test_interrupted_runs_and_further_seeds_write_the_same_rows(finished, tmp_path):
    path = tmp_path / "run"
    first = small_run.config(tmp_path, *CHANGES[:-1], "seeds=[0]")
    with pytest.raises(Stopped):
        small_run.run(path, first, should_stop=small_run.stop_after(3))
    assert {row["method"] for row in table(path)} == {"fedavg", "fedper"}
    small_run.run(path, first)
    assert table(path) == table(finished)[:8]
    small_run.run(path, small_run.config(tmp_path, *CHANGES))
    assert (path / "clients.csv").read_bytes() == (finished / "clients.csv").read_bytes()


@pytest.mark.slow
def test_names_stand_in_the_terminal_and_on_the_page(finished, monkeypatch):
    monkeypatch.setattr(gallery, "run_figures", lambda run: [])  # pictures are no matter here, and take their time
    small = str(finished.parent / "small.yaml")
    result = CliRunner().invoke(app, ["run", small, *CHANGES, "--out", str(finished), "--plain"])
    assert result.exit_code == 0, result.output
    shown = [line.split() for line in result.output.splitlines() if line.strip().startswith("Köln, Süd")]
    assert [line[2:4] for line in shown] == [["10", "0"]]
    of_clients = result.output.partition("\nClients\n")[2].partition("Accuracy by client")[0].splitlines()
    for method in ("fedavg", "fedper"):  # both seeds have the same clients with test rows
        known = [float(row["accuracy"]) for row in table(finished) if row["method"] == method and row["accuracy"]]
        (line,) = (line.split() for line in of_clients if line.strip().startswith(method))
        assert line[1] == f"{100 * np.mean(known):.1f}"
    page = write_run_page(finished).read_text()
    assert "images" not in page.partition("<h2")[2].partition("All settings")[0].replace("data:image", "")
    assert all(name in page for name in ("Mainz", "=Jena", "Köln, Süd"))


def run_of(seed, names, accuracies):
    accuracies = np.array(accuracies)
    sizes, new = np.arange(len(names)), np.arange(len(names)) == 1
    return ClientResults("a", seed, names, sizes, sizes**0, accuracies, accuracies, 1 - accuracies, new)


def test_what_is_written_is_read_again(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.read_clients() == []
    names = ("'=1+1", "-5", "+x", 'a,"b"', "", "1e5", "two\nlines")
    folder.write_clients([run_of(0, names, [0.5, np.nan, 1, 0, 0.25, 1 / 3, 0]), run_of(7, ("x",), [1.0])])
    first, second = folder.read_clients()
    assert first.names == names and first.named and (second.seed, second.names) == (7, ("x",))
    np.testing.assert_array_equal(first.accuracy, [0.5, np.nan, 1, 0, 0.25, 0.333333, 0])
    np.testing.assert_array_equal(first.fine_tuned_accuracy, [0.5, np.nan, 0, 1, 0.75, 0.666667, 1])
    assert np.flatnonzero(first.new).tolist() == [1] and first.labels[:2] == ("'=1+1", "-5 (new)")
    assert (first.training_rows.tolist(), first.training_rows.dtype) == (list(range(7)), int)
    assert not run_of(0, ("0", "1"), [0, 0]).named


@pytest.mark.slow
def test_fine_tuned_models_are_tested_on_the_rows_of_users(tmp_path):
    changes = (*CHANGES, "methods=[fedavg]", "seeds=[0]", "evaluation.personalised=2")
    small_run.run(tmp_path / "run", small_run.config(tmp_path, *changes))
    noted = json.loads((tmp_path / "run" / "personalised" / "fedavg-seed-0.json").read_text())
    assert noted["clients"] == 3 and noted["accuracies"][3] is None
    assert 0.5 < noted["personalised_accuracy"] <= 1
    with pytest.raises(SetupError, match="personalised: received 2 and .* no test rows"):
        set_up(small_run.config(tmp_path, *changes, "partition={scheme: iid, clients: 4}"))
