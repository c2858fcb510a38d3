"""Plug-ins that come along, through the command line: named by their modules, and part of what a run is."""

import json

import pytest
import registered
import small_run
import yaml
from typer.testing import CliRunner

from fedjax_bal.cli.app import app

PLUGIN = "fedjax_bal.contrib.late_control_variates"
TEXT = small_run.TEXT.replace("{recipe: scaffold, name: control variates}", "{recipe: late_control_variates, clip: 10}")


def invoke(*words):
    """A command as of a new process."""
    result = CliRunner().invoke(app, list(words))
    registered.forget()
    return result


@pytest.mark.slow
def test_a_run_names_the_plugin_it_needs_and_resumes_with_it_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(TEXT)
    command = ("run", "small.yaml", "methods=[{recipe: late_control_variates}]", "rounds=2", "seeds=[0]", "--plain")
    refused = invoke(*command)
    assert refused.exit_code == 2 and "received 'late_control_variates'" in refused.output
    assert "--plugin" in refused.output
    result = invoke(*command, "--plugin", PLUGIN)
    assert result.exit_code == 0, result.output
    run = tmp_path / "runs" / "small"
    assert yaml.safe_load((run / "config.yaml").read_text())["plugins"] == {PLUGIN: "included"}
    assert json.loads((run / "summary.json").read_text())["command"]["plugins"] == [PLUGIN]
    assert f"--plugin {PLUGIN}" in (run / "report.html").read_text() and not (run / "plugins").exists()
    assert invoke("run", str(run / "config.yaml"), "--out", str(run), "--plain").exit_code == 2
    again = invoke("run", str(run / "config.yaml"), "--out", str(run), "--plain", "--plugin", PLUGIN)
    assert again.exit_code == 0, again.output
