"""A base is inherited key by key, and the same keys give the same run on the command line and in a file."""

import numpy as np
import pytest
import small_run
from rounding import SUM

from fedjax_bal import data, models, recipes, simulate
from fedjax_bal.config import ConfigError, load_config, resolved_yaml, to_plain
from fedjax_bal.config.schema import DatasetSection
from fedjax_bal.lab import load_sweep

OWN = "dataset={name: npz, path: mine.npz}"
PLAIN = "methods=[fedavg, rebafl]"
BASE = """
dataset: {name: mnist, mean: 0.5}
partition: {scheme: natural, clients: 30, choose: largest, imbalance_factor: 7, imbalance_order: random, seed: 3}
auxiliary: {per_class: 4}
selection: {clients_per_round: 25}
training: {rounds: 4, early_stopping: {patience: 2}, optimizer: {learning_rate: 0.3, momentum: 0.5}}
availability: {name: bernoulli, p: 0.5}
evaluation: {every: 2, validation: {fraction: 0.1}, client_test: {fraction: 0.2}, target_accuracy: 0.9}
methods: [fedavg, {recipe: fedprox, partition: {imbalance_factor: 9}, training: {optimizer: {learning_rate: 0.7}}}]
paper: {source: Somebody, accuracy: {fedavg: 0.5}}
"""


def written(folder, text, name="mine.yaml"):
    """A configuration's file."""
    (folder / name).write_text(text)
    return folder / name


# The same keys at every door.

SAME = {
    "a table": [OWN, "partition=natural", "model=mlp", PLAIN],
    "another set": ["dataset=mnist", PLAIN, "seeds=3", "clients=7"],
    "an option": ["momentum=0.9", "dataset=letter", "methods=[{recipe: fedprox, mu: 0.2}]", "rounds=3"],
    "another optimizer": ["dataset=letter", "methods=[fedavg]", "optimizer={name: adam, learning_rate: 0.001}"],
    "a long tail": ["dataset=letter", "methods=[fedavg]", "imbalance_factor=9", "auxiliary.per_class=2"],
}


@pytest.mark.parametrize("case", SAME)
def test_the_same_keys_on_the_command_line_and_in_a_file_are_the_same_configuration(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = SAME[case]
    from_line = load_config(None, changes, needs=False)
    file = written(tmp_path, "\n".join(change.replace("=", ": ", 1) for change in changes), f"{from_line.name}.yaml")
    assert resolved_yaml(load_config(file, needs=False)) == resolved_yaml(from_line)
    # So do the first key in a file and the others on the command line.
    half = written(tmp_path, f"name: {from_line.name}\n{changes[0].replace('=', ': ', 1)}\n")
    assert resolved_yaml(load_config(half, changes[1:], needs=False)) == resolved_yaml(from_line)


def test_what_a_run_on_other_data_starts_from():
    config = load_config(None, ["dataset=mnist", "methods=[fedavg, rebafl]"])
    assert (config.name, config.seeds, config.auxiliary.per_class) == ("mnist", (0,), 0)
    partition, training = config.partition, config.training
    assert (partition.scheme, partition.clients, partition.imbalance_factor) == ("dirichlet", 20, 1)
    assert (training.rounds, training.local_epochs, training.batch_size) == (50, 1, 50)
    assert [method.training.optimizer.learning_rate for method in config.methods] == [0.05, 0.05]
    assert (config.selection.clients_per_round, config.evaluation.target_accuracy) == (10, None)
    assert load_config(None, ["dataset=mnist", "partition=natural", "methods=fedavg"]).partition.clients == "all"


@pytest.mark.parametrize(
    "changes", [[], ["rounds=3"], ["dataset=Fashion_MNIST_small"], ["dataset={mean: 0.5, std: 1}"], ["partition=iid"]]
)
def test_without_other_data_it_is_the_quickstart(changes):
    assert load_config(None, changes) == load_config("quickstart", changes)
    assert load_config(None, changes).partition.imbalance_factor == 50
    assert load_config("quickstart").dataset.name == DatasetSection.default().name


def test_methods_are_asked_for_and_rows_of_the_server_too():
    with pytest.raises(ConfigError, match="^command line: methods: missing, .* such as fedavg"):
        load_config(None, ["dataset=mnist"])
    with pytest.raises(ConfigError, match=r"^command line: methods.0: flcir: .*auxiliary\.per_class"):
        load_config(None, ["dataset=mnist", "methods=flcir"])


# Bases.


def test_a_base_brings_all_its_keys_whatever_data_are_chosen(tmp_path):
    base = load_config(written(tmp_path, BASE, "base.yaml"))
    other = load_config(written(tmp_path, "base: base.yaml\ndataset: {name: letter}\nname: base\n"))
    theirs, ours = to_plain(base), to_plain(other)
    assert ours.pop("dataset")["name"] == "letter" and theirs.pop("dataset")
    for config in (theirs, ours):
        config.pop("paper"), config.pop("methods")
    assert ours == theirs
    # Constants of pixels are the data set's parameters, and go with it.
    assert other.dataset.parameters["mean"] != 0.5
    assert [method.partition.imbalance_factor for method in other.methods] == [7, 9]
    assert load_config(written(tmp_path, "base: mine.yaml\n", "two.yaml")).partition == base.partition


def test_another_scheme_drops_the_parameters_of_the_former_one_alone(tmp_path):
    written(tmp_path, BASE, "base.yaml")
    partition = load_config(written(tmp_path, "base: base.yaml\npartition: {scheme: iid}\n")).partition
    assert (partition.scheme, partition.clients, partition.imbalance_factor, partition.seed) == ("iid", 30, 7, 3)
    assert "choose" not in partition.parameters


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("dataset: {name: letter}", {"dataset.name": "mnist"}),
        ("partition: {scheme: iid}", {"partition.scheme": "natural"}),
        ("rounds: 5", {"training.rounds": 4}),
    ],
)
def test_a_papers_results_come_along_with_what_is_not_as_in_the_paper(tmp_path, text, setting):
    written(tmp_path, BASE, "base.yaml")
    paper = load_config(written(tmp_path, f"base: base.yaml\n{text}\n")).paper
    assert paper.accuracy == {"fedavg": 0.5} and setting.items() <= paper.setting.items()
    assert bool(paper.setting) == bool(setting)


def test_a_sweep_of_a_base_has_its_keys_at_every_point(tmp_path):
    file = written(tmp_path, "base: quickstart\nmethods: [fedavg]\nsweep: [{partition.scheme: [dirichlet, iid]}]\n")
    sweep = load_sweep(file)
    assert [point.config.partition.imbalance_factor for point in sweep.points] == [50, 50]
    again = load_sweep(written(tmp_path, sweep.text, "again.yaml"))
    assert [point.config for point in again.points] == [point.config for point in sweep.points]


# Rates belong to an optimizer.

ANOTHER = "training: {optimizer: {name: %s}}"
USUAL = {"adam": 0.001, "adamw": 0.001, "rmsprop": 0.001, "adagrad": 0.01, "lion": 0.0001, "sgd": 0.05}


@pytest.mark.parametrize("name", [name for name in USUAL if name != "sgd"])
def test_another_optimizer_needs_its_own_rate_and_the_usual_one_is_named(tmp_path, name):
    alone = written(tmp_path, f"methods: [fedavg]\n{ANOTHER % name}\n")
    over = written(tmp_path, f"base: absent_clients\nmethods: [fedavg]\n{ANOTHER % name}\n", "over.yaml")
    line = f"optimizer={name}"
    for path, changes in ((alone, []), (over, []), (None, [line]), (None, [line, "dataset=mnist", "methods=fedavg"])):
        with pytest.raises(ConfigError, match=rf"optimizer\.name: received '{name}' without a learning_rate") as error:
            load_config(path, changes)
        assert f"{{name: {name}, learning_rate: {USUAL[name]:g}}}" in str(error.value)
        for rate in ("learning_rate=0.02", "lr=0.02"):
            for order in ([rate, *changes], [*changes, rate]):
                methods = [] if "methods=fedavg" in order else ["methods=fedavg"]
                assert load_config(path, [*order, *methods]).training.optimizer.learning_rate == 0.02


def test_the_servers_optimizer_and_that_of_a_method_need_theirs():
    with pytest.raises(ConfigError, match=r"server_optimizer\.name: received 'yogi' without.*learning_rate: 0\.01\}"):
        load_config(None, ["server_optimizer=yogi"])
    entry = "methods=[{recipe: fedavg, training: {optimizer: %s}}]"
    with pytest.raises(ConfigError, match=r"methods\.0\.training\.optimizer\.name: received 'adam' without"):
        load_config(None, [entry % "adam"])
    config = load_config(None, [entry % "{name: adam, learning_rate: 0.002}"])
    assert config.methods[0].training.optimizer.learning_rate == 0.002


def test_a_methods_own_rate_stays_whatever_optimizer_all_methods_have():
    changes = ["optimizer={name: adam, learning_rate: 0.001}", PLAIN]
    chosen = [method.training.optimizer for method in load_config(None, changes).methods]
    assert [(each.name, each.learning_rate) for each in chosen] == [("adam", 0.001), ("adam", 0.03)]


@pytest.mark.slow
@pytest.mark.parametrize("clients", [6, 13])  # fewer and more than take part in a round
def test_the_same_keys_in_a_file_and_in_python_train_to_the_same_numbers(tmp_path, monkeypatch, clients):
    monkeypatch.chdir(tmp_path)
    numbers = np.random.default_rng(0).normal(size=(130, 3))
    rows = (f"{row % clients},{row // 3 % 3},{','.join(map(str, values))}" for row, values in enumerate(numbers))
    (tmp_path / "table.csv").write_text("\n".join(["user,kind,a,b,c", *rows]))
    options = {"path": "table.csv", "label": "kind", "clients": "user"}
    listed = ", ".join(f"{key}: {value}" for key, value in {"name": "csv", **options}.items())
    keys = [f"dataset={{{listed}}}", "partition=natural", "model=mlp", "rounds=3"]
    written(tmp_path, "\n".join(change.replace("=", ": ", 1) for change in [*keys, "methods: [fedavg, rebafl]"]))

    small_run.run(tmp_path / "run", load_config("mine.yaml"))
    lines = small_run.metrics(tmp_path / "run")
    found = [(line["method"], line["round"], line["test_accuracy"], line["test_loss"]) for line in lines]
    dataset = data.load("csv", **options)
    shards = [np.flatnonzero(dataset.train_clients == user) for user in range(clients)]
    given = models.build("mlp", 3, (3,)), data.federate(dataset, shards), (dataset.test_images, dataset.test_labels)
    in_python = []
    for recipe in (recipes.fedavg(), recipes.rebafl()):
        history = simulate(recipe, *given, rounds=3, seed=0).history
        in_python += [(recipe.name, line["round"], line["test_accuracy"], line["test_loss"]) for line in history]
    for ours, theirs in zip(sorted(found), sorted(in_python), strict=True):
        assert ours[:2] == theirs[:2] and ours[2:] == pytest.approx(theirs[2:], rel=SUM)
