"""How the command begins and ends: Ctrl-C at any moment, and standard streams that can't be written."""

import gc
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.cli.start import Interrupts, main

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


def ended(program, *arguments, **streams):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    done = subprocess.run([sys.executable, *program, *arguments], text=True, **streams)
    return done.returncode, done.stderr


@pytest.fixture
def interrupts():
    """Handlers as while a command runs."""
    handler, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield Interrupts()
    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    sys.unraisablehook = hook


@pytest.mark.slow
@pytest.mark.parametrize("module", ["typer", "fedjax_bal.cli.app", "jax"])
def test_ctrl_c_during_an_import_ends_the_command_without_a_traceback(module):
    code, said = ended(("-c", WHILE_IMPORTING.format(module)), "data", "describe", "fashion_mnist_small")
    assert code == 130 and said.startswith("fedjax-bal: stopped") and said.count("\n") == 1, said


def test_ctrl_c_in_a_callback_that_can_not_raise_arrives_afterwards(interrupts):
    sent = []

    def collected(phase, info):
        if phase == "start" and not sent:
            sent.append(True)
            signal.raise_signal(signal.SIGINT)

    gc.callbacks.append(collected)
    try:
        with pytest.raises(KeyboardInterrupt):
            gc.collect(0)
            time.sleep(600)
            pytest.fail("slept to the end")
    finally:
        gc.callbacks.remove(collected)
    assert interrupts.arrived


def test_ctrl_c_in_a_callback_while_a_run_would_only_stop_is_not_sent_as_another_one(interrupts):
    asked = []

    def ask(number, frame):  # as `interruptible` does at the second Ctrl-C
        asked.append(number)
        raise KeyboardInterrupt

    def collected(phase, info):
        if phase == "start" and not asked:
            signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, ask)
    gc.callbacks.append(collected)
    try:
        with pytest.raises(KeyboardInterrupt):
            gc.collect(0)
            time.sleep(600)
            pytest.fail("slept to the end")
        time.sleep(0.3)  # in which a repeated signal would end what is tidied up
    finally:
        gc.callbacks.remove(collected)
    assert asked == [signal.SIGINT] and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_a_library_makes_of_ctrl_c_is_an_interrupt_too(interrupts, monkeypatch, capsys):
    def command():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("a callback failed") from None

    monkeypatch.setattr("fedjax_bal.cli.app.app", command)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130 and capsys.readouterr().err == "fedjax-bal: stopped\n"


def test_other_exceptions_that_can_not_be_raised_are_shown_as_before(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    before = signal.getsignal(signal.SIGINT)
    interrupts = Interrupts()
    signal.signal(signal.SIGINT, before)
    sys.unraisablehook(type("Unraisable", (), {"exc_type": ValueError})())
    assert len(shown) == 1 and not interrupts.arrived


@pytest.mark.slow
def test_a_stream_that_can_not_be_written_is_named():
    with open("/dev/full", "w") as full:
        code, said = ended(("-m", "fedjax_bal"), "--version", stdout=full)
        assert (code, said) == (2, "fedjax-bal: standard output: no space left on device\n")
        assert ended(("-m", "fedjax_bal"), "run", "nothing.yaml", stderr=full)[0] == 2


@pytest.mark.parametrize(
    "arguments", [["bench", "--json"], ["data", "describe", "fashion_mnist_small", "--partition", "iid", "--out"]]
)
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
