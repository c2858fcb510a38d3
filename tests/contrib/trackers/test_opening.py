"""Trackers by name: what a user without the extra meets; and runs whose places are distinct and stay inside."""

import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedjax_bal import plugins
from fedjax_bal.cli.app import app
from fedjax_bal.lab.trackers import folder_names, open_trackers, scalars

NAMES = ("tensorboard", "wandb")
PRINTABLE = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=60)


def forget(monkeypatch, package):
    """As if nothing of a package had been imported yet; afterwards as it was."""
    monkeypatch.setitem(sys.modules, package, None)
    for module in [module for module in sys.modules if module.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_extra_is_named_before_the_folder_is_taken(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    forget(monkeypatch, name)
    monkeypatch.setitem(sys.modules, name, None)
    result = CliRunner().invoke(app, ["run", "--track", name])
    assert result.exit_code == 2
    assert f"--track: {name} can't be imported" in result.output
    assert f"pip install 'fedjax_bal[{name}]'" in result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.rglob("config.yaml"))


def test_a_folder_of_that_name_is_not_taken_for_the_package(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    forget(monkeypatch, "wandb")
    plugins.load_plugins([plugins.TRACKERS])
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ValueError, match=r"wandb can't be imported.*fedjax_bal\[wandb\]"):
        open_trackers(["wandb"], tmp_path)


def test_an_unknown_tracker_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run", "--track", "wandbb"])
    assert result.exit_code == 2
    assert "--track: received 'wandbb'; did you mean 'wandb'? allowed: tensorboard, wandb" in result.output


@example(["a/b", "a_b", "A_B", "a_b (2)"])
@example(["..", ".", "__", "../..", "/etc", "a\\b", "con.", " "])
@given(st.lists(PRINTABLE, min_size=1, max_size=8, unique=True))
def test_places_are_distinct_and_below_the_folder(names):
    found = folder_names(names)
    assert len({name.casefold() for name in found}) == len(names)
    for name in found:
        assert Path("root", name).parts == ("root", name)
        assert not name.startswith(".")
        assert len(name.encode()) <= 255
        assert not any(unicodedata.category(sign) in ("Cc", "Zl", "Zp") for sign in name)


def test_scalars_are_the_numbers_of_a_line():
    line = {"method": "a", "seed": 3, "round": 5, "bytes_up": 7, "done": True, "text": "x", "nothing": None}
    line |= {"per_class": [0.5, None, 1], "nested": {"x": [2.0]}}
    assert scalars(line) == {"bytes_up": 7.0, "per_class/0": 0.5, "per_class/2": 1.0, "nested/x/0": 2.0}
