"""A sweep carried through: grouped, resumed, with a run that diverges and a point that can't be."""

import json
import re
import shutil
import subprocess
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import small_run
from rounding import SUM
from small_sweep import FEDAVG, carry, describe, outcome, read_table, watch
from small_sweep import sweep as sweep_of

from fedjax_bal.engine.host import executable, stack
from fedjax_bal.lab import FolderError, SweepFolder, loop, setup
from fedjax_bal.lab import sweep as sweep_module
from fedjax_bal.lab.records import RunId
from fedjax_bal.lab.sweep import COSTS, SweepTable
from fedjax_bal.report.sweep_page import write_sweep_page
from fedjax_bal.report.terminal import results

AXES = "sweep: [{training.optimizer.learning_rate: [0.05, 0.2, 1.0e+30]}, {partition.samples_per_client: [40, 40000]}]"
RATES = "sweep: [{training.optimizer.learning_rate: [0.05, 0.2, 1.0e+30]}]"


def sweep(tmp_path, text=AXES, *overrides):
    return sweep_of(tmp_path, text, *overrides)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A finished sweep: its folder, its rows, what was said, and its table after each dispatch as a kill leaves it."""
    tmp_path, tables = tmp_path_factory.mktemp("sweep"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedjax_bal.lab.sweep._SHARE", 1e9)
        rows, said = carry(sweep(tmp_path), tmp_path / "out", should_stop=watch(tmp_path / "out", tables))
    return tmp_path / "out", rows, said, tables


@pytest.fixture
def finished(watched):
    """A finished sweep: its folder, its rows, and what was said."""
    return watched[:3]


@pytest.mark.slow
def test_every_run_has_a_row_whatever_came_of_it(finished):
    path, rows, said = finished
    assert len(rows) == 3 * 2 * 2
    status = {
        (row["training.optimizer.learning_rate"], row["partition.samples_per_client"], row["method"]): row
        for row in rows
    }
    for rate in (0.05, 0.2):
        assert status[rate, 40, "fedavg"]["status"] == "done"
        assert status[rate, 40000, "fedavg"]["status"] == "refused"
    assert "40000" in status[0.05, 40000, "fedavg"]["failure"]
    lost = status[1e30, 40, "fedavg"]
    assert lost["status"] == "diverged" and "round 1" in lost["failure"] and lost["final_accuracy"] is None
    assert "6 of 12 runs to train" in said
    table = read_table(path)
    assert [row["status"] for row in table] == [row["status"] for row in rows]
    assert list(table[0])[:2] == ["training.optimizer.learning_rate", "partition.samples_per_client"]


@pytest.mark.slow
def test_a_kill_leaves_a_table_of_the_runs_that_are_over(watched):
    path, _, _, tables = watched
    final = read_table(path)
    # After each dispatch. Six can't be set up; of three at a time one diverges in the first dispatch, and two are done
    # after the second, which the callbacks write later.
    assert [len(table) for table in tables] == [6, 6 + 1, 6 + 3, 6 + 4]
    assert all(row["status"] != "unfinished" for table in tables for row in table)
    key = lambda row: (row["point"], row["method"], row["seed"])
    in_the_end = {key(row): row for row in final}
    assert tables[2] == [row for row in final if key(row) in {key(other) for other in tables[2]}]
    alike = lambda row: {name: value for name, value in row.items() if name not in COSTS}
    assert all(alike(row) == alike(in_the_end[key(row)]) for table in tables for row in table)


@pytest.mark.slow
def test_a_thread_compiles_the_next_program_and_all_runs_end_in_the_same_bits(tmp_path, monkeypatch):
    threads, compile_for_backend, open_stack = [], executable.compile_for_backend, loop.open_stack
    all_begun = threading.Event()

    def counted(lowered):
        threads.append(threading.current_thread().name)
        if len(threads) == 2:
            all_begun.set()
        return compile_for_backend(lowered)

    def opened_late(*stack):
        assert all_begun.wait(300)  # training could be first to need a program on a busy machine
        return open_stack(*stack)

    def unable(simulations):
        raise RuntimeError("no thread can compile")

    monkeypatch.setattr(executable, "compile_for_backend", counted)
    plan = sweep(
        tmp_path, "sweep: [{training.batch_size: [10, 20]}, {training.optimizer.learning_rate: [0.05, 0.2]}]", FEDAVG
    )
    for name, ask, opened, place in (
        ("ahead", loop.program_of, opened_late, "compilation_0"),
        ("alone", unable, open_stack, "MainThread"),
    ):
        monkeypatch.setattr(executable, "_PROGRAMS", executable.WeakValueDictionary())
        monkeypatch.setattr(loop, "program_of", ask)
        monkeypatch.setattr(loop, "open_stack", opened)
        rows, _ = carry(plan, tmp_path / name)
        assert [row["status"] for row in rows] == ["done"] * 4
        assert threads == [place] * 2  # one for each batch size, whoever needs it first
        threads.clear()
    ahead, alone = outcome(tmp_path / "ahead"), outcome(tmp_path / "alone")
    assert len(ahead) == 4
    assert {label: own[2] for label, own in ahead.items()} == {label: own[2] for label, own in alone.items()}


def test_writing_the_table_takes_a_small_share_of_the_time(monkeypatch):
    now, sizes = 0.0, []

    def write(table):
        nonlocal now
        now += 0.5
        sizes.append(len(table))

    config = SimpleNamespace(methods=[SimpleNamespace(name="fedavg")], seeds=[0])
    points = [SimpleNamespace(label=str(number), values={}, config=config) for number in range(400)]
    folder = SimpleNamespace(part=None, write_results=write, read_costs=dict, write_costs=lambda costs: None)
    monkeypatch.setattr(sweep_module, "time", SimpleNamespace(monotonic=lambda: now))
    table = SweepTable(SimpleNamespace(points=points), folder)
    training = SimpleNamespace(id=RunId("fedavg", 0), ended=False, failure=None, lines=[])
    table.comparisons = {point.label: SimpleNamespace(runs=[training]) for point in points}
    for number in range(300):
        del table.comparisons[str(number)]
        table.refused[str(number)] = "no"
        now += 0.1
        table.update()
    assert sizes[0] == 1 and 3 <= len(sizes) <= 5  # half a second each, of 32 seconds
    for _ in range(2):
        now += 100
        table.update()
    assert sizes[-1] == 300 and sizes.count(300) == 1


@pytest.mark.slow
def test_runs_come_to_what_they_come_to_alone(finished, tmp_path):
    path = finished[0]
    point = sweep(tmp_path).points[2]
    small_run.run(tmp_path / "alone", point.config)
    lines = [small_run.metrics(folder) for folder in (tmp_path / "alone", path / "points" / point.label)]
    for own, theirs in zip(*lines, strict=True):
        assert own["test_loss"] == pytest.approx(theirs["test_loss"], rel=SUM)
        assert {**own, "test_loss": 0, "train_loss": 0} == {**theirs, "test_loss": 0, "train_loss": 0}
    alone = json.loads((tmp_path / "alone" / "summary.json").read_text())["runs"]
    swept = json.loads((path / "points" / point.label / "summary.json").read_text())["runs"]
    assert [run["final_accuracy"] for run in swept] == [run["final_accuracy"] for run in alone]


@pytest.mark.slow
def test_a_stopped_sweep_goes_on_and_does_nothing_twice(finished, tmp_path):
    path, plan = tmp_path / "out", sweep(tmp_path, RATES, FEDAVG)
    assert carry(plan, path, should_stop=lambda: True)[0] is None
    rows, said = carry(plan, path)
    assert "2 of 3 runs to train" in said  # one diverged in the first dispatch
    figures = lambda table: [(row["status"], row["final_accuracy"], row["traffic_bytes"]) for row in table]
    known = [row for row in finished[1] if row["method"] == "fedavg" and row["partition.samples_per_client"] == 40]
    assert figures(rows) == figures(known)
    again, said = carry(plan, path)
    assert "0 of 3 runs to train" in said
    assert figures(again) == figures(known)


@pytest.mark.slow
def test_points_that_a_continued_sweep_leaves_out_are_named(tmp_path):
    path, axes = tmp_path / "out", "sweep: [{{training.optimizer.learning_rate: [0.05, {}]}}]"
    on_page = "earlier points that are not in this sweep or its tables: learning_rate=0.2."
    _, said = carry(sweep(tmp_path, axes.format(0.2), FEDAVG), path)
    assert "earlier points" not in said and "earlier points" not in write_sweep_page(path).read_text()
    assert "that are not in this sweep or its table: 1" in carry(sweep(tmp_path, axes.format(0.4), FEDAVG), path)[1]
    assert on_page in write_sweep_page(path).read_text()


@pytest.mark.slow
def test_a_dry_run_times_two_dispatches_and_writes_nothing(tmp_path):
    said = describe(sweep(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert "samples_per_client=40000: left out" in "".join(said)
    first = next(number for number, line in enumerate(said) if line.startswith("mine: "))
    assert said[first] == "mine: 6 of 12 runs to train; about 144 local steps"
    cells = [re.split("  +", line.strip()) for line in said[first + 1 : first + 4]]
    assert cells[0] == ["program", "methods", "runs", "together", "rounds", "state", "dispatch", "all"]
    assert [row[:5] for row in cells[1:]] == [["1", "fedavg", "3", "3", "4"], ["2", "control variates", "3", "3", "4"]]
    assert all(row[6].endswith(" s") and float(row[6][:-2]) > 0 for row in cells[1:])
    assert re.fullmatch(r"  memory: about [\d.]+ [MG]B", said[first + 4])


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "out"
    path.mkdir()
    (path / "thesis.tex").write_text("my life")
    with pytest.raises(FolderError, match="not a sweep's folder"):
        carry(sweep(tmp_path), path)
    assert [file.name for file in path.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_the_page_answers(finished):
    path, _, _ = finished
    page = write_sweep_page(path).read_text()
    assert "control variates" in page and "Highest accuracy at each condition" in page
    assert "diverged" in page and "round 1" in page
    assert "Accuracy by learning_rate" in page
    assert page == write_sweep_page(path).read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("results.csv", "a,b\n1,2\n", "lacks the columns failure, method, p"),
        ("results.csv", "point,method,status,failure\nx\n", "zip"),
        ("results.csv", "point,method,status,failure\nx,y,done,\n", "lacks the columns partition.*, training"),
        ("sweep.yaml", "sweep: 3\n", "sweep.yaml: damaged"),
        ("sweep.yaml", "sweep: [", "line 1, column 9"),
    ],
)
def test_a_damaged_folder_is_told(finished, tmp_path, file, text, message):
    for name in ("results.csv", "sweep.yaml"):
        (tmp_path / name).write_bytes((finished[0] / name).read_bytes())
    (tmp_path / file).write_text(text)
    with pytest.raises(FolderError, match=message):
        write_sweep_page(tmp_path)


@pytest.mark.slow
def test_a_run_that_stopped_early_is_done_and_one_that_diverged_keeps_its_lines(tmp_path):
    changes = [FEDAVG, "evaluation={every: 1, validation: {per_class: 5}}", "training.rounds=6"]
    changes += ["training.early_stopping={patience: 1, min_delta: 0.9}", "execution.rounds_per_dispatch=1"]
    axes = "sweep: [{training.optimizer.learning_rate: [0.05, 4.0e+18]}]"
    rows, _ = carry(sweep(tmp_path, axes, *changes), tmp_path / "out")
    assert [row["status"] for row in rows] == ["done", "diverged"]
    assert rows[0]["stopped_early"] == rows[0]["rounds"] == 2
    assert "1 of 2 runs stopped early, the first after 2 rounds." in results(tmp_path / "out")[1]
    lines = [small_run.metrics(folder) for folder in sorted((tmp_path / "out" / "points").iterdir())]
    again, said = carry(sweep(tmp_path, axes, *changes), tmp_path / "out")
    assert "0 of 2 runs to train" in said
    assert again == rows
    assert [small_run.metrics(folder) for folder in sorted((tmp_path / "out" / "points").iterdir())] == lines


@pytest.mark.slow
def test_more_rounds_and_seeds_come_to_the_same_bits(tmp_path):
    # Rounds are evaluated by twos, and two are in a dispatch: 3 ends neither.
    few, asked = ("training.rounds=3", "seeds=[0]"), ("training.rounds=4", "seeds=[0, 1]")
    carry(sweep(tmp_path, RATES, *few), tmp_path / "out")
    _, said = carry(sweep(tmp_path, RATES, *asked), tmp_path / "out")
    assert "10 of 12 runs to train" in said  # two have diverged
    carry(sweep(tmp_path, RATES, *asked), tmp_path / "at once")
    assert outcome(tmp_path / "out") == outcome(tmp_path / "at once")
    for axes, changes, differing in (
        (RATES, few, "training.rounds: 4 here, "),
        (RATES.replace("0.05, 0.2, 1.0e+30", "0.3"), few, "none of the requested points is here"),
        ("sweep: [{training.batch_size: [10]}]", asked, "training.batch_size"),
    ):
        with pytest.raises(FolderError, match=f"(?s)belongs to a different sweep.*{differing}"):
            carry(sweep(tmp_path, axes, *changes), tmp_path / "out")
    said = "".join(describe(sweep(tmp_path, RATES.replace("0.05", "0.05, 0.1"), *asked), tmp_path / "out"))
    assert "4 of 16 runs to train" in said


@pytest.mark.slow
def test_three_parts_come_to_one_sweep(tmp_path):
    plan = sweep(tmp_path, "sweep: [{training.optimizer.learning_rate: [0.05, 0.1, 0.2, 0.4]}]", FEDAVG)
    rows, _ = carry(plan, tmp_path / "whole", most=1)
    out = tmp_path / "parts"
    labels = [[row["point"] for row in carry(plan, out, part=(number, 3), most=1)[0]] for number in (1, 2, 3)]
    every = [point.label for point in plan.points]
    assert labels == [[every[0], every[3]], [every[1]], [every[2]]]
    assert not (out / "results.csv").exists() and not (out / "SHA256SUMS").exists()
    joined, said = carry(plan, out, most=1)
    assert "0 of 4 runs to train" in said
    assert outcome(out) == outcome(tmp_path / "whole")
    times = ("compile_s", "client_updates_per_s", "samples_per_s", "program", "device_bytes")
    assert [{**row, **dict.fromkeys(times)} for row in joined] == [{**row, **dict.fromkeys(times)} for row in rows]
    assert all(row["client_updates_per_s"] > 0 for row in joined)
    assert [file.name for file in out.glob("costs*")] == ["costs.json"]
    check = ["sha256sum", "--strict", "--check", "SHA256SUMS"]
    said = subprocess.run(check, cwd=out, capture_output=True, text=True, check=True).stdout
    assert "results.csv: OK\n" in said and "points/learning_rate=0.2/metrics.jsonl: OK\n" in said


@pytest.mark.slow
def test_a_point_that_another_process_trains_is_left_to_it(tmp_path):
    plan, out = sweep(tmp_path, "sweep: [{training.optimizer.learning_rate: [0.05, 0.1]}]", FEDAVG), tmp_path / "out"
    first = plan.points[0]
    out.mkdir()
    SweepFolder(out).begin(plan.text, plan.configs)
    with SweepFolder(out).claimed(plan), pytest.raises(FolderError, match="another process is using this folder"):
        carry(plan, out, part=(1, 2))
    with SweepFolder(out).point(first.label).claimed(first.config):
        [row], _ = carry(plan, out, part=(1, 2))
        first, second = carry(plan, out)[0]
    assert row["status"] == "refused" and "another process is using" in row["failure"]
    assert (first["status"], first["failure"], second["status"]) == ("refused", row["failure"], "done")


@pytest.mark.slow
def test_another_sweep_is_kept_out(finished, tmp_path):
    path = shutil.copytree(finished[0], tmp_path / "out")
    before = (path / "sweep.yaml").read_bytes(), (path / "results.csv").read_bytes()
    with pytest.raises(FolderError, match="belongs to a different sweep"):
        carry(sweep(tmp_path, AXES, "training.batch_size=7"), path)
    assert ((path / "sweep.yaml").read_bytes(), (path / "results.csv").read_bytes()) == before


@pytest.mark.slow
def test_points_begun_with_other_data_are_refused_and_left_as_they_are(finished, tmp_path, monkeypatch):
    path = shutil.copytree(finished[0], tmp_path / "out")
    read = lambda: {file: file.read_bytes() for file in path.glob("points/*/metrics.jsonl")}
    before = read()
    monkeypatch.setattr(setup.SharedInputs, "fingerprint", lambda self, config: np.zeros(32, np.uint8))
    rows, said = carry(sweep(tmp_path), path)
    assert "started with different images" in said and "refused" in {row["status"] for row in rows}
    assert read() == before


@pytest.mark.slow
def test_what_does_not_fit_is_halved_and_then_left_out(tmp_path, monkeypatch):
    tried = []

    def refuse(self):
        tried.append(len(self.members))
        raise ValueError("needs 7.0 GB")

    for kind in (stack.SingleRun, stack.StackedRuns):
        monkeypatch.setattr(kind, "compile", refuse)
    axes = "sweep: [{training.optimizer.learning_rate: [0.05, 0.1, 0.2]}]"
    rows, _ = carry(sweep(tmp_path, axes, FEDAVG), tmp_path / "out")
    assert sorted(tried) == [1, 1, 1, 2, 3]
    assert {(row["status"], row["failure"]) for row in rows} == {("failed", "needs 7.0 GB")}


def test_the_time_of_a_dispatch_is_shared_by_the_runs_that_were_trained():
    took = []

    class Recorded:
        def record(self, result, seconds):
            took.append(seconds)

    for trained in (2, 1):
        step = loop._record(
            {Recorded(): SimpleNamespace(client_updates=3, samples=5) for _ in range(trained)}, 5, 8.0, []
        )
        assert (step.client_updates, step.samples) == (3 * trained, 5 * trained)
    assert took == [4.0, 4.0, 8.0]
