"""Sweeps read from a file: their axes, points, labels, and what is wrong with them."""

from pathlib import Path

import pytest
import small_run

from fedjax_bal.config import ConfigError, load_config
from fedjax_bal.lab.sweep_plan import Axis, combinations, load_sweep, read_axes, short_keys

RANGES = [
    ({"from": 0, "to": 1, "steps": 3}, (0.0, 0.5, 1.0)),
    ({"from": 10, "to": 40, "steps": 4}, (10, 20, 30, 40)),
    ({"from": 0.001, "to": 1, "steps": 4, "scale": "log"}, (0.001, 0.01, 0.1, 1.0)),
    ({"from": 0.01, "to": 0.3, "steps": 4, "scale": "log"}, (0.01, 0.0311, 0.0965, 0.3)),
]


@pytest.mark.parametrize(("wanted", "values"), RANGES, ids=[str(values) for _, values in RANGES])
def test_a_range_has_both_ends_and_even_steps(wanted, values):
    [axis] = read_axes([{"a.b": wanted}], "my.yaml")
    assert axis == Axis(("a.b",), (values,))
    assert [type(value) for value in axis.values[0]] == [type(value) for value in values]


def test_keys_of_one_axis_change_together_and_axes_are_crossed():
    axes = read_axes([{"a": [1, 2], "b": ["x", "y"]}, {"c": [True, False]}], "my.yaml")
    assert combinations(axes) == [
        {"a": 1, "b": "x", "c": True},
        {"a": 1, "b": "x", "c": False},
        {"a": 2, "b": "y", "c": True},
        {"a": 2, "b": "y", "c": False},
    ]


BAD = [
    (None, "my.yaml: sweep: received null, must be a list of axes"),
    ([], r"sweep: received \[\], must be a list of axes"),
    ([3], "sweep.0: received 3, must be a mapping of keys to their values"),
    ([{"a": 3}], "sweep.0: a: received 3, must be a list of 1 to 1000 values"),
    ([{"a": [1, 2, 1]}], "sweep.0: a: received 1 twice"),
    ([{"a": [1]}, {"a": [2]}], "sweep.1: a: already on axis 0"),
    ([{"a..b": [1]}], "received the key 'a..b', must be a dotted path"),
    ([{"a": {"form": 1}}], "'form': unknown key of a range; did you mean 'from'. allowed: from, scale, steps, to"),
    ([{"a": {"from": 1, "to": 2, "steps": 1}}], "steps: received 1, must be an integer from 2 to 1000"),
    ([{"a": {"from": 0, "to": 2, "steps": 3, "scale": "log"}}], "with scale log, must be above 0"),
    ([{k: {"from": 0, "to": 1, "steps": 200}} for k in "abc"], "200 x 200 x 200 = 8000000 points; at most 10000"),
]


@pytest.mark.parametrize(("entries", "message"), BAD, ids=[message for _, message in BAD])
def test_what_is_no_axis_is_refused(entries, message):
    with pytest.raises(ConfigError, match=message):
        read_axes(entries, "my.yaml")


@pytest.fixture
def write(tmp_path):
    """Writes a sweep on top of the small comparison; returns its path."""
    (tmp_path / "small.yaml").write_text(small_run.TEXT)

    def to_file(text):
        file = tmp_path / "sweep.yaml"
        file.write_text(text)
        return file

    return to_file


def test_points_are_the_base_with_the_axes_values(write, tmp_path):
    file = write(
        "name: mine\nbase: small.yaml\ntraining: {rounds: 5}\n"
        "sweep: [{seeds: [[0], [3]]}, {partition.clients: [10, 5]}]"
    )
    sweep = load_sweep(file)
    assert sweep.name == "mine"
    assert [point.label for point in sweep.points] == [
        "seeds=_0_,clients=10-" + sweep.points[0].label[-8:],
        "seeds=_0_,clients=5-" + sweep.points[1].label[-8:],
        "seeds=_3_,clients=10-" + sweep.points[2].label[-8:],
        "seeds=_3_,clients=5-" + sweep.points[3].label[-8:],
    ]
    wanted = load_config(
        tmp_path / "small.yaml", ["name=mine", "training.rounds=5", "seeds=[3]", "partition.clients=5"]
    )
    assert sweep.points[3].config == wanted


def test_what_is_written_down_gives_the_same_sweep(write, tmp_path):
    file = write(
        "base: small.yaml\nmethods: [{recipe: fedprox, mu: 0.1}]\n"
        "sweep: [{methods.0.mu: {from: 0.1, to: 0.3, steps: 3}}]"
    )
    sweep = load_sweep(file, ["training.rounds=4"])
    assert [point.label for point in sweep.points] == ["mu=0.1", "mu=0.2", "mu=0.3"]
    assert [point.config.methods[0].recipes[0].hyperparameters["mu"] for point in sweep.points] == [0.1, 0.2, 0.3]
    (tmp_path / "again.yaml").write_text(sweep.text)
    again = load_sweep(tmp_path / "again.yaml", ["training.rounds=4"])
    assert again.points == sweep.points


def test_axes_have_the_whole_paths_of_their_keys(write):
    plan = load_sweep(write("base: small.yaml\nsweep: [{lr: [0.1], rounds: [3]}, {clients: [9]}]"))
    keys = [key for axis in plan.axes for key in axis.keys]
    assert keys == ["training.optimizer.learning_rate", "training.rounds", "partition.clients"]
    assert plan.points[0].label == "learning_rate=0.1,rounds=3,clients=9"


def test_keys_are_as_short_as_they_are_unique():
    keys = short_keys([Axis(("training.rounds",), ((1,),)), Axis(("partition.seed", "training.seed"), ((1,), (1,)))])
    assert list(keys.values()) == ["rounds", "partition.seed", "training.seed"]


def test_axes_of_the_command_line_are_those_of_a_file(write, tmp_path):
    file = write("name: mine\nbase: small.yaml\nsweep: [{lr: [0.1, 0.2]}, {batch_size: [5, 7]}]")
    changes = ["name=mine", "lr=0.1,0.2", "batch_size=5, 7"]
    here, there = load_sweep(tmp_path / "small.yaml", changes), load_sweep(file)
    assert here._replace(text="") == there._replace(text="")
    named = load_sweep(tmp_path / "small.yaml", changes[1:])
    assert named.name == "small-sweep" and named.configs.keys() == load_sweep(file).configs.keys()


def test_an_axis_of_the_command_line_may_be_a_name_or_a_list_or_depend_on_a_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_sweep(None, ["hidden=[8],[8, 8]"]).axes == (Axis(("model.hidden",), (([8], [8, 8]),)),)
    assert load_sweep(None, ["partition=iid,natural"]).axes == (Axis(("partition.scheme",), (("iid", "natural"),)),)
    assert load_sweep(None, ["alpha=1,2", "partition=quantity"]).axes == (Axis(("partition.alpha",), ((1, 2),)),)
    files = load_sweep(None, ["delivery=trace", "delivery.file=a.csv,b.csv"])
    assert [point.config.delivery.parameters["file"] for point in files.points] == [f"{tmp_path}/{x}.csv" for x in "ab"]


TOGETHER = "base: small.yaml\nsweep: [{rounds: [3, 4, 5], lr: [0.3, 0.4, 0.5]}, {batch_size: [5, 7]}]"


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        (["rounds=5,3"], [((3, 5), (0.3, 0.5)), ((5, 7),)]),
        (["rounds=4", "lr=0.4,0.4"], [((4,), (0.4,)), ((5, 7),)]),
        (["batch_size=6,8"], [((3, 4, 5), (0.3, 0.4, 0.5)), ((6, 8),)]),
        (["batch_size=9", "momentum=0,0.5"], [((3, 4, 5), (0.3, 0.4, 0.5)), ((9,),), ((0, 0.5),)]),
    ],
)
def test_the_command_line_chooses_values_of_the_axes_of_a_file(write, changes, values):
    sweep = load_sweep(write(TOGETHER), changes)
    assert [axis.values for axis in sweep.axes] == values
    assert load_sweep(write(sweep.text)).points == sweep.points


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        (TOGETHER, ["rounds=3,9"], "line: training.rounds: received 3, 9"),
        (TOGETHER, ["seed=1,2", "seed=3,4"], "command line: seed: received two axes"),
        (
            "base: small.yaml\nsweep: [{methods.1.mu: [0.1, 1]}]",
            ["methods=fedavg,rebafl"],
            "command line: methods: .*sweep.yaml sweeps methods.1.mu, a method by its place in the file's list",
        ),
        (TOGETHER, ["momentum=0,0.5", "momentum=0.2"], "momentum: received the axis 0,0.5 and the value 0.2"),
        (TOGETHER, [f"seed={','.join(map(str, range(1001)))}"], "seed: received"),
        (TOGETHER, [f"{key}={','.join(map(str, range(1, 90)))}" for key in ("seed", "batch_size")], "= 23763 points"),
        (
            "base: small.yaml",
            ["clients=5,20", "clients_per_round=5,9"],
            r"change together are one axis in a file: sweep: \[{partition.clients: \[5, 20\], selection.clients_per_r",
        ),
        ("base: small.yaml\nsweep: [{partition: [iid, natural]}]", ["partition.seed=3"], None),
        (
            "base: small.yaml\nsweep: [{training: [{rounds: 3}]}]",
            ["rounds=4"],
            "command line: training.rounds: is swept by .*sweep.yaml as a whole",
        ),
    ],
)
def test_axes_of_the_command_line_that_do_not_fit_are_refused(write, text, changes, message):
    if message is None:
        assert len(load_sweep(write(text), changes).points) == 2
        return
    with pytest.raises(ConfigError, match=message):
        load_sweep(write(text), changes)


def test_names_on_the_command_line_stand_for_the_entries_of_the_base():
    sweep = load_sweep(None, ["lr=0.2,0.3", "methods=[fedavg,rebafl]"])
    rates = [[method.training.optimizer.learning_rate for method in point.config.methods] for point in sweep.points]
    assert rates == [[0.2, 0.03], [0.3, 0.03]]


def test_files_on_an_axis_lie_beside_the_sweep(write, tmp_path):
    file = write("base: small.yaml\nsweep: [{delivery: [{name: trace, file: a.csv}]}, {delivery.file: [b.csv]}]")
    read = lambda *changes: load_sweep(file, changes).points[0].config.delivery.parameters["file"]
    assert read() == read("delivery.file=b.csv") == str(tmp_path / "b.csv")  # a value of the axis
    assert read("delivery.file=c.csv") == str(Path("c.csv").absolute())  # another one, of the command line


def test_keys_whose_ends_are_alike_keep_all_of_their_names(write):
    file = write("base: small.yaml\nsweep: [{name: [a]}, {model.name: [mlp]}]")
    assert load_sweep(file).points[0].label == "name=a,model.name=mlp"


@pytest.mark.parametrize(
    "axes",
    [
        "[{seeds: [[0], [1]]}, {partition_seeds: [[5], [6]]}]",
        "[{seeds: [[0], [0]], partition_seeds: [[5], [6]]}]",
        "[{partition_seeds: [[5, 6], [6, 5]]}]",
        "[{seeds: [[0], [0, 1]], rounds: [3, 4]}]",
    ],
)
def test_seeds_on_an_axis_may_occur_again_on_other_partitions_or_at_other_settings(write, axes):
    assert load_sweep(write(f"base: small.yaml\nsweep: {axes}")).points


BAD = [
    ("base: small.yaml", "lacks the key `sweep`, a list of axes"),
    ("base: 3\nsweep: [{seeds: [[0]]}]", "base: received 3"),
    ('base: "a\\0b"\nsweep: [{seeds: [[0]]}]', r"base: received 'a\\x00b'"),
    ('base: "a\\ud800b"\nsweep: [{seeds: [[0]]}]', r"base: received 'a\\ud800b'"),
    ("base: none.yaml\nsweep: [{seeds: [[0]]}]", "none.yaml: there is no such file"),
    ("base: sweeps/clients\nsweep: [{seeds: [[0]]}]", "base: sweeps/clients is a sweep itself"),
    ("base: small.yaml\nsweep: [{training.rouns: [3]}]", r"\(rouns=3\): training.rouns: unknown key"),
    ("base: small.yaml\nsweep: [{training.rounds: [3, 0]}]", r"\(rounds=0\): training.rounds: received 0"),
    ("base: small.yaml\nsweep: [{rounds: [3]}, {training.rounds: [4]}]", "training.rounds: swept 2 times"),
    (
        "base: small.yaml\nsweep: [{seeds: [1, 2]}]",
        "seeds: received 1 and 2",
    ),
    (
        "base: small.yaml\nsweep: [{seeds: [[0], [1, 0]]}, {rounds: [3]}]",
        r"received \[0\] and \[1, 0\]",
    ),
    (
        "base: small.yaml\nsweep: [{partition_seeds: [[5, 6], [7, 6]]}]",
        r"partition_seeds: received \[5, 6\] and \[7, 6\]",
    ),
    ("base: small.yaml\nsweep: [{name.x: [3]}]", r"\(x=3\): name.x: name is 'sweep'"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message for _, message in BAD])
def test_what_is_wrong_is_told_with_its_point(write, text, message):
    with pytest.raises(ConfigError, match=message):
        load_sweep(write(text))
