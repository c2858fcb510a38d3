"""Some cases of every target; `campaign.py` runs thousands."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import quick
from fuzz import material
from fuzz.campaign import run_case
from fuzz.guard import LONGEST, attempt
from fuzz.mutate import HOSTILE_NUMBERS, HOSTILE_TEXTS
from fuzz.targets import TARGETS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SLOW = {
    "report": 4,
    "comparison": 1,
    "swept": 6,
    "command": 8,
    "trained": 3,
    "plugin": 15,
    "config": 20,
    "overrides": 20,
    "sweep": 12,
    "cinic": 20,
    "tfds": 20,
}
BOUNDED = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=False
)

deepest = 1
for _ in range(900):
    deepest = [deepest]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from([*HOSTILE_TEXTS, *HOSTILE_NUMBERS]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
) | st.just(deepest)  # fmt: skip


def paths(tree, path=()):
    """Where something stands in a tree; of a list's items only the first, for they are alike."""
    if path:
        yield path
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from paths(value, (*path, key))
    elif isinstance(tree, list) and tree:
        yield from paths(tree[0], (*path, 0))


def replaced(tree, path, value):
    """A tree with another value in a place."""
    tree = copy.deepcopy(tree)
    owner = tree
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = value
    return tree


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    """A function that gives a target's valid input."""
    made = {}

    def make(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(f"valid-{name}")
            TARGETS[name].prepare(made[name])
        return made[name]

    return make


@pytest.mark.parametrize("name", quick.only(TARGETS, *(name for name in TARGETS if name not in ("command", "trained"))))
def test_a_message_or_success(name, valid, tmp_path):

    @settings(BOUNDED, max_examples=SLOW.get(name, 40))
    @given(st.integers(0, 2**32))
    def cases(seed):
        outcome, _ = run_case(name, seed, 0, valid(name), tmp_path / "case")
        assert not outcome.bad, f"campaign.py --target {name} --seed {seed} --only 0: {outcome}"

    cases()


def run_files(folder):
    """The texts of a run's folder as trees."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {"summary.json": json.loads((folder / "summary.json").read_text()), "metrics.jsonl": lines[-1:]}


@pytest.mark.slow
def test_every_field_of_a_run_can_be_anything(valid, tmp_path):
    from fedjax_bal.report.page import _page
    from fedjax_bal.report.published import beside_of_run
    from fedjax_bal.report.table_files import summarise_group
    from fedjax_bal.runs import RunFolder

    folder = valid("report")
    trees = run_files(folder)
    places = [(name, path) for name, tree in trees.items() for path in paths(tree)]
    assert len(places) > 90
    for name in ("config.yaml", "metrics.jsonl", "summary.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())

    def written():
        run = RunFolder(tmp_path).read()
        return _page(run, [], beside_of_run(run.config, summarise_group(run.summary["runs"])))

    @settings(BOUNDED, max_examples=150)
    @given(st.sampled_from(places), anything)
    def cases(place, value):
        name, path = place
        try:
            tree = replaced(trees[name], path, value)
            (tmp_path / name).write_text(json.dumps(tree if name == "summary.json" else tree[0] if tree else {}) + "\n")
            outcome = attempt(written)
            assert not outcome.bad, (name, path, outcome)
        finally:
            (tmp_path / name).write_bytes((folder / name).read_bytes())

    cases()


def test_every_key_of_a_configuration_can_be_anything():
    from fedjax_bal.config.load import build_config, read_layers

    tree = read_layers(material.CONFIGS / "combined.yaml").merged
    places = list(paths(tree))

    @settings(BOUNDED, max_examples=60)
    @given(st.sampled_from(places), anything)
    def cases(path, value):
        outcome = attempt(lambda: build_config(replaced(tree, path, value), [], "mine.yaml"))
        assert not outcome.bad, (path, outcome)

    cases()


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda folder: 1 / 0, "traceback"),
        (lambda folder: int("x"), "traceback"),
        (lambda folder: (folder / "kept").write_text(""), "success"),
        (lambda folder: (folder.parent / "elsewhere").write_text(""), "success"),
        (lambda folder: __import__("pickle").loads(b"\x80\x04N."), "success"),
        (lambda folder: bytearray(2**60), "memory"),
    ],
)
def test_the_guard_sees_what_it_is_for(call, kind, tmp_path):
    (tmp_path / "own").mkdir()
    outcome = attempt(lambda: call(tmp_path / "own"), (tmp_path / "own",))
    assert outcome.kind == kind
    assert outcome.bad == (not (tmp_path / "own" / "kept").exists())
    assert bool(outcome.outside) == (tmp_path / "elsewhere").exists()


def test_the_guard_ends_what_hangs(tmp_path, monkeypatch):
    import os

    monkeypatch.setattr("fuzz.guard.PATIENCE", 0.2)
    os.mkfifo(tmp_path / "pipe")
    assert attempt(lambda: (tmp_path / "pipe").read_bytes()).kind == "hang"
    assert LONGEST == 10


@pytest.mark.slow
def test_the_campaign_counts(tmp_path):
    command = [sys.executable, str(Path(__file__).with_name("campaign.py")), "--cases", "12", "--target", "traces"]
    ended = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True)
    assert ended.returncode == 0, ended
    cells = ended.stdout.splitlines()[-1].split()
    assert cells[:3] == ["all", "12", "12"]
    assert sum(map(int, cells[3:5])) == 12
    assert cells[5:11] == ["0"] * 6
    assert not list(tmp_path.iterdir())
