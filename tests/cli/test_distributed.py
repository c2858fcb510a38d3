"""One run on several processes: it comes to the same as on one, and nothing is lost when one of them ends."""

import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import small_run
from jax._src.clusters.slurm_cluster import SlurmCluster
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.cli.distributed import place_of
from fedjax_bal.engine.processes.connection import free_port
from fedjax_bal.runs import checkpoint

METHODS = "methods=[{recipe: scaffold}, {recipe: flcir, execution: {rounds_per_dispatch: 1}}]"
CHANGES = ("seeds=[0]", METHODS, "auxiliary.per_class=4", "partition.clients=12")  # 12: cut over four devices
SLURM = {"SLURM_JOB_ID": "70001", "SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
SECONDS = 300  # of patience


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with the small comparison's file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(small_run.TEXT)
    return tmp_path


def invoke(*arguments):
    return CliRunner().invoke(app, ["run", "small.yaml", *CHANGES, "--plain", *arguments])


class Pair:
    """Two processes of two devices each, in a folder."""

    def __init__(self, out):
        place = [
            "--out",
            out,
            "--devices",
            "2",
            "--distributed",
            "--coordinator",
            f"127.0.0.1:{free_port('127.0.0.1')}",
        ]
        common = [sys.executable, "-m", "fedjax_bal", "run", "small.yaml", *CHANGES, "--plain", *place]
        self.both = [
            subprocess.Popen(
                [*common, "--processes", "2", "--process-id", str(index)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for index in range(2)
        ]  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.both:
            process.kill()
            process.communicate()

    def ends(self):
        """Exit codes and what was said."""
        said = [process.communicate(timeout=SECONDS)[0] for process in self.both]
        return [process.returncode for process in self.both], said

    def wait_for_a_checkpoint(self, folder):
        """Waits for one that was not there when the processes began."""
        until, before = time.monotonic() + SECONDS, set(folder.glob("checkpoints/*/round-*"))
        while not set(folder.glob("checkpoints/*/round-*")) - before:
            assert time.monotonic() < until and all(process.poll() is None for process in self.both), self.ends()
            time.sleep(0.02)


def assert_alike(got, wanted):
    for one, other in zip(small_run.metrics(got), small_run.metrics(wanted), strict=True):
        assert one["per_class_accuracy"] == other["per_class_accuracy"]
        assert one["test_loss"] == pytest.approx(other["test_loss"], rel=1e-5)
        assert {**one, "test_loss": 0, "train_loss": 0} == {**other, "test_loss": 0, "train_loss": 0}
    for method in range(2):
        one, other = (parameters(folder, method) for folder in (got, wanted))
        assert one.keys() == other.keys()
        assert max(np.abs(one[name] - other[name]).max() for name in one) < 1e-5


def parameters(folder, method):
    """The floating-point arrays of a run's last checkpoint."""
    file = checkpoint.generations(folder / "checkpoints" / f"method-{method}-seed-0")[0]
    with np.load(file) as arrays:
        return {name: arrays[name] for name in arrays.files if "state" in name and arrays[name].dtype == np.float32}


@pytest.mark.slow
def test_two_processes_come_to_the_same_as_one_and_lose_nothing(here):
    assert invoke("--out", "one").exit_code == 0
    with Pair("two") as pair:
        pair.wait_for_a_checkpoint(here / "two")
        pair.both[1].kill()
        codes, said = pair.ends()
    assert codes[0] != 0, said
    assert "start all processes again with the same command" in said[0]

    with Pair("two") as pair:
        pair.wait_for_a_checkpoint(here / "two")
        pair.both[1].send_signal(signal.SIGINT)
        codes, said = pair.ends()
    assert codes == [130, 130], said
    assert "Stopped; all is saved in two" in said[0]
    assert "Stopped" not in said[1]
    rounds = len(small_run.metrics(here / "two"))
    assert rounds < 8

    shutil.copytree("two", "one after two")
    assert invoke("--out", "one after two").exit_code == 0
    assert_alike(here / "one after two", here / "one")
    with Pair("two") as pair:
        codes, said = pair.ends()
    assert codes == [0, 0], said
    assert "report: two/report.html" in said[0]
    assert "process 1 of 2 is at work for process 0" in said[1]
    assert "report" not in said[1]
    assert_alike(here / "two", here / "one")


@pytest.mark.slow
def test_why_a_process_ends_is_told_by_the_others_too(here):
    (here / "two").mkdir()
    (here / "two" / "mine.txt").write_text("mine")
    with Pair("two") as pair:
        codes, said = pair.ends()
    assert codes == [2, 1]
    assert "two: is not empty and not a run folder (it holds mine.txt)" in said[0]
    assert "process 0 has ended: two: is not empty and not a run folder" in said[1]


BAD = {
    "flags alone": (["--process-id", "1"], "--process-id: received without --distributed"),
    "no flags": (["--distributed"], "--coordinator and --process-id and --processes missing: give --coordinator HOST"),
    "half": (["--distributed", "--coordinator", "a:1", "--process-id", "0"], "--distributed: --processes missing"),
    "no port": (["--distributed", "--coordinator", "a", "--process-id", "0", "--processes", "2"], "must be HOST:PORT"),
    "one": (["--distributed", "--coordinator", "a:1", "--process-id", "0", "--processes", "1"], "process 0 of 1"),
    "beyond": (["--distributed", "--coordinator", "a:1", "--process-id", "2", "--processes", "2"], "process 2 of 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_flags_that_do_not_fit_are_refused(here, name):
    flags, message = BAD[name]
    result = invoke(*flags)
    assert result.exit_code == 2
    assert message in result.output
    assert not (here / "runs").exists()


def test_a_sweep_says_what_to_use_instead():
    result = CliRunner().invoke(app, ["sweep", "any.yaml", "--distributed"])
    assert result.exit_code == 2
    assert "give --engine ray" in result.output


def test_the_environment_fills_in_for_flags():
    ours = {"FEDJAX_BAL_COORDINATOR": "[::1]:4321", "FEDJAX_BAL_PROCESS_ID": "1", "FEDJAX_BAL_PROCESSES": "3"}
    place = place_of(True, None, 2, None, ours | SLURM | {"SLURM_STEP_NODELIST": "n1"})
    assert (place.host, place.port, place.index, place.count) == ("::1", 4321, 2, 3)
    with pytest.raises(ValueError, match="FEDJAX_BAL_PROCESSES: received 'x', must be an integer"):
        place_of(True, None, None, None, ours | {"FEDJAX_BAL_PROCESSES": "x"})


@pytest.mark.parametrize("nodes", ["node7", "n1,n2", "node[003-007,9]", "node[12,15-17],other", "gpu-[4]"])
def test_slurm_is_read_as_jax_reads_it(monkeypatch, nodes):
    environment = SLURM | {"SLURM_STEP_NODELIST": nodes}
    place = place_of(True, None, None, None, environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert place.address.removesuffix("]") == SlurmCluster.get_coordinator_address(None, None).replace("]", "")
    assert (place.index, place.count) == (SlurmCluster.get_process_id(), SlurmCluster.get_process_count())
    del environment["SLURM_PROCID"]
    with pytest.raises(ValueError, match="under SLURM all three are known"):
        place_of(True, None, None, None, environment)
