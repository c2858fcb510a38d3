"""The form that "auto" stands for: what this machine can use, tried once in another process."""

import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fedjax_bal.models import build
from fedjax_bal.models.convolution import automatic

CHOICE = automatic.choice  # in tests another one takes its place, see conftest.py
AVX2, AVX512 = frozenset({"sse4_1", "avx2"}), frozenset({"avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl"})


@pytest.fixture(autouse=True)
def _asked_anew(tmp_path, monkeypatch):
    """A Linux machine with AVX2 and an empty cache folder, on which nothing has been tried."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(automatic.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(automatic.sys, "platform", "linux")
    monkeypatch.setattr(automatic, "_cpu_flags", lambda: AVX2)
    monkeypatch.setattr(automatic, "choice", CHOICE)
    automatic.why_not_builtin.cache_clear()
    automatic._note.cache_clear()
    yield
    automatic.why_not_builtin.cache_clear()


@pytest.fixture
def tries(monkeypatch):
    """Stands in for the other process: how it ends, and how often it is started."""
    made = SimpleNamespace(code=0, printed=b"right\n", count=0, error=None)

    def run(command, **options):
        made.count += 1
        if made.error:
            raise made.error
        return subprocess.CompletedProcess(command, made.code, made.printed, b"")

    monkeypatch.setattr(automatic.subprocess, "run", run)
    return made


def verdicts(tmp_path):
    return [file.read_text() for file in (tmp_path / "fedjax_bal" / "builtin").iterdir()]


@pytest.mark.parametrize(
    ("flags", "limit", "expected"),
    [
        (AVX512, "", "AVX512"),
        (AVX512, "avx512_core", "AVX512"),
        (AVX512, "AVX2_VNNI", "AVX2"),
        (AVX512, "ALL", "AVX512"),
        (AVX2, "", "AVX2"),
        (AVX2, "AVX512_CORE_BF16", "AVX2"),
        (AVX512, "sse41", ""),
        (AVX2, "AVX", ""),
        (frozenset({"sse4_1"}), "AVX2", ""),
    ],
)
def test_instructions_are_those_that_the_cpu_has_and_onednn_may_use(flags, limit, expected, monkeypatch):
    monkeypatch.setattr(automatic, "_cpu_flags", lambda: flags)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert automatic.instruction_set() == expected


def test_it_is_tried_once_for_all_processes(tries, tmp_path):
    assert automatic.why_not_builtin() == ""
    automatic.why_not_builtin.cache_clear()
    assert automatic.why_not_builtin() == ""
    assert tries.count == 1
    assert verdicts(tmp_path) == ["right\n"]


def test_another_limit_or_jaxlib_is_tried_again(tries, monkeypatch):
    for change in (
        lambda: None,
        lambda: monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2"),
        lambda: monkeypatch.setattr(automatic, "jaxlib_version", "0.99"),
        lambda: monkeypatch.setattr(automatic, "_cpu_flags", lambda: AVX512),
    ):
        change()
        automatic.why_not_builtin.cache_clear()
        assert automatic.why_not_builtin() == ""
    assert tries.count == 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"code": -6}, "ended a process with code -6"),
        ({"printed": b"wrong\n"}, "something else than a convolution"),
        ({"printed": b""}, "something else than a convolution"),
        ({"error": subprocess.TimeoutExpired("python", 1)}, "did not end within 120 s"),
        ({"error": FileNotFoundError(2, "No such file or directory")}, "can't be started"),
    ],
)
def test_a_process_that_dies_hangs_or_is_wrong_means_fast_with_one_note(change, reason, tries, tmp_path, caplog):
    vars(tries).update(change)
    with caplog.at_level(logging.WARNING, "fedjax_bal"):
        assert [automatic.form() for _ in range(3)] == ["fast"] * 3
    (note,) = caplog.messages
    assert "convolution: fast, as" in note
    assert reason in note
    (kept,) = verdicts(tmp_path)
    assert reason in kept
    with pytest.raises(ValueError, match="convolution='builtin': .*choose another"):
        build("tiny_bn", 3, (4, 4, 1), convolution="builtin")
    automatic.why_not_builtin.cache_clear()
    assert reason in automatic.why_not_builtin()
    assert tries.count == 1


def test_a_damaged_verdict_is_replaced_and_a_folder_that_cannot_be_used_only_costs_time(tries, tmp_path, monkeypatch):
    assert automatic.why_not_builtin() == ""
    (file,) = (tmp_path / "fedjax_bal" / "builtin").iterdir()
    for damage in (b"", b"righ", b"\xff\n"):
        file.write_bytes(damage)
        automatic.why_not_builtin.cache_clear()
        assert automatic.why_not_builtin() == ""
        assert file.read_text() == "right\n"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    automatic.why_not_builtin.cache_clear()
    assert automatic.why_not_builtin() == ""
    assert tries.count == 5


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("platform.machine", lambda: "aarch64", "needs Linux on x86-64"),
        ("sys.platform", "darwin", "needs Linux on x86-64"),
        ("_cpu_flags", frozenset, "needs a CPU with AVX2"),
    ],
)
def test_machines_that_are_not_asked(name, value, reason, tries, monkeypatch):
    holder, _, attribute = name.rpartition(".")
    monkeypatch.setattr(getattr(automatic, holder) if holder else automatic, attribute, value)
    assert reason in automatic.why_not_builtin()
    assert tries.count == 0


def test_accelerators_have_fast_and_are_not_asked(tries, monkeypatch):
    monkeypatch.setattr(automatic, "target_platform", lambda: "gpu")
    assert automatic.form() == "fast"
    assert tries.count == 0


@pytest.mark.slow
def test_nothing_is_tried_and_jax_is_not_started_before_a_model_with_convolutions_computes(tmp_path):
    program = """
import jax
from fedjax_bal import models, xla_flags
from fedjax_bal.models.convolution import automatic
model = models.build("tiny_bn", 3, (4, 4, 1))
assert not xla_flags.has_started(jax) and automatic.why_not_builtin.cache_info().currsize == 0
flat = models.build("mlp", 3, (4, 4, 1))
flat.init(jax.random.key(0))
assert automatic.why_not_builtin.cache_info().currsize == 0
model.init(jax.random.key(0))
assert automatic.why_not_builtin.cache_info().currsize == 1
print(automatic.form())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("builtin", "fast")


@pytest.mark.slow
def test_the_other_process_comes_to_a_verdict(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    reason = automatic.why_not_builtin()
    if "needs" not in reason:
        (kept,) = verdicts(tmp_path)
        assert kept.startswith(reason or "right")
