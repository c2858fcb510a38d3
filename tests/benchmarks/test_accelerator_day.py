"""Jobs are bounded, recorded and not repeated; and the smallest of them run."""

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import accelerator_day
from accelerator_day import Job
from golden.cases import CASES

pytestmark = pytest.mark.slow

SCRIPT = Path(accelerator_day.__file__)
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


def job(name, tmp_path, code, **fields):
    """A job in Python that has a function to give its answer; notes in a file that it ran."""
    start = f"import time; open({str(tmp_path / name)!r}, 'a').write('x')"
    answer = tmp_path / f"{name}.answer"
    start += f"\nanswer = lambda text: open({str(answer)!r}, 'w').write(text)"
    return Job("speed", name, [[sys.executable, "-c", f"{start}\n{code}"]], answer, "toy", **fields)


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


def test_a_job_that_the_budget_interrupts_is_repeated_by_the_next_call(work, tmp_path):
    first = shell("first", tmp_path, """echo '{"x": 2}' > $answer""")
    jobs = [first, shell("second", tmp_path, "exec sleep 60", limit=50.0)]
    assert work(jobs, budget=4.0).keys() == {"first"}
    assert work(jobs, budget=0.0).keys() == {"first"}
    # It had the whole budget of a call: as much as it can ever have.
    assert work(jobs, budget=2.0)["second"]["status"] == "overran"
    assert (tmp_path / "first").read_text() == "x" and (tmp_path / "second").read_text() == "xx"


def test_a_run_of_a_paper_that_was_stopped_goes_on(work, tmp_path):
    script = f"""[ $(cat {tmp_path / "paper"}) = x ] && exec sleep 60; echo '{{"x": 3}}' > $answer"""
    jobs = [shell("paper", tmp_path, script, limit=2.0, resumes=True)]
    assert work(jobs)["paper"]["status"] == "stopped"
    assert work([jobs[0]._replace(limit=30.0)])["paper"]["status"] == "done"
    assert (tmp_path / "paper").read_text() == "xx"


def test_jobs_that_measure_speed_wait_for_all_to_compile_and_take_turns(work, tmp_path):
    """Three jobs, which compile for a second, the last one for two, and measure for half a second."""
    code = f"""import sys; sys.path.insert(0, {str(SCRIPT.parent)!r})
import _rival, json; from pathlib import Path
turn = _rival.Turn(Path({str(tmp_path / "turn")!r}))
time.sleep({{}})
compiled = time.time()
with turn:
    began = time.time(); time.sleep(0.5); ended = time.time()
answer(json.dumps({{{{"x": 0, "compiled": compiled, "began": began, "ended": ended}}}}))"""
    jobs = [job(f"job{number}", tmp_path, code.format(1 + number // 2)) for number in range(3)]
    found = [record["result"] for record in work(jobs, abreast=3).values()]
    assert min(each["began"] for each in found) >= max(each["compiled"] for each in found)
    found.sort(key=lambda each: each["began"])
    assert all(first["ended"] <= then["began"] for first, then in itertools.pairwise(found))


def options(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["accelerator_day.py", *words])
    return accelerator_day.parse()


def test_all_steps_are_planned_with_what_they_need(monkeypatch, tmp_path):
    asked = options(monkeypatch, "--data-dir", "somewhere")
    asked.folder = tmp_path
    jobs = accelerator_day.planned(asked)
    assert {each.step for each in jobs} == {"golden", "speed", "long", "clients", "papers"}
    assert len({each.name for each in jobs}) == len(jobs)
    assert set(accelerator_day.GOLDEN) < CASES.keys()
    assert all(Path(each.commands[0][4]).is_file() for each in jobs if each.step == "papers")
    lanes = next(each for each in jobs if each.name == "speed-W1-lanes-bfloat16")
    arguments = json.loads(lanes.commands[0][lanes.commands[0].index("speed") + 1])
    wanted = {"execution.chunk=13", "execution.strategy=vmap", "execution.precision=bfloat16"}
    assert {*arguments["overrides"]} == wanted and arguments["clients_per_round"] is None

    asked = options(monkeypatch)
    asked.folder = tmp_path
    papers = list(accelerator_day.papers(asked))
    assert all("--data-dir" in each.lacks for each in papers)


def day(tmp_path, *words):
    command = [sys.executable, SCRIPT, "--tiny", "--out", tmp_path, *words]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.nightly
def test_a_tiny_job_runs_and_is_not_repeated(tmp_path):
    name = "speed-W3-lanes-float32"
    first = day(tmp_path, "--only", name)
    assert first.returncode == 0, first.stderr
    assert {file.name for file in tmp_path.iterdir()} == {f"{name}.json", f"{name}.log", "table.md"}
    record = json.loads((tmp_path / f"{name}.json").read_text())
    assert record["status"] == "done" and record["platform"] == "cpu" and record["jax"]
    assert (tmp_path / "table.md").read_text() in first.stdout
    again = day(tmp_path, "--only", name)
    assert again.returncode == 0 and f"{name}: done" not in again.stdout
    assert json.loads((tmp_path / f"{name}.json").read_text()) == record


def test_a_machine_without_an_accelerator_is_told_so(tmp_path):
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, SCRIPT, "--out", tmp_path], capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and "jax sees no accelerator" in done.stderr
