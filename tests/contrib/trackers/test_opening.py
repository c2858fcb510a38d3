"""Trackers by name: what a user without the package meets."""

import sys

import pytest
from typer.testing import CliRunner

from fedjax_bal import plugins
from fedjax_bal.cli.app import app
from fedjax_bal.lab.trackers import open_trackers

NAMES = ("tensorboard", "wandb", "mlflow", "trackio")


def forget(monkeypatch, package):
    """As if nothing of a package had been imported yet; afterwards as it was."""
    monkeypatch.setitem(sys.modules, package, None)
    for module in [module for module in sys.modules if module.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)


@pytest.mark.parametrize("changes", [(), ("lr=0.1,0.2",)], ids=["run", "sweep"])
@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_is_named_before_the_folder_is_taken(tmp_path, monkeypatch, name, changes):
    monkeypatch.chdir(tmp_path)
    forget(monkeypatch, name)
    monkeypatch.setitem(sys.modules, name, None)
    result = CliRunner().invoke(app, ["run", *changes, "--track", name])
    assert result.exit_code == 2
    assert f"--track: {name} can't be imported" in result.output
    assert f"pip install {name}" in result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.rglob("*.yaml"))


def test_a_folder_of_that_name_is_not_taken_for_the_package(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    forget(monkeypatch, "wandb")
    plugins.load_plugins([plugins.TRACKERS])
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ValueError, match=r"wandb can't be imported.*pip install wandb"):
        open_trackers(["wandb"], tmp_path)


def test_an_unknown_tracker_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run", "--track", "wandbb"])
    assert result.exit_code == 2
    assert (
        "--track: received 'wandbb'; did you mean 'wandb'? allowed: mlflow, tensorboard, trackio, wandb"
        in result.output
    )
