"""What of a base counts for other data or another partition."""

import pytest

from fedjax_bal.config import ConfigError, kept_by_methods, load_config, load_over_base, resolved_yaml, to_plain
from fedjax_bal.lab import load_sweep

OWN = "dataset={name: npz, path: mine.npz}"
PLAIN = "methods=[fedavg, rebafl]"
BASE = """
dataset: {name: mnist, mean: 0.5}
partition: {scheme: natural, clients: 30, choose: largest, imbalance_factor: 7, imbalance_order: random, seed: 3}
auxiliary: {per_class: 4}
selection: {clients_per_round: 25}
training: {rounds: 4, early_stopping: {patience: 2}, optimizer: {learning_rate: 0.3}}
availability: {name: trace, file: phones.csv}
evaluation: {every: 2, validation: {fraction: 0.1}, client_test: {fraction: 0.2}, target_accuracy: 0.9}
methods: [fedavg, {recipe: fedprox, partition: {imbalance_factor: 9}, training: {batch_size: 7}}]
paper: {source: Somebody, accuracy: {fedavg: 0.5}}
"""


def values(config):
    """What decides which rows and clients are used, in short."""
    partition, evaluation = config.partition, config.evaluation
    return {
        "scheme": partition.scheme,
        "clients": partition.clients,
        "factor": partition.imbalance_factor,
        "server": config.auxiliary.per_class,
        "cohort": config.selection.clients_per_round,
        "target": evaluation.target_accuracy,
    }


NEUTRAL = {"scheme": "dirichlet", "clients": 20, "factor": 1, "server": 0, "cohort": 10, "target": None}
QUICKSTART = NEUTRAL | {"factor": 50, "server": 10, "target": 0.6}

CASES = [
    ([], QUICKSTART),
    (["rounds=3", PLAIN], QUICKSTART),
    # The same data set or scheme, by whatever name, is no other one.
    (["dataset=Fashion_MNIST_small", "partition={scheme: LDA, alpha: 0.3}", PLAIN], QUICKSTART),
    ([OWN, PLAIN], NEUTRAL),
    ([OWN], NEUTRAL | {"server": 10}),  # flcir needs the server's rows
    ([OWN, "methods=[{recipe: [fedavg_ft]}]"], NEUTRAL | {"server": 10}),
    ([OWN, PLAIN, "partition=natural"], NEUTRAL | {"scheme": "natural", "clients": "all"}),
    (["partition=natural", PLAIN], QUICKSTART | {"scheme": "natural", "clients": "all", "factor": 1, "server": 0}),
    (["partition={scheme: iid}", PLAIN], QUICKSTART | {"scheme": "iid", "factor": 1, "server": 0}),
    (["partition=iid"], QUICKSTART | {"scheme": "iid", "factor": 1}),
    # What the user states counts, before or after the choice.
    (
        ["imbalance_factor=5", OWN, PLAIN, "clients=7", "clients_per_round=3"],
        NEUTRAL | {"factor": 5, "clients": 7, "cohort": 3},
    ),
    (
        ["partition={scheme: shards, imbalance_factor: 50}", "auxiliary.per_class=2", PLAIN],
        QUICKSTART | {"scheme": "shards", "server": 2},
    ),
    (
        ["partition={scheme: natural, clients: 9}", OWN, "target_accuracy=0.2", PLAIN],
        NEUTRAL | {"scheme": "natural", "clients": 9, "cohort": 9, "target": 0.2},
    ),
]


@pytest.mark.parametrize(("changes", "wanted"), CASES)
def test_other_data_over_the_quickstart_start_from_neutral_defaults(tmp_path, monkeypatch, changes, wanted):
    monkeypatch.chdir(tmp_path)
    if any("shards" in change for change in changes):
        changes = [*changes, "partition.shards_per_client=2"]
    found = [load_config(None, changes), load_config("quickstart", changes)]
    assert [values(config) for config in found] == [wanted] * 2
    assert load_config(written(tmp_path, resolved_yaml(found[0]))) == found[0]  # a run folder's keys are stated


def written(folder, text, name="mine.yaml"):
    """A configuration's file."""
    (folder / name).write_text(text)
    return folder / name


IN_FILES = [
    ("dataset: {name: npz, path: mine.npz}", NEUTRAL),
    ("dataset: {name: npz, path: mine.npz}\npartition: natural", NEUTRAL | {"scheme": "natural", "clients": "all"}),
    ("partition: {scheme: iid}", QUICKSTART | {"scheme": "iid", "factor": 1, "server": 0}),
    ("partition: {scheme: iid, imbalance_factor: 4}", QUICKSTART | {"scheme": "iid", "factor": 4, "server": 0}),
    ("partition: {alpha: 0.1}", QUICKSTART),
]


@pytest.mark.parametrize(("text", "wanted"), IN_FILES)
def test_so_they_do_in_files(tmp_path, text, wanted):
    file = written(tmp_path, f"base: quickstart\nmethods: [fedavg]\n{text}\n")
    assert values(load_config(file)) == wanted
    # The command line counts as the file does, and a file over this one brings only what it states.
    assert values(load_config(written(tmp_path, f"base: {file.name}\nseeds: 2\n", "two.yaml"))) == wanted


def test_keys_that_a_users_own_file_states_stay_with_other_data_on_the_command_line(tmp_path):
    text = "partition: {scheme: iid, clients: 7, imbalance_factor: 9}\nauxiliary: {per_class: 3}\nmethods: [fedavg]\n"
    file = written(tmp_path, f"base: quickstart\n{text}selection: {{clients_per_round: 2}}\n")
    stated = values(load_config(file, [OWN, "partition=quantity"]))
    assert stated == NEUTRAL | {"scheme": "quantity", "clients": 7, "factor": 9, "server": 3, "cohort": 2}


def test_all_that_a_base_says_about_its_data_is_left_out_and_named(tmp_path):
    written(tmp_path, BASE, "base.yaml")
    file = written(tmp_path, f"base: base.yaml\n{OWN.replace('=', ': ', 1)}\n")
    config, _ = load_over_base(file)
    assert values(config) == NEUTRAL and config.paper is None and config.partition.seed == 0
    assert config.availability.name == "always" and config.dataset.parameters["mean"] == "own"
    assert not config.evaluation.validation.wanted and not config.evaluation.client_test.wanted
    assert config.training.early_stopping.patience is None
    assert config.methods[1].overrides == {"training": {"batch_size": 7}}
    assert load_config(file, ["methods=[fedprox]"]).methods == config.methods[1:]
    # What is not about the data stays.
    assert (config.training.rounds, config.training.optimizer.learning_rate, config.evaluation.every) == (4, 0.3, 2)

    config, named = load_over_base(written(tmp_path, "base: base.yaml\npartition: iid\n"))
    assert named == [
        "partition.imbalance_factor=7",
        "partition.imbalance_order='random'",
        "auxiliary.per_class=4",
        "paper",
    ]
    assert (config.partition.clients, config.partition.seed, config.evaluation.target_accuracy) == (30, 3, 0.9)


OWN_RATE = ("astraea", "rebafl")  # methods of the quickstart with a learning rate of their own


@pytest.mark.parametrize(
    ("text", "overrides", "kept", "lost"),
    [
        (
            "training: {optimizer: {learning_rate: 0.2}}",
            [],
            ["astraea learning_rate=0.03", "rebafl learning_rate=0.03"],
            [],
        ),
        ("lr: 0.2", ["lr=0.03", "methods=[fedavg, rebafl]"], [], []),
        ("methods: [fedavg, rebafl, {recipe: astraea, size: 3}]", ["rounds=3"], [], ["rebafl learning_rate=0.03"]),
        ("methods: [fedavg, rebafl]", ["methods=[fedavg]"], [], []),
        ("lr: 0.03\nmethods: [rebafl]", [], [], []),
    ],
)
def test_settings_of_the_bases_methods_that_count_or_do_not_are_named(tmp_path, text, overrides, kept, lost):
    file = tmp_path / "mine.yaml"
    file.write_text(f"base: quickstart\n{text}\n")
    assert kept_by_methods(load_config(file, overrides), file, overrides) == (kept, lost)
    file.write_text("base: more.yaml\nmethods: [fedprox]\n")


def test_a_hyperparameter_that_a_plain_name_loses_is_named(tmp_path):
    (tmp_path / "more.yaml").write_text("base: quickstart\nmethods: [{recipe: fedprox, mu: 0.2}]\n")
    file = tmp_path / "mine.yaml"
    file.write_text("base: more.yaml\nmethods: [fedprox]\n")
    assert kept_by_methods(load_config(file), file, []) == ([], ["fedprox mu=0.2"])


SWEPT = [
    ("partition.scheme: [dirichlet, iid]", {"factor": 1, "server": 0}),  # both points, as they are compared
    ("partition: [{scheme: iid}, {scheme: iid, seed: 1}]", {"factor": 1, "server": 0}),
    ("partition.seed: [0, 1]", {"factor": 50, "server": 10}),
    ("dataset.name: [fashion_mnist_small, mnist]", {"factor": 1, "server": 0, "target": None}),
    ("partition.imbalance_factor: [2, 2.0000001]", {"server": 10}),
]


@pytest.mark.parametrize(("axis", "wanted"), SWEPT)
def test_an_axis_chooses_for_all_points(tmp_path, axis, wanted):
    file = written(tmp_path, f"base: quickstart\nmethods: [fedavg]\nsweep:\n  - {axis}\n")
    points = [values(point.config) for point in load_sweep(file).points]
    assert [{key: point[key] for key in wanted} for point in points] == [wanted] * 2
    again = load_sweep(written(tmp_path, load_sweep(file).text, "again.yaml"))
    assert [values(point.config) for point in again.points] == points  # the written-out sweep is the same


def test_the_command_line_chooses_for_a_sweep_too(tmp_path):
    sweep = load_sweep("sweeps/clients", [OWN, "methods=[fedavg]"])
    assert {point.config.partition.imbalance_factor for point in sweep.points} == {1}
    own = written(tmp_path, "base: quickstart\nmethods: [fedavg]\nsweep: [{training.rounds: [1, 2]}]\n")
    sweep = load_sweep(own, ["partition=iid"])
    assert [values(point.config)["factor"] for point in sweep.points] == [1, 1]
    assert sweep.left_out == ("partition.imbalance_factor=50", "auxiliary.per_class=10")


def test_messages_are_about_what_the_user_states():
    with pytest.raises(ConfigError, match="partition.classes_per_client: unknown key for dirichlet"):
        load_config("papers/rebafl/table1_c10_m20", ["dataset=mnist", "partition.classes_per_client=3"])
    assert to_plain(load_config("papers/rebafl/table1_c10_m20"))["partition"]["classes_per_client"] == 2
