"""How the command begins and ends: Ctrl-C at any moment, and standard streams that can't be written."""

import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from fedjax_bal.cli.app import app

# Sends Ctrl-C while a module of that name is imported.
WHILE_IMPORTING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *rest):
        if name == {!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
from fedjax_bal.cli import main
main()
"""

# Sends it where Python ignores exceptions.
IN_A_CALLBACK = """
import gc, signal
installed = lambda: signal.getsignal(signal.SIGINT) is not signal.default_int_handler
gc.callbacks.append(lambda phase, info: installed() and signal.raise_signal(signal.SIGINT))
from fedjax_bal.cli import main
main()
"""


def ended(program, *arguments, **streams):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    done = subprocess.run([sys.executable, *program, *arguments], text=True, **streams)
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("module", ["typer", "fedjax_bal.cli.app", "jax"])
def test_ctrl_c_during_an_import_ends_the_command_without_a_traceback(module):
    code, said = ended(("-c", WHILE_IMPORTING.format(module)), "data", "describe")
    assert code == 130 and said.startswith("fedjax-bal: stopped") and said.count("\n") == 1, said


def test_ctrl_c_in_a_callback_of_the_garbage_collector_ends_the_command():
    code, said = ended(("-c", IN_A_CALLBACK), "list")
    assert (code, said) == (130, "fedjax-bal: stopped\n")


@pytest.mark.slow
def test_a_stream_that_can_not_be_written_is_named():
    with open("/dev/full", "w") as full:
        code, said = ended(("-m", "fedjax_bal"), "--version", stdout=full)
        assert (code, said) == (2, "fedjax-bal: standard output: no space left on device\n")
        assert ended(("-m", "fedjax_bal"), "run", "nothing.yaml", stderr=full)[0] != 0


@pytest.mark.parametrize("arguments", [["bench", "--json"], ["data", "describe", "--out"]])
def test_an_output_that_is_no_file_is_refused_before_the_work(tmp_path, arguments):
    place = tmp_path / "pipe.png"
    os.mkfifo(place)
    result = CliRunner().invoke(app, [*arguments, str(place)])
    assert result.exit_code == 2 and f"{place}: is a pipe" in result.output and result.output.count("\n") == 1
    assert place.is_fifo()


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.5, 2.0])
def test_ctrl_c_at_any_moment_ends_a_run_without_a_traceback(tmp_path, after_s):
    command = [sys.executable, "-m", "fedjax_bal", "run", "quickstart", "rounds=500", "seeds=1", "methods=[fedavg]"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen([*command, "--out", str(tmp_path / "run")], text=True, **streams) as process:
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=600)[0]
    assert process.returncode == 130 and "Traceback" not in said and "Exception ignored" not in said, said


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_whose_streams_are_closed_ends_like_others(closed):
    command = f'"$0" -m fedjax_bal list partitions {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (closed == "2>&-")
