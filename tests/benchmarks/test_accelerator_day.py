"""Jobs are bounded, recorded and not repeated; and the smallest of them run."""

import itertools
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import accelerator_day
import run_all
from accelerator_day import Job
from golden.cases import CASES

pytestmark = pytest.mark.slow

ABOUT = {"device": "toy", "jax": "1.2", "commit": "abc", "date": "2026-01-02"}


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Runs jobs, and returns the records by name."""
    monkeypatch.setitem(accelerator_day.SHOWN, "toy", "x is {x}")

    def run(jobs, budget=60.0, abreast=1):
        asked = SimpleNamespace(out=tmp_path, budget=budget, abreast=abreast, stopped=False, finished=False)
        accelerator_day.work(jobs, asked, time.monotonic() + budget, ABOUT)
        return {file.stem: json.loads(file.read_text()) for file in tmp_path.glob("*.json")}

    return run


def shell(name, tmp_path, script, **fields):
    """The same in the shell, which starts at once: such a job has noted that it ran before its limit."""
    answer, start = tmp_path / f"{name}.answer", f"printf x >> {tmp_path / name}; answer={tmp_path / name}.answer"
    return Job("papers", name, [["sh", "-c", f"{start}; {script}"]], answer, "toy", **fields)


def test_a_job_that_overruns_or_dies_is_recorded_and_the_next_one_runs(work, tmp_path):
    jobs = [
        shell("slow", tmp_path, "exec sleep 60", limit=2.0),
        shell("dead", tmp_path, "echo before; echo out of memory >&2; exit 1"),
        shell("absent", tmp_path, "", lacks="no PyTorch"),
        shell("good", tmp_path, """echo '[{"x": 1}]' > $answer"""),
    ]
    records = work(jobs)
    assert {name: record["status"] for name, record in records.items()} == {
        "slow": "overran", "dead": "failed", "absent": "skipped", "good": "done",
    }  # fmt: skip
    assert records["dead"]["problem"] == "out of memory" and records["absent"]["problem"] == "no PyTorch"
    assert records["good"]["result"] == {"x": 1} and 2.0 <= records["slow"]["seconds"] < 60
    assert all(record.items() >= ABOUT.items() for record in records.values())
    assert (tmp_path / "dead.log").read_text() == "before\nout of memory\n"
    rows = accelerator_day.table(jobs, tmp_path).splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| slow", "| dead", "| absent", "| good"]
    assert "failed: out of memory" in rows[1] and "x is 1 | 0 | toy, jax 1.2, abc, 2026-01-02" in rows[3]

    assert work(jobs) == records  # and nothing ran again
    assert [(tmp_path / name).read_text() for name in ("slow", "dead", "good")] == ["x", "x", "x"]


def options(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["accelerator_day.py", *words])
    return accelerator_day.parse()


def test_all_steps_are_planned_with_what_they_need(monkeypatch, tmp_path):
    asked = options(monkeypatch, "--data-dir", "somewhere")
    asked.folder = tmp_path
    jobs = accelerator_day.planned(asked)
    steps = [step for step, _ in itertools.groupby(each.step for each in jobs)]
    assert steps == ["golden", "papers", "speed", "clients", "tables"]
    assert len({each.name for each in jobs}) == len(jobs)
    assert set(accelerator_day.GOLDEN) < CASES.keys()
    assert all(Path(each.commands[0][4]).is_file() for each in jobs if each.step in ("papers", "tables"))
    own = next(each for each in jobs if each.name == "speed-W1-fedjax-bal-bfloat16")
    arguments = json.loads(own.commands[0][own.commands[0].index("speed") + 1])
    assert arguments["overrides"] == ["execution.precision=bfloat16"] and arguments["clients_per_round"] is None

    asked = options(monkeypatch)
    asked.folder = tmp_path
    papers = list(accelerator_day.papers(asked))
    assert all("--data-dir" in each.lacks for each in papers)


def test_every_rival_of_the_gpu_suite_is_measured_on_the_gpu(monkeypatch, tmp_path):
    asked = options(monkeypatch)
    asked.folder = tmp_path
    commands = [each.commands[1] for each in accelerator_day.speed(asked) if each.shown == "rival"]
    for precision in ("float32", "tensorfloat32"):
        for rival in (one for one in run_all.GPU if one.environment):
            wanted = {*rival.options, rival.module, "cuda", precision}
            files = {Path(words[words.index("--workload") + 1]).stem for words in commands if wanted <= {*words}}
            assert files == {*run_all.WORKLOADS["gpu"]} - {*rival.lacks}
