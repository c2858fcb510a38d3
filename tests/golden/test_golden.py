"""The package behaves as recorded; `python tests/golden/record.py` records it anew, and prints what has changed."""

import math
from pathlib import Path

import pytest
import quick
from golden import cases, configs, states, texts

from fedjax_bal.models.convolution import automatic, rules


def no_record(name):
    """What to do about a missing record."""
    case = Path(name).stem if name.startswith("states/") else name.removesuffix(".txt").partition("/")[0]
    return f"no record of {Path(name).stem}: python tests/golden/record.py {case}"


def compare(name, new, alike=str.__eq__):
    """Compares sections with those of the same names in a record."""
    recorded = texts.read(name)
    assert recorded, no_record(name)
    old = {section: recorded.get(section, []) for section in new}
    found = texts.differences(name, old, texts.settled(old, new, alike))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", quick.only(cases.CASES, *cases.QUICK))
def test_final_states_are_as_recorded(name):
    compare(states.file_of(name), states.record(name), states.alike(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    quick.only(
        [name for name, case in cases.CASES.items() if case.model == cases.BATCH_NORM],
        "reset_statistics",
        others=pytest.mark.nightly,
    ),
)
def test_final_states_with_built_in_convolutions_are_as_recorded(name, monkeypatch):
    if automatic.why_not_builtin():
        pytest.skip(automatic.why_not_builtin())
    monkeypatch.setattr(rules, "FEW_PRODUCTS", 1)
    monkeypatch.setattr(rules, "FEW_IN_AN_IMAGE", 1)
    monkeypatch.setattr(states, "CONVOLUTION", "builtin")
    compare(states.file_of(name), states.record(name), states.alike(name))


@pytest.mark.slow
@pytest.mark.parametrize("folder", configs.FOLDERS)
def test_configurations_resolve_as_recorded(folder):
    compare(configs.file_of(folder), configs.record(folder))


def model_lines(recipe):
    """The lines of a record that say what the model is and how well it does; ccvr and creff change only the latter."""
    record = texts.read(states.file_of(recipe))
    assert record, no_record(states.file_of(recipe))
    lines = [*record["final state"], *record["metrics by round"]]
    return [line for line in lines if line.startswith(("variables.", "test_loss:"))]


@pytest.mark.parametrize("name", [name for name in cases.RECIPES if name != "fedavg"])
def test_a_recipe_differs_from_fedavg(name):
    own, fedavg = model_lines(name), model_lines("fedavg")
    same = len(own) == len(fedavg) and all(texts.numbers_alike(*pair, 1e-5) for pair in zip(fedavg, own, strict=True))
    assert not same, f"{name} equals fedavg with its defaults: add hyperparameters to ACTIVE in tests/table.py"


@pytest.mark.parametrize(
    ("new", "difference"),
    [
        ("w float32[4]: 2; 1 0.5 0 -1.5", 0.0),
        ("w float32[4]: 2; 1 0.5 0.01 -1.503", 0.01),  # relative to the root mean square, 2 / sqrt(4)
        ("w float32[4]: 2; 1 0.5 0 -1.8", 0.2),  # relative to 1.5
        ("w float32[4]: 2; 1 0.5 nan -1.5", math.inf),
        ("v float32[4]: 2; 1 0.5 0 -1.5", math.inf),
        ("w float32[4]: 2; 1 0.5 0", math.inf),
    ],
)
def test_differences_are_relative_to_a_number_or_its_array(new, difference):
    assert texts.difference("w float32[4]: 2; 1 0.5 0 -1.5", new) == pytest.approx(difference)


def test_there_are_no_other_records():
    wanted = {states.file_of(name) for name in cases.CASES} | {configs.file_of(folder) for folder in configs.FOLDERS}
    found = {file.relative_to(texts.FOLDER).as_posix() for file in texts.FOLDER.rglob("*.txt")}
    missing, superfluous = sorted(wanted - found), sorted(found - wanted)
    assert not missing, "; ".join(map(no_record, missing))
    assert not superfluous, f"records of nothing that exists, to be deleted: {', '.join(superfluous)}"
