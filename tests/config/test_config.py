"""Configurations: what is accepted, what is refused and in which words, and that text and object agree."""

import math
import re
from pathlib import Path

import pytest
import registered
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedjax_bal.annotations import Share, describe_type, parameters
from fedjax_bal.config import (
    Config,
    ConfigError,
    builtin_configs,
    config_digest,
    continues,
    differences,
    load_config,
    resolved_yaml,
    run_digest,
)
from fedjax_bal.config.explain import find_keys, json_schema, key_references
from fedjax_bal.config.yaml_text import dump_yaml, parse_yaml, read_yaml
from fedjax_bal.optim import optimizers
from fedjax_bal.recipes import RECIPES
from fedjax_bal.registry import PLUGINS, Plugin, Registry

FILE = Path(__file__).parents[2] / "configs" / "absent_clients.yaml"
BUILTIN = FILE.stem
TEXT = FILE.read_text(encoding="utf-8")
CLI = "command line: "


def refusal(path, overrides=()):
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    message = str(caught.value)
    for jargon in ("pydantic", "http", "Traceback", "type=", "BeforeValidator"):
        assert jargon not in message
    return message


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "my.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def reloaded(config, write):
    return load_config(write(resolved_yaml(config)))


# What is accepted.


def test_a_built_in_configuration_is_the_file_in_configs():
    config = load_config(BUILTIN)
    assert config == load_config(str(FILE)) == load_config(FILE)
    assert load_config(None) == load_config(FILE.with_name("quickstart.yaml"))
    assert (config.name, config.seeds) == ("absent_clients", (0, 1, 2))
    assert config.partition.parameters["classes_per_client"] == 2
    assert (config.partition.clients, config.selection.clients_per_round) == (50, 10)
    assert (config.training.rounds, config.training.local_epochs, config.training.batch_size) == (40, 1, 50)
    assert config.availability.parameters == {"p": 0.5}
    assert [method.name for method in config.methods] == ["fedavg", "balanced_softmax", "rebafl", "scaffold"]


def test_a_method_overrides_single_keys_of_a_section():
    config = load_config(BUILTIN)
    assert [method.training.optimizer.parameters["momentum"] for method in config.methods] == [0.5, 0.5, 0.5, 0.0]
    method = config.methods[3]
    assert method.training.optimizer.learning_rate == 0.01
    assert method.training.rounds == 40
    assert method.name == "scaffold"
    assert method.dataset == config.dataset


@pytest.mark.parametrize(
    ("overrides", "section", "expected"),
    [
        (["availability.name=always"], "availability", {}),
        (["availability={name: clustered, p: [0.5, 1]}"], "availability", {"p": (0.5, 1.0), "period": 1}),
        (["delivery.p=0.9", "delivery.name=bernoulli"], "delivery", {"p": 0.9}),
        (["partition.alpha=0.3", "partition.scheme=dirichlet"], "partition", {"alpha": 0.3, "form": "balanced"}),
    ],
)
def test_an_override_may_choose_another_law(overrides, section, expected):
    got = getattr(load_config(BUILTIN, overrides), section).parameters
    assert {key: got[key] for key in expected} == expected
    assert "classes_per_client" not in got
    assert got.keys() == expected.keys() or section == "partition"


def test_overrides_reach_into_lists_and_sections_left_to_their_defaults():
    changes = ["methods.2.mu=0.2", "seeds=[7]", "training.server_optimizer.momentum=0.9", "dataset.name=mnist"]
    config = load_config(BUILTIN, changes)
    assert config.methods[2].recipes[0].hyperparameters["mu"] == 0.2
    assert config.seeds == (7,)
    assert config.training.server_optimizer.learning_rate == 1.0
    assert config.training.server_optimizer.parameters["momentum"] == 0.9
    assert config.dataset.name == "mnist"
    assert load_config(BUILTIN, ["seeds.1=9"]).seeds == (0, 9, 2)
    assert load_config(BUILTIN, ["methods.2.recipe=fedprox"]).methods[2].recipes[0].hyperparameters == {"mu": 0.001}


def test_numbers_in_scientific_notation_and_whole_floats():
    config = load_config(BUILTIN, ["training.optimizer.learning_rate=1e-3", "training.rounds=2.0"])
    assert config.training.optimizer.learning_rate == 0.001
    assert config.training.rounds == 2
    assert isinstance(config.training.rounds, int)


def test_a_list_of_recipes_is_combined_in_order():
    methods = "methods=[{recipe: [scaffold, {name: rebafl, mu: 0.2}]}, {recipe: fedavg}]"
    config = load_config(BUILTIN, [methods, "training.optimizer.momentum=0"])
    method = config.methods[0]
    assert method.name == "scaffold+rebafl"
    assert [spec.name for spec in method.recipes] == ["scaffold", "rebafl"]
    assert method.recipes[1].hyperparameters["mu"] == 0.2


def test_names_on_the_command_line_stand_for_the_entries_of_the_file(write):
    file = write("methods: [{recipe: fedprox, mu: 3}, {recipe: moon, name: mine}, {recipe: [fedprox, moon]}]")
    taken = load_config(file, ["methods=[FedProx, mine, fedprox+moon, {recipe: moon}]"]).methods
    assert taken[:3] == load_config(file).methods and taken[3] == load_config(file, ["methods=moon"]).methods[0]


def test_methods_change_the_complete_sections_so_that_the_resolved_text_means_the_same(write):
    cohort = "methods: [{recipe: fedavg, partition: {clients: 5}%s}]"
    fewer = load_config(write(cohort % ", selection: {clients_per_round: 4}"))
    assert (fewer.selection.clients_per_round, fewer.methods[0].selection.clients_per_round) == (10, 4)
    assert reloaded(fewer, write) == fewer
    assert "methods.0.selection.clients_per_round: received 10, more clients" in refusal(write(cohort % ""))
    natural = ["partition={scheme: natural, clients: all}", "methods=[{recipe: fedavg, partition: {scheme: iid}}]"]
    assert "methods.0.partition.clients: received 'all', must be an integer" in refusal(BUILTIN, natural)


# Text and object agree.


VARIED = [
    [],
    ["name='1e5'"],
    ["name='2024'", "methods=[{recipe: fedavg, name: 'null'}, {recipe: fedavg, name: 'yes, it''s: [a] \"name\"'}]"],
    ["methods=[{recipe: [moon, {name: rebafl, mu: 2}], partition: {scheme: iid}}, {recipe: [fedprox]}]"],
    ["availability={name: clustered, p: [0.5, 0.25]}", "delivery={name: bernoulli, p: 1}"],
    ["partition={scheme: dirichlet, alpha: 100000000000000000000, clients: 10, seed: 4294967295}"],
]


@pytest.mark.parametrize("overrides", VARIED)
def test_the_resolved_text_round_trips(overrides, write):
    config = load_config(BUILTIN, overrides)
    again = reloaded(config, write)
    assert again == config
    assert resolved_yaml(again) == resolved_yaml(config)
    assert config_digest(again) == config_digest(config)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", sorted(set(optimizers.optimizer_names()) - {"noisy_sgd"}))  # which wants a key
def test_every_optimizer_round_trips(name, write):
    change = f"training.optimizer={{name: {name}, learning_rate: 0.01}}"
    config = load_config(BUILTIN, [change, "methods=[{recipe: fedavg}]"])
    assert reloaded(config, write) == config


def test_equal_values_written_differently_have_one_digest(write):
    other = TEXT.replace("learning_rate: 0.05", "learning_rate: 5e-2").replace("mu: 0.1", "mu: 1.0e-1")
    assert other != TEXT
    assert config_digest(load_config(write(other))) == config_digest(load_config(BUILTIN))
    assert config_digest(load_config(BUILTIN, ["training.rounds=41"])) != config_digest(load_config(BUILTIN))


def test_partitions_may_follow_the_seeds(write):
    options = ["seeds=[0, 1]", "partition_seeds=[5, 6]", "partition.seed=9"]
    config = load_config(BUILTIN, options)
    assert reloaded(config, write) == config
    assert continues(load_config(BUILTIN, ["seeds=[0, 1, 2]", "partition_seeds=[5, 6, 7]", *options[2:]]), config)
    assert not continues(load_config(BUILTIN, ["seeds=[0, 1, 2]", "partition_seeds=[6, 5, 7]", *options[2:]]), config)
    assert not continues(load_config(BUILTIN, [options[0], *options[2:]]), config)
    assert not continues(config, load_config(BUILTIN, [options[0], *options[2:]]))
    with pytest.raises(ConfigError, match="partition_seeds: received 2 seeds"):
        load_config(BUILTIN, ["seeds=[0, 1, 2]", *options[1:]])


@pytest.mark.parametrize(
    "change",
    [
        "partition.clients=5",
        "partition.imbalance_factor=3",
        "partition.new_clients=0.2",
        "evaluation.validation.fraction=0.1",
        "evaluation.client_test.fraction=0.1",
        "auxiliary.per_class=1",
        "methods=[fedavg, {recipe: fedprox, partition: {clients: 15}}]",
    ],
)
def test_partition_seeds_need_something_to_draw(change, write):
    file = write("methods: [fedavg]\npartition: natural\nseeds: 2")
    message = refusal(file, ["partition_seeds=2"])
    assert message.startswith(f"{CLI}partition_seeds: received [0, 1], but nothing is drawn")
    assert load_config(file, ["partition_seeds=2", change]).partition_seeds == (0, 1)


@pytest.mark.parametrize(
    ("more", "same"),
    [
        ([], True),
        (["training.rounds=39"], False),
        (["seeds=[0, 1]"], False),
        (["seeds=[9, 0, 1, 2]"], False),  # attacks and pictures are of the first one
        (["training.rounds=41", "seeds=[0, 1, 2, 3]"], True),
        (["methods.3.training={rounds: 50, optimizer: {learning_rate: 0.01, momentum: 0}}"], True),
        (["methods.0.label=FedAvg"], True),
        (["methods=scaffold,moon,rebafl,balanced_softmax,fedavg"], True),  # in another order, and one more
        (["methods=[fedavg]"], False),
        (["name=other"], False),
    ],
)
def test_only_more_rounds_seeds_or_methods_continue_a_configuration(more, same):
    assert continues(load_config(BUILTIN, more), load_config(BUILTIN)) == same


def test_a_method_of_a_plugin_may_be_added(monkeypatch):
    before = load_config(BUILTIN)
    recipes = Registry(RECIPES)
    monkeypatch.setattr("fedjax_bal.recipes.RECIPES", recipes)
    monkeypatch.setitem(PLUGINS, "mine", Plugin("mine", None, "ab"))
    recipes.add("mine", RECIPES["fedprox"], PLUGINS["mine"], "mine")
    more = load_config(BUILTIN, ["methods=mine,fedavg,balanced_softmax,rebafl,scaffold"])
    assert more.plugins == {"mine": "ab"} and continues(more, before)
    changed = more.model_copy(update={"plugins": {"mine": "cd"}})
    assert not continues(changed, more)


def test_differences_name_the_keys():
    here = load_config(BUILTIN)
    asked = load_config(BUILTIN, ["training.rounds=60", "seeds=[0]", "methods.2.mu=0.3", "availability.name=always"])
    assert differences(here, here) == []
    assert differences(here, asked) == [
        "training.rounds: 40 here, 60 asked for",
        "availability.name: 'bernoulli' here, 'always' asked for",
        "availability.p: 0.5 here, absent asked for",
        "methods.rebafl.mu: 0.1 here, 0.3 asked for",
        "seeds: [0, 1, 2] here, [0] asked for",
    ]


# What is refused.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "fragments"),
    [
        ("dataset.name=fashin_mnist", ["dataset.name: received 'fashin_mnist';", "; did you mean 'fashion_mnist'?"]),
        ("training.rouns=3", ["training.rouns: unknown key; did you mean 'rounds'? allowed: batch_size,"]),
        ("partition.clients=-3", ["partition.clients: received -3, must be an integer of at least 1"]),
        ("partition.alpha=0.1", ["partition.alpha: unknown key for pathological; allowed: classes_per_client,"]),
        ("selection.clients_per_round=60", ["clients_per_round: received 60, more clients a round than the 50 of"]),
        ("training.drop_last=1", ["training.drop_last: received 1, must be true or false"]),
        ("training=3", ["training: received 3, must be a mapping of rounds, local_epochs, batch_size,"]),
        ("training.optimizer.learning_rate=nan", ["learning_rate: received nan, must be a finite number above 0"]),
        ("training.local_steps=3", ["local_steps: received 3 together with local_epochs=1; set one of the two"]),
        ("lr=1e-50", ["learning_rate: received 1e-50, must be a finite number that is not 0 in 32 bits"]),
        ("sweep=[{lr: [0.1, 1]}]", ["sweep: write an axis of a sweep as KEY=VALUE,VALUE, for instance lr=0.01,0.1"]),
        ("training.optimizer.schedule={name: cosine}", ["optimizer.schedule.length: missing, must be an integer"]),
        ("speed={name: constant, steps_per_s: 0}", ["speed.steps_per_s: received 0, must be a finite number above 0"]),
        ("execution.devices=0", ["execution.devices: received 0, must be auto, or an integer from 1 to 1024"]),
        ("name=a/b", ["name: received 'a/b', must be a name of letters, digits,"]),
        ("seeds=[0, 0]", ["seeds: received [0, 0], must be a count", "or a list, not empty, without repetition, each"]),
        ("seeds=0", ["seeds: received 0, must be a count from 1 to 1000 (3 for [0, 1, 2]), or a list"]),
        (
            "methods=[]",
            ["methods: received [], must be a list, not empty, each item a recipe's name, such as fedavg, or a"],
        ),
        ("optimizer=sdg", ["training.optimizer.name: received 'sdg'; did you mean 'sgd'?"]),
        (
            "methods=[{mu: 3}]",
            ["methods.0.recipe: missing, received only mu; `fedjax-bal list recipes` lists all of them"],
        ),
        ("methods=[{recpie: moon}]", ["methods.0.recipe: missing, received only recpie; did you mean 'recipe'?"]),
        ("methods=fedavg+rebafl", ["methods.0.recipe: received 'fedavg+rebafl'; ", "{recipe: [fedavg, rebafl]}"]),
        ("methods.1.recipe=fedavgg", ["methods.1.recipe: received 'fedavgg'; did you mean 'fedavg'?"]),
        ("methods.0.mu=0.2", ["methods.0.mu: unknown key; recipe fedavg takes: nothing; or name, label, dataset"]),
        ("methods.2.mu=-1", ["methods.2.mu: received -1, must be a finite number of at least 0"]),
        ("methods.1.name=fedavg", ["methods.1.name: received 'fedavg', already the name of methods.0"]),
        ('methods.1.name="a\\ud800"', ["methods.1.name: received 'a\\ud800', must be printable text"]),
        ("methods.1.label=fedavg", ["methods.1.label: received 'fedavg', already the label of methods.0; give one of"]),
        ("methods.0.recipe=[]", ["methods.0.recipe: received [], must be a name or a list of names"]),
        (
            "methods.0.recipe=[{name: fedprox, nu: 1}]",
            ["methods.0.recipe.0.nu: unknown key for fedprox; allowed: mu, name"],
        ),
        ("methods.0.recipe=[scaffold, scaffold]", ["methods.0.recipe: received ['scaffold', 'scaffold']: combine: "]),
        ("methods.7.mu=1", ["methods.7.mu: received '7' as a position in methods; allowed: 0 to 3"]),
        ("name.first=1", ["name.first: name is 'absent_clients', which has no keys"]),
        ("rounds", ["received 'rounds', must be dotted.path=VALUE, for instance training.rounds=30"]),
        ("training.rounds=[1", ["training.rounds: line 1, column 3: expected ',' or ']'"]),
    ],
)
def test_a_bad_override_is_told_as_the_command_line_s(override, fragments):
    message = refusal(BUILTIN, [override])
    assert message.startswith(CLI)
    assert len(message.splitlines()) == 1
    for fragment in fragments:
        assert fragment in message


@pytest.mark.parametrize(
    ("content", "fragments"),
    [
        (
            TEXT.replace("seed: 0", "sed: 0"),
            ["partition.sed: unknown key", "did you mean 'seed'?"],
        ),
        (
            TEXT.partition("methods:")[0],
            ["methods: missing, must be a list, not empty, each item a recipe's name, such as fedavg, or a mapping"],
        ),
        (TEXT + "\nseeds: [1]\n", ["my.yaml: line ", "duplicate key 'seeds'"]),
        ("a: 1\nb: [1, 2\nc: 3\n", ["my.yaml: line 3, column 2: expected ',' or ']', but got ':'"]),
        ("a: &x [1]\nb: [*x, *x]", ["my.yaml: line 1, column 4: anchors (&) and aliases (*) are not allowed"]),
        ("a: !!python/object/apply:os.system [ls]", ["my.yaml: line 1, column 4: the tag 'tag:yaml.org,2002:python"]),
        ("[" * 100_000, ["my.yaml: line 1, column 21: nested deeper than 20 levels"]),
        ("a: 1\n" * 900_000, ["my.yaml: can't be read (is longer than 4000000 bytes)"]),
        (bytes(range(256)), ["my.yaml: not UTF-8 text (byte 128)"]),
        ("", ["my.yaml: is empty, must be a mapping of dataset"]),
        ("[1, 2]", ["my.yaml: received [1, 2], must be a mapping of"]),
        ("a: 1\n---\nb: 2\n", ["my.yaml: line 2, column 1: but found another document"]),
        ("[1]: 2", ["as a key; keys are text"]),
        ("a: " + "9" * 5000, ["a number of 5000 characters; at most 40 are allowed"]),
    ],
)
def test_a_bad_file_is_told_with_its_name(content, fragments, write):
    message = refusal(write(content))
    for fragment in fragments:
        assert fragment in message


def test_all_problems_are_told_at_once_each_on_its_line(write):
    bad = TEXT.replace("rounds: 40", "rounds: 0").replace("recipe: fedavg", "recipe: fedvag").replace("p: 0.5", "p: 2")
    lines = refusal(write(bad), ["seeds=[]"]).splitlines()
    assert [line.split(": received")[0].split("my.yaml: ")[-1] for line in lines] == [
        "training.rounds",
        "availability.p",
        "command line: seeds",
        "methods.0.recipe",
    ]


def test_a_methods_own_target_is_refused_because_reports_have_one_for_all(write):
    entry = "methods:\n  - {recipe: fedavg, name: early, evaluation: {every: 2, target_accuracy: 0.2}}\n"
    text = TEXT.partition("methods:")[0] + entry
    message = refusal(write(text))
    assert message.endswith(
        "my.yaml: methods.0.evaluation.target_accuracy: received 0.2, but all methods have one target; give "
        "evaluation.target_accuracy outside of `methods`"
    )
    assert load_config(write(text.replace(", target_accuracy: 0.2", "")), ["target_accuracy=0.2"]).methods


def test_a_problem_of_the_shared_sections_is_not_repeated_for_each_method():
    message = refusal(BUILTIN, ["partition.clients=5"])
    assert message == (
        "absent_clients: selection.clients_per_round: received 10, "
        "more clients a round than the 5 of partition.clients; at most 5 is allowed"
    )


def test_a_method_s_override_that_the_chosen_optimizer_doesn_t_take_names_the_method():
    message = refusal(BUILTIN, ["optimizer=adam", "lr=0.1", "methods.3.training.optimizer.learning_rate=0.02"])
    assert message.startswith(
        "absent_clients: methods.3.training.optimizer.momentum: unknown key for adam; allowed: b1,"
    )


def test_a_missing_file_and_a_directory(tmp_path):
    assert refusal(str(tmp_path / "no.yaml")) == f"{tmp_path / 'no.yaml'}: there is no such file"
    assert refusal(str(tmp_path)) == f"{tmp_path}: can't be read (is a directory); give a YAML file"
    assert refusal("a\0b").startswith("'a\\x00b': is neither a file nor a built-in configuration")


def test_a_file_may_begin_with_a_byte_order_mark(write):
    assert load_config(write(b"\xef\xbb\xbf" + TEXT.encode())) == load_config(BUILTIN)


# Short forms, defaults and bases.


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("rounds=3", "training.rounds=3"),
        ("lr=0.1", "training.optimizer.learning_rate=0.1"),
        ("optimizer.decay=0.9", "training.optimizer.decay=0.9"),
        ("seeds=2", "seeds=[0, 1]"),
        ("partition=iid", "partition.scheme=iid"),
        ("dataset=MNIST", "dataset.name=mnist"),
        ("methods=fedavg", "methods=[{recipe: fedavg}]"),
        ("methods.1.recipe=FedProx", "methods.1.recipe=fedprox"),
    ],
)
def test_a_short_form_stands_for_the_whole(short, whole):
    assert load_config(BUILTIN, [short]) == load_config(BUILTIN, [whole])


@pytest.mark.parametrize(
    ("changes", "in_order"),
    [
        (["model.hidden=[128]", "model=mlp"], [1, 0]),
        (["hidden=[128]", "rounds=3", "model.name=mlp"], [2, 0, 1]),
        (["methods.0.model.hidden=[128]", "b1=0.8", "methods.0.model=mlp", "optimizer=adam", "lr=1"], [2, 4, 3, 0, 1]),
        (["partition={clients: 30, scheme: iid}", "shards_per_client=3", "scheme=shards"], [0, 2, 1]),
    ],
)
def test_a_choice_keeps_what_is_given_along_with_it_in_any_order(changes, in_order, write):
    file = write(
        "methods: [{recipe: fedavg, model: tiny_bn}]\nmodel: simple_cnn\ntraining: {optimizer: {learning_rate: 1}}"
    )
    assert load_config(file, changes) == load_config(file, [changes[place] for place in in_order])


@pytest.mark.parametrize(
    ("override", "fragment"),
    [
        ("seed=3", "seed: ambiguous key; give the full path: partition.seed, seeds"),
        ("num_clients=30", "num_clients: unknown key; did you mean partition.clients?"),
        ("dirichlet=0.1", "dirichlet: unknown key; did you mean partition=dirichlet alpha=0.1?"),
        ("plugin=x.py", "plugin: unknown key; did you mean the option --plugin FILE?"),
        ("data_dir=/tmp", "data_dir: unknown key; did you mean the option --data-dir FOLDER?"),
        ("frac=0.1", "frac: unknown key; did you mean selection.clients_per_round?"),
        ("recipe=moon", "recipe: unknown key; did you mean methods?"),
        ("mu=0.2", "mu: unknown key; a hyperparameter of rebafl: methods.2.mu=0.2; allowed: "),
        ("partition.num_clients=3", "partition.num_clients: unknown key for pathological; did you mean 'clients'?"),
        ("training.batch=32", "training.batch: unknown key; did you mean 'batch_size'?"),
        ("dataset=pets.csv", "{name: csv, path: pets.csv, label: COLUMN}"),
        ("dataset=me/pets", "{name: huggingface, path: me/pets}"),
        ("alpha=0.1", "partition.scheme pathological has no alpha; partition=dirichlet alpha=0.1 chooses one that has"),
        ("learning_rat=3", "did you mean 'training.optimizer.learning_rate' or 'training.server_optimizer.learning"),
        ("lr=[0.1, 0.2]", "go without brackets on the command line: learning_rate=0.1,0.2"),
        ("lr={from: 0.1, to: 1}", "a range is for an axis in a file: sweep: [{learning_rate: {from: "),
    ],
)
def test_a_short_form_that_is_unclear_is_told(override, fragment):
    assert fragment in refusal(BUILTIN, re.split(" (?=alpha)", override))


def test_an_end_that_a_data_set_shares_with_another_section_is_unclear(write):
    message = "mean: ambiguous key; give the full path: dataset.mean, speed.mean"
    assert message in refusal(BUILTIN, ["speed=latency", "mean=0.5", "std=0.5"])
    columns = write("methods: [fedavg]\ndataset: {name: csv, path: a.csv, label: y}")
    assert load_config(columns, ["clients=7"]).partition.clients == 7  # not the column of users


def test_a_file_needs_its_methods_alone(write):
    config = load_config(write("methods: [fedavg]"))
    assert (config.name, config.seeds) == ("my", (0,))
    assert (config.partition.scheme, config.partition.parameters["alpha"]) == ("dirichlet", 0.3)
    assert (config.training.local_epochs, config.training.optimizer.learning_rate) == (1, 0.05)
    assert load_config(write("methods: [fedavg]\ntraining: {local_steps: 3}")).training.local_epochs is None
    assert "optimizer.name: received 'adam' without a learning_rate" in refusal(
        write("methods: [fedavg]\ntraining: {optimizer: adam}")
    )


def test_a_file_changes_its_base(write, tmp_path):
    write("base: absent_clients\nname: mine\ntraining: {rounds: 3}\nmethods: [fedprox]")
    config = load_config(str(tmp_path / "my.yaml"))
    assert config == load_config(BUILTIN, ["name=mine", "rounds=3", "methods=fedprox"])
    (tmp_path / "third.yaml").write_text("base: my.yaml\nseeds: 1")
    third = load_config(str(tmp_path / "third.yaml"))
    assert (third.name, third.training.rounds) == ("third", 3)


def test_a_base_in_a_circle_is_refused(write, tmp_path):
    (tmp_path / "other.yaml").write_text("base: my.yaml")
    assert "base: received 'my.yaml', which is based on this file itself" in refusal(write("base: other.yaml"))


def test_built_in_configurations_have_names():
    registered.load_included()
    for name in ("papers/rebafl/table1_fmnist_m20", "papers/iwds/fmnist_llt0.9"):
        assert load_config(name).name == name.removeprefix("papers/").replace("/", "_")
    assert "'quickstart'" in refusal("quikstart")


def test_every_key_is_in_the_schema():
    schema = json_schema()
    for key in key_references():
        node = schema
        for name in key.path.split("."):
            node = next(kind for kind in [node, *node.get("anyOf", [])] if "properties" in kind)["properties"][name]


@pytest.mark.slow
def test_the_schema_takes_what_the_checks_take():
    registered.load_included()
    check = pytest.importorskip("jsonschema").Draft202012Validator(json_schema()).validate
    for name in builtin_configs():
        check(read_yaml(FILE.parent / f"{name}.yaml", name))
    schedule = {"name": "piecewise_constant_schedule", "boundaries_and_scales": {"5": 0.1}}
    optimizer = {"learning_rate": 0.1, "schedule": schedule}
    check({"methods": "fedavg", "partition_seeds": 3, "paper": None, "training": {"optimizer": optimizer}})
    check({"methods": "fedavg", "lr": 0.1, "rounds": 3, "training.batch_size": 5})


def test_a_key_is_explained_by_the_end_of_its_path():
    local, server = find_keys("lr")
    assert (local.path, local.default, server.default) == ("training.optimizer.learning_rate", "0.05", "1.0")
    with pytest.raises(ValueError, match="'training.rouns' is not a key"):
        find_keys("training.rouns")
    with pytest.raises(
        ValueError, match=r"did you mean 'training.optimizer.schedule' or 'training.server_optimizer.sch"
    ):
        find_keys("schedul")
    with pytest.raises(ValueError, match="'training.lr' is not a key"):
        find_keys("training.lr")
    with pytest.raises(ValueError, match="'model.nam' is not a key"):
        find_keys("model.nam")
    (methods,), (seeds,) = find_keys("methods"), find_keys("seeds")
    assert (
        methods.allowed
        == "a list, not empty, each item a recipe's name, such as fedavg, or a mapping with the key recipe"
    )
    assert seeds.meaning == "distinct seeds; every method runs once with each." and seeds.default == "[0]"
    assert [key.default for key in find_keys("hidden")] == ["[64]", "64"]  # of mlp, of text_mean
    assert [key.path for key in find_keys("auxiliary")] == ["auxiliary", "auxiliary.per_class", "auxiliary.source"]
    assert find_keys("model")[0].allowed == "one of the names of model.name, or a mapping of name, convolution, weights"


# The pieces.


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("+3", 3),
        ("010", 10),
        ("1:30", "1:30"),
        ("no", "no"),
        ("~", None),
        ("0x10", "0x10"),
        ("'1'", "1"),
        (".inf", math.inf),
    ],
)
def test_scalars_are_read_as_yaml_1_2_does(text, value):
    got = parse_yaml(text, "text")
    assert got == value
    assert type(got) is type(value)


def test_parameters_come_from_the_signature():
    def made(rng, alpha: float, of: "Share" = 0.5, size: int | None = None, *, on: bool = False, dtype=None, f=len): ...

    fields = parameters(made, skip=["rng"])
    assert {key: default for key, (_, default) in fields.items()} == {
        "alpha": ...,
        "of": 0.5,
        "size": None,
        "on": False,
    }
    assert describe_type(fields["of"][0]) == describe_type(Share) == "a finite number from 0 to 1"


def test_every_recipe_can_be_named():
    normalised = dict.fromkeys(("cbfl", "fedbn"), ", model: {name: tiny_bn}")
    methods = ", ".join(f"{{recipe: {name}{normalised.get(name, '')}}}" for name in RECIPES)
    needed = ("training.rounds=700", "training.optimizer.momentum=0", "auxiliary.per_class=5")
    config = load_config(BUILTIN, [f"methods=[{methods}]", *needed])
    assert [method.name for method in config.methods] == list(RECIPES)


# Whatever comes, a configuration or a ConfigError.

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["sgd", "adam", "iid"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
FUZZ = settings(suppress_health_check=list(HealthCheck))


def config_or_error(path, overrides=()):
    try:
        config = load_config(path, overrides)
    except ConfigError as error:
        assert str(error).encode()
        return None
    assert isinstance(config, Config)
    return config


def paths(value, above=()):
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    yield above
    for key, item in below:
        yield from paths(item, (*above, key))


PATHS = [path for path in paths(parse_yaml(TEXT, BUILTIN)) if path]


def mutated(path, value, how):
    sheet = parse_yaml(TEXT, BUILTIN)
    node = sheet
    for key in path[:-1]:
        node = node[key]
    if how == "replace":
        node[path[-1]] = value
    elif how == "remove":
        del node[path[-1]]
    elif isinstance(node, dict):
        node[str(value)[:10]] = node.pop(path[-1])
    else:
        node.insert(path[-1], value)
    return sheet


@pytest.mark.slow
@FUZZ
@given(st.sampled_from(PATHS), VALUES, st.sampled_from(["replace", "remove", "rename"]))
def test_mutations_of_the_quickstart(write, path, value, how):
    config = config_or_error(write(dump_yaml(mutated(path, value, how))))
    if config is not None:
        assert reloaded(config, write) == config


@pytest.mark.slow
@FUZZ
@given(st.lists(st.tuples(st.sampled_from(PATHS), VALUES), min_size=1, max_size=3))
def test_random_overrides(write, changes):
    overrides = [".".join(map(str, path)) + "=" + dump_yaml(value) for path, value in changes]
    config = config_or_error(None, overrides)
    if config is not None:
        assert reloaded(config, write) == config


@FUZZ
@given(VALUES.filter(lambda value: value == value))
def test_what_is_dumped_reads_back(value):
    def same(a, b):
        if isinstance(a, float) and math.isnan(a):
            return isinstance(b, float) and math.isnan(b)
        if isinstance(a, dict):
            return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
        if isinstance(a, list):
            return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
        return type(a) is type(b) and a == b

    try:
        again = parse_yaml(dump_yaml(value), "text")
    except ConfigError as error:  # too long a number, too deep, a character that YAML doesn't have
        assert any(word in str(error) for word in ("a number of", "deeper", "character"))
        return
    assert same(value, again)


def test_later_overrides_win_and_choices_come_before_the_parameters_beside_them():
    methods = "methods=[{recipe: fedavg}]"
    assert load_config(BUILTIN, [methods, "methods.0.recipe=fedprox"]).methods[0].name == "fedprox"
    prox = load_config(BUILTIN, [methods, "methods.0.mu=0.5", "methods.0.recipe=fedprox"])
    assert prox.methods[0].recipes[0].hyperparameters == {"mu": 0.5}
    last = load_config(BUILTIN, ["partition={scheme: iid, clients: 20, seed: 0}", "partition.scheme=shards"])
    assert last.partition.scheme == "shards"
    clients = load_config(BUILTIN, ["partition.clients=17", "partition={scheme: iid}"]).partition
    assert (
        clients == load_config(BUILTIN, ["partition.clients=17", "partition=iid"]).partition and clients.clients == 17
    )
    assert load_config(BUILTIN, ["training.rounds=3", "training.rounds=4"]).training.rounds == 4


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("{name: npz}", "dataset.path: missing"),
        ("{name: image_folder, path: a, channels: x}", "dataset.channels: received 'x'"),
        ("{name: csv, path: a, label: y, inputs: y}", "dataset.inputs: received 'y'"),
    ],
)
def test_own_files_have_a_path(dataset, message):
    with pytest.raises(ConfigError, match=message):
        load_config(BUILTIN, [f"dataset={dataset}"])


@pytest.mark.parametrize(
    ("model", "options", "written"),
    [
        ("{name: mlp, hidden: [128, 32]}", {"hidden": (128, 32)}, {"hidden": [128, 32]}),
        ("{name: vgg9, dropout: 0}", {"dropout": (0.0, 0.0, 0.0)}, {"dropout": [0.0, 0.0, 0.0]}),
    ],
)
def test_options_of_models_are_keys(model, options, written, write):
    config = load_config(BUILTIN, [f"model={model}"])
    assert config.model.parameters == options
    assert {"convolution": "auto", **written}.items() <= yaml.safe_load(resolved_yaml(config))["model"].items()
    assert reloaded(config, write) == config
    assert load_config(BUILTIN, [f"model={model}", "model.name=tiny_bn"]).model.parameters == {}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{name: mlp, hidden: [0]}", r"received \[0\]"),
        (
            "{name: mlp, hiden: [1]}",
            "unknown key for mlp; did you mean 'hidden'. allowed: convolution, hidden, name, weights",
        ),
    ],
)
def test_wrong_options_of_models_are_told(model, message):
    with pytest.raises(ConfigError, match=rf"command line: model.*: {message}"):
        load_config(BUILTIN, [f"model={model}"])
    with pytest.raises(ConfigError, match=rf"command line: methods.1.model.*: {message}"):
        load_config(BUILTIN, [f"methods.1.model={model}"])


def test_a_moved_file_leaves_a_run_what_it_is(tmp_path):
    def digest(folder, name="phones.csv"):
        method = f"methods=[{{recipe: fedavg, delivery: {{name: trace, file: {folder}/{name}}}}}]"
        config = load_config(BUILTIN, [f"availability={{name: trace, file: {folder}/{name}}}", method])
        return run_digest(config)

    assert digest("/here") == digest("/there") != digest("/here", "other.csv")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("rounds: 5\ntraining: {rounds: 6}", "training.rounds"),
        ("lr: 0.1\nlearning_rate: 0.2", "training.optimizer.learning_rate"),
        ("partition: iid\nscheme: natural", "partition.scheme"),
    ],
)
def test_a_key_that_a_file_gives_twice_is_refused(tmp_path, text, key):
    file = tmp_path / "mine.yaml"
    file.write_text(f"{text}\nmethods: [fedavg]\n")
    with pytest.raises(ConfigError, match=f"mine.yaml: {key}: given twice, once by a short name"):
        load_config(file)


def test_a_models_weights_are_a_file_like_others(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("model: {name: mlp, weights: w.npz}\nmethods: [fedavg]\n")
    config = load_config(file)
    assert config.model.weights == str(tmp_path / "w.npz")
    again = load_config(file, ["model.weights=/elsewhere/w.npz"])
    other = load_config(file, ["weights=v.npz"])
    assert other.model.weights == str(Path("v.npz").absolute())
    file.write_text("availability: trace\nfile: t.csv\nweights: w.npz\nmethods: [fedavg]\n")  # by short names
    config = load_config(file)
    assert config.availability.parameters["file"] == str(tmp_path / "t.csv")
    assert config.model.weights == str(tmp_path / "w.npz")
    assert load_config(file, ["file=u.csv"]).availability.parameters["file"] == str(Path("u.csv").absolute())
    file.write_text("model: {name: mlp, weights: w.npz}\nmethods: [fedavg]\n")
    config = load_config(file)
    assert run_digest(again) == run_digest(config) != run_digest(other)
    assert "weights" in resolved_yaml(config) and "weights" not in resolved_yaml(load_config(None))
    # A paper's table that starts from pretrained weights is not the paper's.
    registered.load_included()
    paper = load_config("papers/rebafl/table1_fmnist_m20", ["model.weights=w.npz"]).paper
    assert paper is not None and paper.setting == {"model.weights": None}
