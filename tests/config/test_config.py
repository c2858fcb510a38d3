"""Configurations: what is accepted, what is refused and in which words, and that text and object agree."""

import dataclasses
import math
import os
import re
from pathlib import Path

import jax
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
    config_of,
    continues,
    differences,
    load_config,
    read_command,
    resolved_yaml,
    run_digest,
)
from fedjax_bal.config.explain import find_keys, json_schema, key_references
from fedjax_bal.config.schema import OptimizerSection
from fedjax_bal.config.yaml_text import dump_yaml, parse_yaml, read_yaml
from fedjax_bal.lab import load_sweep
from fedjax_bal.optim import optimizers
from fedjax_bal.options import Execution, derived
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


def test_defaults_are_filled_in():
    config = load_config(BUILTIN)
    assert config.model.convolution == "auto"
    assert config.training.drop_last is False
    assert config.training.optimizer.weight_decay == 0.0
    assert config.training.optimizer.decay == 1.0
    assert (config.training.server_optimizer.name, config.training.server_optimizer.learning_rate) == ("sgd", 1.0)
    assert (config.execution.strategy, config.execution.rounds_per_dispatch) == ("auto", 5)
    assert config.execution.checkpoint_every == 10
    assert config.methods[2].recipes[0].hyperparameters == {
        "epsilon": 0.01,
        "mu": 0.1,
        "scale": 1.0,
        "prototypes": "local_override",
        "carry": False,
        "min_classes": 1,
    }


def test_a_method_overrides_single_keys_of_a_section():
    config = load_config(BUILTIN)
    assert [method.training.optimizer.parameters["momentum"] for method in config.methods] == [0.5, 0.5, 0.5, 0.0]
    method = config.methods[3]
    assert method.training.optimizer.learning_rate == 0.01
    assert method.training.rounds == 40
    assert method.name == "scaffold"
    assert method.dataset == config.dataset


def test_choosing_another_optimizer_in_a_method_leaves_the_old_one_s_options_behind():
    config = load_config(BUILTIN, ["methods.0.training={optimizer: {name: adam, learning_rate: 0.002, b1: 0.8}}"])
    optimizer = config.methods[0].training.optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.parameters["b1"]) == ("adam", 0.002, 0.8)
    assert "momentum" not in optimizer.parameters


@pytest.mark.parametrize(
    ("overrides", "section", "expected"),
    [
        (["availability.name=always"], "availability", {}),
        (["availability={name: periodic, p: 0.3, period: 4}"], "availability", {"p": 0.3, "period": 4}),
        (["availability={name: clustered, p: [0.5, 1]}"], "availability", {"p": (0.5, 1.0), "period": 1}),
        (["delivery.name=bernoulli", "delivery.p=0.9"], "delivery", {"p": 0.9}),
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


def test_values_are_checked_once(monkeypatch):
    builds = []
    build = OptimizerSection.built.fget

    def counted(section):
        builds.append(section.name)
        return build(section)

    monkeypatch.setattr(OptimizerSection, "built", property(counted))
    config = load_config(BUILTIN, ["methods=[fedavg, {recipe: fedprox, training: {rounds: 7}}]"], needs=False)
    assert config.methods[0].training is config.training
    assert config.methods[1].training.rounds == 7
    assert len(builds) == 2  # both optimizers, once: the method changes another key of their section


def test_a_command_reads_each_of_its_files_once(write, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(
        "fedjax_bal.config.load.read_yaml", lambda file, source: read.append(file) or read_yaml(file, source)
    )
    write("base: absent_clients")
    (tmp_path / "mine.yaml").write_text("base: my.yaml\nrounds: 3")
    command = read_command(tmp_path / "mine.yaml", ["lr=0.1"])
    assert not command.is_sweep and config_of(command).training.rounds == 3
    assert [file.name for file in read] == ["mine.yaml", "my.yaml", "absent_clients.yaml"]
    assert load_sweep(tmp_path / "mine.yaml", ["lr=0.1,0.2"]) and len(read) == 6


def test_options_are_not_checked_again(monkeypatch):
    config = load_config(BUILTIN, ["training.batch_size=7"])
    monkeypatch.setattr("fedjax_bal.annotations.check", None)
    local = derived(config.training.options, batch_size=6)
    assert (local.batch_size, local.epochs, config.execution.options.strategy) == (6, 1, "auto")
    assert jax.tree.map(lambda leaf: leaf, local) == local


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


def test_the_keywords_of_an_optimizer_build_it():
    section = load_config(BUILTIN, ["training.optimizer.weight_decay=5e-4"]).training.optimizer
    shared = {"name": "sgd", "learning_rate": 0.05, "weight_decay": 0.0005, "decay": 1.0}
    assert section.keywords == {**shared, "momentum": 0.5, "clip_at": "start"}
    assert optimizers.optimizer(**section.keywords).options == {"momentum": 0.5}


# Text and object agree.


VARIED = [
    [],
    ["name='1e5'"],
    ["name='2024'", "methods=[{recipe: fedavg, name: 'null'}, {recipe: fedavg, name: 'yes, it''s: [a] \"name\"'}]"],
    ["methods=[{recipe: fedavg, label: FedAvg}, {recipe: rebafl, name: mine, label: fedavg}]"],
    ["methods=[{recipe: [moon, {name: rebafl, mu: 2}], partition: {scheme: iid}}, {recipe: [fedprox]}]"],
    ["availability={name: clustered, p: [0.5, 0.25]}", "delivery={name: bernoulli, p: 1}"],
    ["methods.0.training={optimizer: {name: adamw, learning_rate: 1e-30}}"],
    ["partition={scheme: dirichlet, alpha: 100000000000000000000, clients: 10, seed: 4294967295}"],
]


@pytest.mark.parametrize("overrides", VARIED)
def test_the_resolved_text_round_trips(overrides, write):
    config = load_config(BUILTIN, overrides)
    again = reloaded(config, write)
    assert again == config
    assert resolved_yaml(again) == resolved_yaml(config)
    assert config_digest(again) == config_digest(config)


def test_the_resolved_text_is_complete_and_readable_by_others():
    sheet = yaml.safe_load(resolved_yaml(load_config(BUILTIN)))
    options = {field.name: field.default for field in dataclasses.fields(Execution) if field.name != "differentiable"}
    assert sheet["execution"] == {**options, "rounds_per_dispatch": 5, "checkpoint_every": 10}
    assert sheet["methods"][2]["min_classes"] == 1
    assert sheet["methods"][3]["training"] == {"optimizer": {"learning_rate": 0.01, "momentum": 0.0}}
    order = list(sheet)
    assert (order[0], order[-2:]) == ("name", ["methods", "seeds"])


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
    ("more", "same"),
    [
        ([], True),
        (["training.rounds=41"], True),
        (["training.rounds=39"], False),
        (["seeds=[0, 1, 2, 9]"], True),
        (["seeds=[0, 1]"], False),
        (["seeds=[9, 0, 1, 2]"], False),  # attacks and pictures are of the first one
        (["training.rounds=41", "seeds=[0, 1, 2, 3]"], True),
        (["methods.3.training={rounds: 50, optimizer: {learning_rate: 0.01, momentum: 0}}"], True),
        (["methods.3.training={rounds: 30, optimizer: {learning_rate: 0.01, momentum: 0}}"], False),
        (["training.rounds=41", "training.batch_size=51"], False),
        (["execution.rounds_per_dispatch=6"], False),
        (["methods.0.label=FedAvg"], True),
        (["methods=scaffold,moon,rebafl,balanced_softmax,fedavg"], True),  # in another order, and one more
        (["methods=[fedavg]"], False),
        (["methods.2.mu=0.3"], False),
        (["methods.2.name=mine"], False),
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
        ("trainin.rounds=3", ["trainin: unknown key; did you mean 'training'? allowed: auxiliary, availability,"]),
        ("partition.clients=-3", ["partition.clients: received -3, must be an integer of at least 1"]),
        ("partition.clients=3000000000", ["partition.clients: received 3000000000, must be an integer from 1 to 2147"]),
        ("partition.alpha=0.1", ["partition.alpha: unknown key for pathological; allowed: classes_per_client,"]),
        ("partition.classes_per_client=two", ["classes_per_client: received 'two', must be an integer"]),
        ("selection.clients_per_round=60", ["clients_per_round: received 60, more clients a round than the 50 of"]),
        ("training.rounds=true", ["training.rounds: received true, must be an integer of at least 1"]),
        ("training.drop_last=1", ["training.drop_last: received 1, must be true or false"]),
        ("training=3", ["training: received 3, must be a mapping of rounds, local_epochs, batch_size,"]),
        ("training.optimizer.learning_rate=nan", ["learning_rate: received nan, must be a finite number above 0"]),
        ("training.optimizer.momentum=1", ["momentum: received 1, must be a finite number of at least 0 and below 1"]),
        ("training.local_steps=3", ["local_steps: received 3 together with local_epochs=1; set one of the two"]),
        ("training.local_epochs=null", ["training.local_epochs: missing, must be an integer of at least 1, or local_"]),
        ("lr=1e-50", ["learning_rate: received 1e-50, must be a finite number that is not 0 in 32 bits"]),
        ("sweep=[{lr: [0.1, 1]}]", ["sweep: write an axis of a sweep as KEY=VALUE,VALUE, for instance lr=0.01,0.1"]),
        ("training.optimizer.schedule={name: cosine}", ["optimizer.schedule.length: missing, must be an integer"]),
        ("training.optimizer.schedule={name: step, every: 0}", ["schedule: refused by step: every: received 0, must"]),
        ("training.optimizer.schedule.name=cosin", ["schedule.name: received 'cosin'; did you mean 'cosine"]),
        (
            "training.server_optimizer.step_schedule=2",
            ["server_optimizer.step_schedule: unknown key for sgd; did you mean 'schedule'? allowed"],
        ),
        ("speed={name: constant, steps_per_s: 0}", ["speed.steps_per_s: received 0, must be a finite number above 0"]),
        ("delivery={name: trace}", ["delivery.file: missing, must be the path of a file"]),
        ("evaluation.target_accuracy=60", ["received 60, must be a finite number above 0 and of at most 1, or null"]),
        ("execution.devices=0", ["execution.devices: received 0, must be auto, or an integer from 1 to 1024"]),
        (
            "execution.precision=float16",
            ["execution.precision: received 'float16'; did you mean 'bfloat16'? allowed: bfloat16,"],
        ),
        ("name=a/b", ["name: received 'a/b', must be a name of letters, digits,"]),
        ("name=2024", ["name: received 2024, must be a name"]),
        ("seeds=[0, 0]", ["seeds: received [0, 0], must be a count", "or a list, not empty, without repetition, each"]),
        ("seeds=0", ["seeds: received 0, must be a count from 1 to 1000 (3 for [0, 1, 2]), or a list"]),
        ("partition_seeds=1001", ["received 1001, must be a count from 1 to 1000 (3 for [0, 1, 2]), or a", "or null"]),
        (
            "methods=[]",
            ["methods: received [], must be a list, not empty, each item a recipe's name, such as fedavg, or a"],
        ),
        ("methods=[3]", ["methods.0: received 3, must be a recipe's name or a mapping with the key recipe"]),
        ("methods=[{mu: 3}]", ["methods.0.recipe: missing; `fedjax-bal list recipes` has all"]),
        ("methods.1.recipe=fedavgg", ["methods.1.recipe: received 'fedavgg'; did you mean 'fedavg'?"]),
        ("methods.0.mu=0.2", ["methods.0.mu: unknown key; recipe fedavg takes: nothing; or name, label, dataset"]),
        ("methods.2.epsilom=0.2", ["methods.2.epsilom: unknown key; recipe rebafl takes: carry,", "'epsilon'?"]),
        ("methods.2.trainin={}", ["methods.2.trainin: unknown key", "did you mean 'training'?"]),
        ("methods.2.mu=-1", ["methods.2.mu: received -1, must be a finite number of at least 0"]),
        ("methods.2.prototypes=all", ["methods.2.prototypes: received 'all'; allowed: global_only, local_override"]),
        ("methods.1.name=fedavg", ["methods.1.name: received 'fedavg', already the name of methods.0"]),
        ("methods.1.name=''", ["methods.1.name: received '', must be printable text of 1 to 60 characters"]),
        ('methods.1.name="a\\ud800"', ["methods.1.name: received 'a\\ud800', must be printable text"]),
        ("methods.1.label=fedavg", ["methods.1.label: received 'fedavg', already the label of methods.0; give one of"]),
        ("methods.1.label=''", ["methods.1.label: received '', must be printable text of 1 to 60 characters"]),
        ("methods.0.recipe=[]", ["methods.0.recipe: received [], must be a name or a list of names"]),
        ("methods.0.recipe=[fedavg, 3]", ["methods.0.recipe.1.name: received 3; a plug-in's needs"]),
        (
            "methods.0.recipe=[{name: fedprox, nu: 1}]",
            ["methods.0.recipe.0.nu: unknown key for fedprox; allowed: mu, name"],
        ),
        ("methods.0.recipe=[scaffold, scaffold]", ["methods.0.recipe: received ['scaffold', 'scaffold']: combine: "]),
        ("methods.1.training.optimizer.momentum=2", ["methods.1.training.optimizer.momentum: received 2, must be a"]),
        ("methods.7.mu=1", ["methods.7.mu: received '7' as a position in methods; allowed: 0 to 3"]),
        ("methods.rebafl.mu=1", ["received 'rebafl' as a position in methods; allowed: 0 to 3"]),
        ("name.first=1", ["name.first: name is 'absent_clients', which has no keys"]),
        ("rounds", ["received 'rounds', must be dotted.path=VALUE, for instance training.rounds=30"]),
        ("training..rounds=3", ["received 'training..rounds=3', must be dotted.path=VALUE"]),
        ("training.rounds=[1", ["training.rounds: line 1, column 3: expected ',' or ']'"]),
        (".".join("a" * 30) + "=1", ["must be dotted.path=VALUE"]),
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
        (TEXT.replace("rounds: 40", "rounds: 0"), ["my.yaml: training.rounds: received 0, must be an integer"]),
        (
            TEXT.replace("seed: 0", "sed: 0"),
            ["partition.sed: unknown key", "did you mean 'seed'?"],
        ),
        (
            TEXT.partition("methods:")[0],
            ["methods: missing, must be a list, not empty, each item a recipe's name, such as fedavg, or a mapping"],
        ),
        (TEXT.replace("classes_per_client: 2, ", ""), ["partition.classes_per_client: missing, must be an integer"]),
        (
            TEXT.replace("learning_rate: 0.05, ", "learning_rate: 0, "),
            ["optimizer.learning_rate: received 0, must be a finite number above 0"],
        ),
        (TEXT + "\nseeds: [1]\n", ["my.yaml: line ", "duplicate key 'seeds'"]),
        ("a: 1\nb: [1, 2\nc: 3\n", ["my.yaml: line 3, column 2: expected ',' or ']', but got ':'"]),
        ("a: b: c", ["my.yaml: line 1, column 5: mapping values are not allowed here"]),
        ("a:\n\t- b", ["my.yaml: line 2, column 1: found character"]),
        ("a: &x [1]\nb: [*x, *x]", ["my.yaml: line 1, column 4: anchors (&) and aliases (*) are not allowed"]),
        ("a: !!python/object/apply:os.system [ls]", ["my.yaml: line 1, column 4: the tag 'tag:yaml.org,2002:python"]),
        ("[" * 100_000, ["my.yaml: line 1, column 21: nested deeper than 20 levels"]),
        ("a: 1\n" * 900_000, ["my.yaml: can't be read (is longer than 4000000 bytes)"]),
        (bytes(range(256)), ["my.yaml: not UTF-8 text (byte 128)"]),
        (b"a: 1\nb: \x00", ["my.yaml: not YAML: unacceptable character #x0000"]),
        ("", ["my.yaml: is empty, must be a mapping of dataset"]),
        ("[1, 2]", ["my.yaml: received [1, 2], must be a mapping of"]),
        ("a: 1\n---\nb: 2\n", ["my.yaml: line 2, column 1: but found another document"]),
        ("1: 2", ["my.yaml: 1: unknown key; allowed:"]),
        ("[1]: 2", ["as a key; keys are text"]),
        ("a: " + "9" * 5000, ["a number of 5000 characters; at most 40 are allowed"]),
        ('a: "\\UFFFFFFFF"', ["my.yaml: not YAML"]),
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
        ("momentum=0.3", "training.optimizer.momentum=0.3"),
        ("epochs=2", "training.local_epochs=2"),
        ("clients_per_round=3", "selection.clients_per_round=3"),
        ("optimizer.decay=0.9", "training.optimizer.decay=0.9"),
        ("p=0.2", "availability.p=0.2"),
        ("seeds=2", "seeds=[0, 1]"),
        ("partition=iid", "partition.scheme=iid"),
        ("training.server_optimizer=sgd", "training.server_optimizer.name=sgd"),
        ("dataset=MNIST", "dataset.name=mnist"),
        ("dataset.name=Fashion-MNIST", "dataset.name=fashion_mnist"),
        ("methods=fedavg", "methods=[{recipe: fedavg}]"),
        ("methods=[FedAvg,fed_prox]", "methods=[{recipe: fedavg},{recipe: fedprox}]"),
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
        ("seed=3", "; seeds=[3] is the seed of training"),
        ("metrix=loss", "metrix: unknown key"),
        ("num_clients=30", "num_clients: unknown key; did you mean partition.clients?"),
        ("batch=32", "batch: unknown key; did you mean training.batch_size?"),
        ("num_rounds=3", "num_rounds: unknown key; did you mean training.rounds?"),
        ("dirichlet=0.1", "dirichlet: unknown key; did you mean partition=dirichlet alpha=0.1?"),
        ("plugin=x.py", "plugin: unknown key; did you mean the option --plugin FILE?"),
        ("alpha=0.1", "partition.scheme pathological has no alpha; partition=dirichlet alpha=0.1 chooses one that has"),
        ("hidden=[3]", "model.name rebafl_fmnist has no hidden; model=mlp hidden=[3] chooses one that has"),
        ("learning_rat=3", "did you mean 'training.optimizer.learning_rate' or 'training.server_optimizer.learning"),
        ("lrr=3", "lrr: unknown key; did you mean 'training.optimizer.learning_rate' or 'training.server_"),
        ("partition.scheme=iid alpha=1", "command line: alpha: unknown key; partition.scheme iid has no alpha;"),
        ("lr=[0.1, 0.2]", "go without brackets on the command line: learning_rate=0.1,0.2"),
        ("lr={from: 0.1, to: 1}", "a range is for an axis in a file: sweep: [{learning_rate: {from: "),
        ("training.lr=3", "did you mean 'optimizer.learning_rate' or 'server_optimizer.learning_rate'?"),
        ("methods=[FedProks]", "methods.0.recipe: received 'FedProks'; did you mean 'fedprox'"),
    ],
)
def test_a_short_form_that_is_unclear_is_told(override, fragment):
    assert fragment in refusal(BUILTIN, re.split(" (?=alpha)", override))


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


def test_a_folder_does_not_hide_the_built_in_configuration_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    assert load_config("quickstart") == load_config(None)


def test_short_keys_mean_the_same_in_a_file_and_on_the_command_line(write):
    lines = ["rounds: 3", "lr: 0.5", "partition: dirichlet", "alpha: 2", "training.batch_size: 7", "seeds: 2"]
    file = write("\n".join(["name: short", "base: quickstart", "methods: [fedavg, rebafl]", *lines]))
    changes = [line.replace(": ", "=") for line in lines]
    assert load_config(file) == load_config(None, ["name=short", "methods=fedavg,{recipe: rebafl}", *changes])
    os.rename(file, f"{file}.base.yaml")
    above = load_config(write(f"base: {file}.base.yaml\nalpha: 3\n"))
    assert (above.partition.parameters["alpha"], above.training.rounds) == (3, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name.first: 3", "my.yaml: name.first: name is 'my', which has no keys"),
        ("every: 3\ntraining: {optimizer: {schedule: step}}", "my.yaml: every: ambiguous key; give the full path: "),
        ("rounds: 0", "my.yaml: training.rounds: received 0, must be an integer of at least 1"),
        ("rouns: 1", "my.yaml: rouns: unknown key; did you mean 'training.rounds'? allowed: auxiliary,"),
    ],
)
def test_a_short_key_that_does_not_fit_is_told(write, text, message):
    assert message in refusal(write(f"name: my\nmethods: [fedavg]\n{text}\n"))


def test_every_key_is_in_the_schema():
    schema = json_schema()
    for key in key_references():
        node = schema
        for name in key.path.split("."):
            node = next(kind for kind in [node, *node.get("anyOf", [])] if "properties" in kind)["properties"][name]


def test_every_key_has_a_meaning_except_parameters_of_optaxs_schedules():
    assert all("schedule." in key.path for key in key_references() if not key.meaning)


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


def test_a_parameter_of_several_choices_has_the_values_of_all_in_the_schema():
    node = json_schema()["properties"]["availability"]["anyOf"][1]["properties"]["p"]
    assert [kind["type"] for kind in node["anyOf"]] == ["number", "array"]


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
        ("5e-4", 0.0005),
        ("1.", 1.0),
        ("-.5", -0.5),
        ("+3", 3),
        ("010", 10),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("no", "no"),
        ("True", True),
        ("~", None),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("'1'", "1"),
        (".inf", math.inf),
        ("-inf", -math.inf),
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
        (
            "{name: emnist}",
            "did you mean 'emnist_astraea' or 'emnist_balanced' or 'emnist_byclass' or 'emnist_bymerge'",
        ),
        ("{name: npz}", "dataset.path: missing"),
        ("{name: npz, path: a.npz, side: 3}", "dataset.side: unknown key for npz"),
        ("{name: image_folder, path: a, channels: x}", "dataset.channels: received 'x'"),
        ("{name: csv, path: a.csv}", "dataset.label: missing"),
        ("{name: csv, path: a, label: y, inputs: y}", "dataset.inputs: received 'y'"),
        ("{name: mnist, path: a}", "dataset.path: unknown key for mnist"),
    ],
)
def test_own_files_have_a_path(dataset, message):
    with pytest.raises(ConfigError, match=message):
        load_config(BUILTIN, [f"dataset={dataset}"])


def test_own_files_are_written_out():
    config = load_config(BUILTIN, ["dataset={name: image_folder, path: a}", "dataset.side=32"])
    options = {"side": 32, "channels": 3, "test": None, "test_seed": 0}
    assert config.dataset.parameters == {"path": "a", **options, "mean": "own", "std": "own"}
    assert load_config(BUILTIN, ["dataset={name: npz, path: a}", "dataset.name=mnist"]).dataset.parameters == {
        "mean": (0.1307,),
        "std": (0.3081,),
    }


@pytest.mark.parametrize(
    ("model", "options", "written"),
    [
        ("{name: mlp, hidden: [128, 32]}", {"hidden": (128, 32)}, {"hidden": [128, 32]}),
        ("{name: vgg9, dropout: 0}", {"dropout": (0.0, 0.0, 0.0)}, {"dropout": [0.0, 0.0, 0.0]}),
        ("{name: rebafl_fmnist}", {}, {}),
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
        ("{name: vgg9, dropout: 1}", "received 1"),
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


def test_two_methods_of_one_recipe_need_a_name():
    message = "methods.1.name: received 'moon', already the name of methods.0; give one of them another `name`"
    assert refusal(None, ["methods=[{recipe: moon, mu: 1}, {recipe: moon, mu: 5}]"]).endswith(message)


def test_a_models_weights_are_a_file_like_others(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("model: {name: mlp, weights: w.npz}\nmethods: [fedavg]\n")
    config = load_config(file)
    assert config.model.weights == str(tmp_path / "w.npz")
    again = load_config(file, ["model.weights=/elsewhere/w.npz"])
    other = load_config(file, ["weights=v.npz"])
    assert other.model.weights == str(Path("v.npz").absolute())
    assert run_digest(again) == run_digest(config) != run_digest(other)
    assert "weights" in resolved_yaml(config) and "weights" not in resolved_yaml(load_config(None))
    # A paper's table that starts from pretrained weights is not the paper's.
    registered.load_included()
    paper = load_config("papers/rebafl/table1_fmnist_m20", ["model.weights=w.npz"]).paper
    assert paper is not None and paper.setting == {"model.weights": None}
