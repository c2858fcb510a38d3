"""One run on several processes: it comes to the same as on one, and nothing is lost when one of them ends."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import small_run
from rounding import SUM
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.cli.distributed import ProcessPlace, _check_agreement, _check_port, process_place, shared_facts
from fedjax_bal.config import load_config
from fedjax_bal.engine.processes import ProcessGroup
from fedjax_bal.lab import checkpoint

METHODS = "methods=[{recipe: scaffold}, {recipe: flcir, execution: {rounds_per_dispatch: 1}}]"
CHANGES = ("seeds=[0]", METHODS, "auxiliary.per_class=4", "partition.clients=12")  # 12: cut over four devices
SECONDS = 1200  # of patience, on a busy machine
SHORT = ("methods=[scaffold]", "training.rounds=2")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with the small comparison's file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(small_run.TEXT)
    return tmp_path


def invoke(*arguments):
    return CliRunner().invoke(app, ["run", "small.yaml", *CHANGES, "--plain", *arguments])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def by_flags(port, index):
    """Arguments and variables that tell a process its place."""
    return [f"--coordinator=127.0.0.1:{port}", "--processes=2", f"--process-id={index}"], {}


def by_mpirun(port, index):
    """The variables that mpirun sets, from which jax derives the address of the first process."""
    known = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911", "OMPI_COMM_WORLD_SIZE": "2"}
    known |= {"OMPI_COMM_WORLD_RANK": str(index), "OMPI_COMM_WORLD_LOCAL_RANK": "0", "JAX_COORDINATOR_PORT": str(port)}
    return [], known


class Pair:
    """Two processes of two devices each, in a folder; the second may have more arguments, and other variables."""

    def __init__(self, out, *changes, second=(), program=("-m", "fedjax_bal"), place=by_flags, **variables):
        common = [sys.executable, *program, "run", "small.yaml", *CHANGES, *changes, "--plain", "--distributed"]
        common += ["--devices", "2", "--out", out]
        port = free_port()
        self.both = []
        for index in range(2):
            flags, known = place(port, index)
            self.both.append(
                subprocess.Popen(
                    [*common, *flags, *(second if index else ())],
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                    env={**os.environ, **known, **(variables if index else {})},
                )
            )  # fmt: skip

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
        assert one["test_loss"] == pytest.approx(other["test_loss"], rel=SUM)
        assert {**one, "test_loss": 0, "train_loss": 0} == {**other, "test_loss": 0, "train_loss": 0}
    for method in ("scaffold", "flcir"):
        one, other = (parameters(folder, method) for folder in (got, wanted))
        assert one.keys() == other.keys()
        assert max(np.abs(one[name] - other[name]).max() for name in one) < SUM


def parameters(folder, method):
    """The floating-point arrays of a run's last checkpoint."""
    file = checkpoint.generations(folder / "checkpoints" / f"{method}-seed-0")[0]
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

    with Pair("two") as pair:
        pair.wait_for_a_checkpoint(here / "two")
        pair.both[1].send_signal(signal.SIGINT)
        codes, said = pair.ends()
    assert codes == [130, 130], said
    assert "Stopped; everything is saved in two" in said[0]
    assert "Stopped" not in said[1]

    shutil.copytree("two", "one after two")
    assert invoke("--out", "one after two").exit_code == 0
    assert_alike(here / "one after two", here / "one")
    with Pair("two", place=by_mpirun) as pair:  # a cluster that jax knows needs no flags
        codes, said = pair.ends()
    assert codes == [0, 0], said
    assert "report: two/report.html" in said[0]
    assert "process 1 of 2 works for process 0" in said[1]
    assert "report" not in said[1]
    assert_alike(here / "two", here / "one")


@pytest.mark.slow
def test_why_a_process_ends_is_told_by_the_others_too(here):
    (here / "two").mkdir()
    (here / "two" / "mine.txt").write_text("mine")
    with Pair("two") as pair:
        codes, said = pair.ends()
    assert codes[0] == 2 and codes[1] not in (0, None), said
    assert "two: is not empty and not a run folder (it holds mine.txt)" in said[0]
    assert [file.name for file in (here / "two").iterdir()] == ["mine.txt"]


SLOW_PAGES = """
import time
from fedjax_bal.cli import distributed, running, start
running.show_comparison = lambda *of_a_run: time.sleep(distributed._HEARTBEAT_S + 5)
start.main()
"""


@pytest.mark.nightly
def test_the_others_wait_while_the_first_writes_pages(here):
    with Pair("two", *SHORT, program=("-c", SLOW_PAGES)) as pair:
        codes, said = pair.ends()
    assert codes == [0, 0], said


OTHER_NUMBERS = {
    "JAX_DEFAULT_PRNG_IMPL": "rbg",
    "JAX_THREEFRY_PARTITIONABLE": "0",
    "JAX_RANDOM_SEED_OFFSET": "5",
    "JAX_DEFAULT_MATMUL_PRECISION": "bfloat16",
    "XLA_FLAGS": "--xla_cpu_enable_fast_math=true",
}


DIFFERENT = ["--processes: 2 on process 0, 3 on process 1", "training.rounds: 2 on process 0, 3 on process 1"]


@pytest.mark.slow
def test_processes_that_would_do_different_things_do_not_start(here):
    with Pair("two", *SHORT, second=["--processes=3", "training.rounds=3"], **OTHER_NUMBERS) as pair:
        codes, said = pair.ends()
    assert codes == [2, 2], said
    for fact in [*(f"{name}: .* on process 0, .* on process 1" for name in OTHER_NUMBERS), *DIFFERENT]:
        assert all(re.search(fact, text, re.I) for text in said), (fact, said)
    assert not (here / "two").exists()


@pytest.mark.nightly
def test_processes_with_different_numbers_of_devices_do_not_start(here):
    with Pair("two", *SHORT, second=["--devices=1"]) as pair:
        codes, said = pair.ends()
    different = "the same number of devices, but there are 2 on process 0, 1 on process 1"
    assert codes == [2, 2] and all(different in text for text in said), said
    assert not (here / "two").exists()


def test_different_numbers_of_devices_are_refused(monkeypatch):
    devices = [SimpleNamespace(process_index=index) for index in (0, 0, 1)]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    monkeypatch.setattr("fedjax_bal.engine.processes.processes", lambda: ProcessGroup(0, 2))
    with pytest.raises(ValueError, match="but there are 2 on process 0, 1 on process 1"):
        _check_agreement(ProcessPlace(), {})


def test_all_that_numbers_depend_on_is_compared(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp/0 --xla_b --xla_a")
    facts = shared_facts(load_config(None, ["training.rounds=3"]))
    wanted = {"training.rounds", "jax", "jaxlib", "numpy", "fedjax_bal", "XLA_FLAGS"}
    assert wanted | {name.lower() for name in OTHER_NUMBERS if name.startswith("JAX")} <= facts.keys()
    assert facts["XLA_FLAGS"] == "--xla_a --xla_b"  # where to dump may differ


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"{address}: process 0 can't listen .*in use.*another port"):
            _check_port(address)
    _check_port(address)


BAD = {
    "flags alone": (["--process-id", "1"], "--process-id: received without --distributed"),
    "no flags": (["--distributed"], "give --coordinator HOST:PORT --process-id I --processes N on each"),
    "half": (["--distributed", "--coordinator", "127.0.0.1:1"], "give --coordinator HOST:PORT --process-id I"),
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


def test_the_environment_fills_in_for_flags():
    ours = {"FEDJAX_BAL_COORDINATOR": "[::1]:4321", "FEDJAX_BAL_PROCESS_ID": "1", "FEDJAX_BAL_PROCESSES": "3"}
    assert process_place(True, None, 2, None, ours) == ProcessPlace("[::1]:4321", 2, 3)
    assert process_place(True, None, None, None, {}) == ProcessPlace()  # which jax fills in, under SLURM for instance
    with pytest.raises(ValueError, match="FEDJAX_BAL_PROCESSES: received 'x'"):
        process_place(True, None, None, None, ours | {"FEDJAX_BAL_PROCESSES": "x"})
