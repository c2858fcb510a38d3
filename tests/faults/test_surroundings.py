"""Poor surroundings: another clock, locale, home and file system; and caches that are shared or damaged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import small_run

from fedjax_bal import load_weights
from fedjax_bal.cli.arguments import split_arguments

ONE = ("methods=[{recipe: fedavg, name: première}]", "seeds=[0]", "training.rounds=4", "--plain")
# January 1970, and an hour earlier at each look.
CLOCK = """
import itertools, time
hours = itertools.count()
time.time = lambda: 1e6 - 3600 * next(hours)
from fedjax_bal.cli import main
main()
"""
# Programs that compile quickly are kept, too.
KEEPING = """
import jax
update, least = jax.config.update, "jax_persistent_cache_min_compile_time_secs"
jax.config.update = lambda name, value: update(name, 0.0 if name == least else value)
from fedjax_bal.cli import main
main()
"""


def start(here, *arguments, program=("-m", "fedjax_bal"), **environment):
    command = [sys.executable, *program, *map(str, arguments)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=here, env={**os.environ, **environment}, **streams)


def finish(process):
    said = process.communicate()[0].decode(errors="replace")
    assert process.returncode == 0 and "Traceback" not in said, said
    return said


@pytest.fixture
def here(tmp_path):
    (tmp_path / "small.yaml").write_text(small_run.TEXT)
    (tmp_path / "grid.yaml").write_text("base: small.yaml\nsweep: [{training.optimizer.learning_rate: [0.05, 0.2]}]\n")
    return tmp_path


def test_changes_on_the_command_line_are_utf_8_in_any_locale():
    change = os.fsdecode(b"methods.0.name=premi\xc3\xa8re")
    in_ascii = b"methods.0.name=premi\xc3\xa8re".decode("ascii", "surrogateescape")
    assert split_arguments([change]) == split_arguments([in_ascii]) == (None, ["methods.0.name=première"])


@pytest.mark.nightly
def test_neither_clock_nor_locale_nor_home_stops_a_run(here, tmp_path_factory):
    memory = Path("/dev/shm")
    out = (memory if os.access(memory, os.W_OK) else tmp_path_factory.mktemp("out")) / f"{here.name}-{os.getpid()}"
    poor = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "HOME": "/dev/null/x", "XDG_CACHE_HOME": ""}
    try:
        said = finish(start(here, "run", "small.yaml", *ONE, "--out", out, program=("-c", CLOCK), **poor))
        assert "compiled programs are not kept: " in said
        for command in (("report",), ("export", "--out", here / "model.npz")):
            finish(start(here, command[0], out, *command[1:], program=("-c", CLOCK), **poor))
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        assert {line["method"] for line in lines} == {"première"} and 0 < lines[0]["wall_s"] <= lines[1]["wall_s"]
        assert "première" in (out / "report.html").read_text(encoding="utf-8")
        subprocess.run(["sha256sum", "--strict", "--status", "-c", "SHA256SUMS"], cwd=out, check=True)
        assert load_weights(here / "model.npz").params
    finally:
        subprocess.run(["rm", "-rf", str(out)], check=True)


@pytest.mark.nightly
def test_two_sweeps_share_a_cache_and_one_bears_programs_that_are_cut_off(here):
    cache = here / "home" / "fedjax_bal" / "xla"
    own = {"program": ("-c", KEEPING), "XDG_CACHE_HOME": str(here / "home")}
    sweep = lambda out: start(here, "sweep", "grid.yaml", *ONE, "--out", out, **own)
    for process in [sweep("one"), sweep("two")]:
        finish(process)
    sizes = {file.name: file.stat().st_size for file in cache.glob("*-cache")}
    for name, size in sizes.items():
        os.truncate(cache / name, size // 2)
    finish(sweep("three"))
    results = [{file.parent.name: small_run.metrics(file.parent) for file in here.glob(f"{out}/points/*/metrics.jsonl")}
               for out in ("one", "two", "three")]  # fmt: skip
    assert results[0] == results[1] == results[2] and len(results[0]) == 2
