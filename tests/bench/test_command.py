"""`fedjax-bal bench` as a user meets it."""

import json
import sys

import pytest
import small_run
from typer.testing import CliRunner

from fedjax_bal.bench import measure
from fedjax_bal.cli.app import app

BAD = {
    "unknown workload": (["--workload", "W9"], ["--workload: received 'W9'", "W4b"]),
    "a negative time": (["--seconds", "-1"], ["--seconds: received -1"]),
    "a cohort that is too large": (
        ["--workload", "W3", "--clients-per-round", "1001"],
        ["received 1001, but there are only 1000 clients"],
    ),
    "data that is not there": (["--workload", "W3", "--data-dir", "."], ["fashion_mnist was not found"]),
    "a change that a workload does not take": (["training.batch_size=3"], ["'training.batch_size=3'", "execution.*"]),
    "no device": (["--devices", "none"], ["--devices: received 'none'"]),
    "a configuration and a workload": (["small.yaml", "--workload", "W3"], ["--workload", "small.yaml"]),
    "a file that can't be written": (["--json", "nowhere/out.json"], ["--json: received nowhere/out.json"]),
    "a diverging method": (
        ["small.yaml", "training.optimizer.learning_rate=1e30"],
        ["fedavg: diverged in round 1", "lower it"],
    ),
}
KEYS = """
workload client_updates_per_s samples_per_s spread compile_s flops_per_s matmul_peak_flops_per_s matmul_peak_share
padding_waste peak_memory_bytes memory_kind device devices versions strategy precision rounds clients_per_round params
train_loss convolution platform instruction_set published
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working directory with the small comparison, dispatches of one round and a small matrix."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    monkeypatch.setattr(measure, "_DISPATCH_S", 1e-9)
    monkeypatch.setattr(measure, "_SIDE", {"cpu": 256})
    (tmp_path / "small.yaml").write_text(small_run.TEXT)
    return tmp_path


def invoke(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_bad_input_gives_one_message_and_exit_code_2(name):
    arguments, fragments = BAD[name]
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    for fragment in fragments:
        assert fragment in result.output


@pytest.mark.slow
def test_every_method_of_a_configuration_is_measured(here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = invoke("small.yaml", "--seconds", 0, "--json", "out.json", "--clients-per-round", 4)
    assert result.exit_code == 0, result.output
    records = json.loads((here / "out.json").read_text())
    assert [record["workload"] for record in records] == ["fedavg", "control variates"]
    for record in records:
        assert set(record) >= set(KEYS.split())
        assert record["clients_per_round"] == 4
        assert record["samples_per_s"] == pytest.approx(40 * record["client_updates_per_s"])
        assert f"{record['compile_s']:.1f} s" in result.stdout
    for word in ("fedavg", "control", "variates"):
        assert word in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.slow
def test_a_workload_is_measured_and_json_alone_goes_to_standard_output():
    arguments = ("--workload", "W3", "--seconds", 0, "--clients-per-round", 2, "--json", "-", "execution.strategy=vmap")
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    (record,) = json.loads(result.stdout)
    assert (record["workload"], record["strategy"], record["data"]) == ("W3", "vmap", "random pixels")
    assert record["samples_per_s"] == pytest.approx(60 * record["client_updates_per_s"])
    assert record["padding_waste"] == 0
    assert "updates/s" in result.stderr
