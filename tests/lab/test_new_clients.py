"""New clients: training knows nothing of them, and the final model is tested and fine-tuned on each."""

import csv

import jax
import numpy as np
import pytest
import registered
import small_run
from rounding import FORMULA

import fedjax_bal
from fedjax_bal import LocalTraining, data, fine_tune, load_run, optimizer
from fedjax_bal.config import ConfigError
from fedjax_bal.lab import RunFolder, checkpoint
from fedjax_bal.lab.setup import SetupError, set_up
from fedjax_bal.report.terminal import results

USERS = 10
NAMES = tuple(f"clinic {letter}" for letter in "ABCDEFGHIJ")
CHANGES = (
    "dataset={name: visits}", "partition={scheme: natural, clients: all, seed: 3, new_clients: 0.2}",
    "model={name: mlp, hidden: [8]}", "selection.clients_per_round=3", "training.batch_size=50", "training.rounds=2",
    "lr=0.5",    "evaluation.every=2", "evaluation.new_client_epochs=20", "methods=[fedavg, fedper]", "seeds=[0]",
)  # fmt: skip
DRAWN = (*CHANGES[:1], "partition={scheme: iid, clients: 10, new_clients: 0.2}", *CHANGES[2:])


def clinics(*poisoned):
    """Visits of ten clinics, 12 to train on and 4 to test in each; those of some have the next class as label."""
    rng = np.random.default_rng(0)
    owners = np.arange(16 * USERS) % USERS
    labels = rng.integers(0, 3, len(owners))
    rows = rng.normal(size=(len(owners), 4)) + 2 * np.eye(3, 4)[labels]
    first = 12 * USERS
    wrong = np.isin(owners, poisoned) & (np.arange(len(owners)) < first)
    labels = np.where(wrong, (labels + 1) % 3, labels)
    dataset = data.from_arrays((rows[:first], labels[:first]), (rows[first:], labels[first:]))
    return dataset._replace(train_clients=owners[:first], test_clients=owners[first:], client_names=NAMES)


def plug_in():
    if "visits" not in data.DATASETS:
        fedjax_bal.register("dataset", "visits")(lambda: clinics())


@pytest.fixture(autouse=True)
def plugin():
    plug_in()
    yield
    registered.forget()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run."""
    plug_in()
    path = tmp_path_factory.mktemp("new_clients") / "run"
    small_run.run(path, small_run.config(path.parent, *CHANGES))
    return path


def new_names(setup):
    return setup.tuners[0].federation.client_names


def states(path):
    """The arrays of all last checkpoints, but the data's fingerprint."""
    files = [max(folder.iterdir()) for folder in sorted((path / "checkpoints").iterdir())]
    return [{name: array for name, array in checkpoint.read(file).items() if name != ".fingerprint"} for file in files]


def test_new_clients_are_left_out_and_drawn_by_the_partitions_seed(tmp_path):
    first = set_up(small_run.config(tmp_path, *CHANGES))
    for simulation in first.simulations:
        federation = simulation.federation
        assert federation.num_clients == 8 and len(federation.rows) == 8 * 12
        assert {*federation.client_names} | {*new_names(first)} == {*NAMES} and len(new_names(first)) == 2
    again = set_up(small_run.config(tmp_path, *CHANGES, "methods=[fedprox]", "seeds=[7]"))
    assert new_names(again) == new_names(first)
    others = {new_names(set_up(small_run.config(tmp_path, *CHANGES, f"partition.seed={seed}"))) for seed in range(4)}
    assert len(others) > 1
    assert first.rows_used[0].text.startswith(
        "visits: 96 of 120 rows, 8 of 10 users, 2 new after training; held back: "
    )


@pytest.mark.slow
def test_their_rows_never_influence_training(finished, tmp_path):
    names = new_names(set_up(small_run.config(tmp_path, *CHANGES)))
    poisoned = [NAMES.index(name) for name in names]
    registered.forget()
    fedjax_bal.register("dataset", "visits")(lambda: clinics(*poisoned))
    small_run.run(tmp_path / "run", small_run.config(tmp_path, *CHANGES))
    assert small_run.metrics(tmp_path / "run") == small_run.metrics(finished)
    for ours, theirs in zip(states(tmp_path / "run"), states(finished), strict=True):
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    before, after = (summary(path)["new_client_fine_tuned_accuracy"] for path in (finished, tmp_path / "run"))
    assert after < before  # but what they are fine-tuned on is theirs


def summary(path, method=0):
    return RunFolder(path).read_summary()["runs"][method]


@pytest.mark.slow
def test_the_final_model_is_tested_as_it_is_and_fine_tuned(finished):
    setup = set_up(small_run.config(finished.parent, *CHANGES))
    loaded = load_run(finished)
    for method, name in enumerate(("fedavg", "fedper")):
        new = setup.tuners[method].federation
        local = LocalTraining(batch_size=50, optimizer=optimizer("sgd", 0.5))
        variables = loaded.variables(name, seed=0)
        tested = fine_tune(setup.simulations[method].setting.model, variables, new, epochs=20, local=local)
        # A client's rows are one batch, so that their order makes no difference.
        found = summary(finished, method)
        assert found["new_client_accuracy"] == pytest.approx(tested.before.mean(), abs=FORMULA)
        assert found["new_client_fine_tuned_accuracy"] == pytest.approx(tested.after.mean(), abs=FORMULA)
        dataset, right = clinics(), []
        predicted = loaded.predict(dataset.test_images, name, seed=0)
        for client in new.client_names:
            own = dataset.test_clients == NAMES.index(client)
            right.append((predicted[own] == dataset.test_labels[own]).mean())
        assert right == pytest.approx(list(tested.before), abs=FORMULA)


@pytest.mark.slow
def test_clients_csv_and_the_terminal_mark_them(finished, tmp_path):
    with open(finished / "clients.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "fedavg"]
    names = new_names(set_up(small_run.config(tmp_path, *CHANGES)))
    assert [row["client"] for row in rows if row["new"] == "1"] == list(names) and len(rows) == USERS
    assert {(row["training_rows"], row["test_rows"]) for row in rows} == {("12", "4")}
    assert [bool(row["fine_tuned_accuracy"]) for row in rows] == [row["new"] == "1" for row in rows]
    tables = {table.title: table for table in results(finished)[0]}
    assert [row[0] for row in tables["New clients"].rows] == ["fedavg", "fedper"]
    shown = [row[0] for row in tables["Accuracy by client"].rows]
    assert shown[-2:] == [f"{name} (new)" for name in names]


@pytest.mark.slow
def test_a_finished_run_keeps_their_results(finished, tmp_path):
    before = {file.name: file.read_bytes() for file in (finished / "new-clients").iterdir()}
    small_run.run(finished, small_run.config(tmp_path, *CHANGES))
    assert before.keys() == {"fedavg-seed-0.json", "fedper-seed-0.json"}
    assert before == {file.name: file.read_bytes() for file in (finished / "new-clients").iterdir()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("partition.new_clients=0", "partition.new_clients: received 0"),
        ("partition.new_clients=1", "partition.new_clients: received 1"),
        ("partition.clients=1", "partition.new_clients: received 0.2 of 1 client"),
        (
            "selection.clients_per_round=9",
            "selection.clients_per_round: received 9, .* the 8 that partition.new_clients",
        ),
    ],
)
def test_what_leaves_too_few_clients_is_refused(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        small_run.config(tmp_path, *DRAWN, "evaluation.client_test.fraction=0.2", change)


def test_they_need_test_rows(tmp_path):
    with pytest.raises(SetupError, match=r"partition \(of fedavg\): new_clients: .*evaluation.client_test"):
        set_up(small_run.config(tmp_path, *DRAWN))
    setup = set_up(small_run.config(tmp_path, *DRAWN, "evaluation.client_test.fraction=0.2"))
    assert setup.simulations[0].federation.num_clients == 8 and setup.tuners[0].federation.num_clients == 2


def test_of_a_single_user_none_can_be_new(tmp_path):
    registered.forget()
    dataset = clinics()
    alone = dataset._replace(train_clients=0 * dataset.train_clients, test_clients=0 * dataset.test_clients)
    fedjax_bal.register("dataset", "visits")(lambda: alone)
    with pytest.raises(SetupError, match="partition.new_clients: received 0.2 and a federation of one client"):
        set_up(small_run.config(tmp_path, *CHANGES))
