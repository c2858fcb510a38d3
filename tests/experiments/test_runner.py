"""A run folder: complete, resumable to the same bits, and robust against damage."""

import collections
import itertools
import json
import shutil
import threading
from types import SimpleNamespace

import jax
import jax.monitoring
import numpy as np
import pytest
import quick
import small_run

from fedjax_bal import data
from fedjax_bal.engine.host import executable
from fedjax_bal.experiments import Stopped
from fedjax_bal.experiments.backends import local
from fedjax_bal.runs import FolderError, RunFolder
from fedjax_bal.runs.checksums import sealed, unsealed


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A folder in which the small comparison ran without interruption."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    small_run.run(path, small_run.config(path.parent))
    return path


@pytest.fixture
def config(tmp_path):
    """The small comparison's configuration."""
    return small_run.config(tmp_path)


def stop_after(dispatches):
    """Asks to stop after so many dispatches."""
    left = iter(range(dispatches, 0, -1))
    return lambda: next(left, 0) <= 1


def test_metrics_hold_a_line_a_run_and_evaluated_round(undisturbed):
    lines = small_run.metrics(undisturbed)
    runs = [(m, s) for s in (0, 1) for m in ("fedavg", "control variates")]
    assert [(x["method"], x["seed"], x["round"]) for x in lines] == [(*run, r) for run in runs for r in (2, 4, 6, 7)]
    first = lines[0]
    assert 0 < first["clients"] <= 6
    assert first["clients"] + first["dropped"] <= 6
    assert len(first["per_class_accuracy"]) == 10
    assert first["balanced_accuracy"] == pytest.approx(first["test_accuracy"])  # the test set is balanced


def test_summary_agrees_with_the_metrics(undisturbed):
    summary = RunFolder(undisturbed).read().summary
    lines = small_run.metrics(undisturbed)
    assert summary["finished"] is True
    assert len(summary["runs"]) == 4
    for run in summary["runs"]:
        own = [x for x in lines if (x["method"], x["seed"]) == (run["method"], run["seed"])]
        assert run["final_accuracy"] == own[-1]["test_accuracy"]
        assert run["traffic_bytes"] == sum(x["bytes_up"] + x["bytes_down"] for x in own)
        matrix = run["confusion_matrix"].toarray()
        assert matrix.sum(1).tolist() == [200] * 10
        assert np.trace(matrix) / 2000 == pytest.approx(run["final_accuracy"])
    counts = np.array(summary["partitions"][0]["class_counts"])
    assert counts.sum(1).tolist() == [40] * 10
    assert ((counts > 0).sum(1) == 2).all()
    assert summary["client_updates_per_s"] > 0


def test_methods_share_who_was_there(undisturbed):
    lines = small_run.metrics(undisturbed)
    cohorts = lambda method: [
        (x["seed"], x["round"], x["clients"], x["dropped"]) for x in lines if x["method"] == method
    ]
    assert cohorts("fedavg") == cohorts("control variates")


@pytest.mark.parametrize("dispatches", quick.only([1, 3, 6, 13], 3))
def test_a_stopped_run_goes_on_to_the_same_lines(undisturbed, config, tmp_path, dispatches):
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        small_run.run(path, config, should_stop=stop_after(dispatches))
    assert json.loads((path / "summary.json").read_text())["finished"] is False
    small_run.run(path, config)
    assert small_run.metrics(path) == small_run.metrics(undisturbed)


def test_a_finished_run_is_not_run_again(undisturbed, tmp_path):
    before = (undisturbed / "metrics.jsonl").read_bytes()
    display = small_run.run(undisturbed, small_run.config(tmp_path))
    assert display.steps == [(m, s, 7) for s in (0, 1) for m in ("fedavg", "control variates")]
    assert (undisturbed / "metrics.jsonl").read_bytes() == before


def damage(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_used(undisturbed, config, tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        small_run.run(path, config, should_stop=stop_after(3))
    newest, older = sorted((path / "checkpoints" / "method-0-seed-0").glob("*.npz"), reverse=True)
    assert (newest.stem, older.stem) == ("round-00000006", "round-00000004")
    damage(newest)
    display = small_run.run(path, config)
    assert "damaged" in display.notes[0]
    assert "round-00000006" in display.notes[0]
    assert "going on after round 4" in display.notes[1]
    # The display knows where the run stands before anything is compiled.
    [line] = [
        line for line in small_run.metrics(path) if (line["method"], line["seed"], line["round"]) == ("fedavg", 0, 4)
    ]
    assert (display.steps[0], display.accuracies[0]) == (("fedavg", 0, 4), line["test_accuracy"])
    assert small_run.metrics(path) == small_run.metrics(undisturbed)


@pytest.mark.slow
def test_without_a_usable_checkpoint_a_run_starts_anew(undisturbed, config, tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        small_run.run(path, config, should_stop=stop_after(6))
    for file in (path / "checkpoints" / "method-0-seed-0").glob("*.npz"):
        file.write_bytes(b"not an archive")
    with pytest.raises(Stopped):
        small_run.run(path, config, should_stop=stop_after(2))
    display = small_run.run(path, config)
    assert "fedavg, seed 0: going on after round 4" in display.notes
    assert small_run.metrics(path) == small_run.metrics(undisturbed)


@pytest.mark.slow
def test_lost_metrics_are_made_again(undisturbed, config, tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        small_run.run(path, config, should_stop=stop_after(6))
    first, *others = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("x" + first + "".join(others))
    with pytest.raises(Stopped) as stopped:
        small_run.run(path, config, should_stop=stop_after(1))
    assert stopped
    display = small_run.run(path, config)
    assert display.notes == [
        "fedavg, seed 0: going on after round 2",
        "control variates, seed 0: going on after round 4",
    ]
    assert small_run.metrics(path) == small_run.metrics(undisturbed)


@pytest.mark.slow
def test_fresh_starts_over(undisturbed, config, tmp_path):
    path = tmp_path / "run"
    small_run.run(path, config)
    display = small_run.run(path, config, fresh=True)
    assert display.steps[:2] == [("fedavg", 0, 0), ("fedavg", 0, 2)]
    assert small_run.metrics(path) == small_run.metrics(undisturbed)


def test_other_data_than_the_folder_was_begun_with_are_refused(undisturbed, tmp_path, monkeypatch):
    load = data.load
    monkeypatch.setattr(
        data, "load", lambda *a, **k: (lambda d: d._replace(train_images=255 - d.train_images))(load(*a, **k))
    )
    with pytest.raises(FolderError, match="begun with other images"):
        small_run.run(undisturbed, small_run.config(tmp_path))


def test_a_checkpoint_of_another_run_is_not_used(undisturbed, config, tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        small_run.run(path, config, should_stop=stop_after(6))
    first, other = (path / "checkpoints" / f"method-0-seed-{seed}" for seed in (0, 1))
    other.mkdir()
    for file in first.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    display = small_run.run(path, config)
    assert sum("belongs to another run" in note for note in display.notes) == 2
    assert small_run.metrics(path) == small_run.metrics(undisturbed)


@pytest.mark.parametrize("damage", [{"cost": 5}, {"cost": {"compile_s": "x"}}, {"wall_s": None}])
def test_a_damaged_summary_is_written_anew(undisturbed, tmp_path, damage):
    path = shutil.copytree(undisturbed, tmp_path / "run")
    file = path / "summary.json"
    file.write_text(json.dumps(sealed(unsealed(json.loads(file.read_text())) | damage)))
    small_run.run(path, small_run.config(tmp_path))
    assert json.loads(file.read_text())["wall_s"] >= 0


@pytest.mark.slow
def test_time_counts_rounds_that_are_not_evaluated_too(tmp_path, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(local, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    one = small_run.config(tmp_path, "execution.rounds_per_dispatch=1", "methods=[{recipe: fedavg}]", "seeds=[0]")
    small_run.run(tmp_path / "run", one)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["round"], line["wall_s"]) for line in lines] == [(2, 2.0), (4, 4.0), (6, 6.0), (7, 7.0)]


@pytest.mark.slow
def test_methods_that_differ_in_numbers_alone_are_compiled_once_by_a_thread(tmp_path, monkeypatch):
    threads, compile_for_backend = [], executable.compile_for_backend

    def counted(lowered):
        threads.append(threading.current_thread().name)
        return compile_for_backend(lowered)

    monkeypatch.setattr(executable, "compile_for_backend", counted)
    monkeypatch.setattr(executable, "_PROGRAMS", executable.WeakValueDictionary())
    methods = "methods=[{recipe: fedavg}, {recipe: fedprox, mu: 0.1}, {recipe: fedprox, mu: 1.0, name: strong}]"
    small_run.run(tmp_path / "run", small_run.config(tmp_path, methods, "training.rounds=2"))
    assert threads == ["compilation_0"] * 2
    small_run.run(tmp_path / "run", small_run.config(tmp_path, methods, "training.rounds=2"))
    assert len(threads) == 2  # a finished run needs none


@pytest.mark.slow
def test_evaluation_is_a_part_of_the_rounds_program_and_compiles_nothing_else(tmp_path):
    names, event = collections.Counter(), "/jax/core/compile/jaxpr_to_mlir_module_duration"
    lowered = lambda what, seconds, fun_name="", **rest: names.update([fun_name] if what == event else [])
    jax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(lowered)
    try:
        methods = "methods=[{recipe: fedprox, mu: 0.1}, {recipe: fedprox, mu: 1.0, name: strong}, {recipe: scaffold}]"
        small_run.run(tmp_path / "run", small_run.config(tmp_path, methods, "training.rounds=2"))
    finally:
        jax.monitoring.unregister_event_duration_listener(lowered)
    slow = {name: names.pop(f"jit({name})") for name in ("dispatch", "init", "state_of", "exhibits")}
    assert slow == {"dispatch": 2, "init": 1, "state_of": 2, "exhibits": 1}
    assert not [name for name in names if "eval" in name or "model" in name]


@pytest.mark.slow
def test_an_error_of_the_thread_is_that_of_the_run(tmp_path, monkeypatch):
    def refuse(lowered):
        raise ValueError("no such program")

    monkeypatch.setattr(executable, "compile_for_backend", refuse)
    monkeypatch.setattr(executable, "_PROGRAMS", {})  # another test's simulation may have the same program
    with pytest.raises(ValueError, match="no such program"):
        small_run.run(tmp_path / "run", small_run.config(tmp_path))
