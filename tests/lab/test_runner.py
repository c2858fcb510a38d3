"""A run folder: complete, resumable to the same bits, and robust against damage."""

import collections
import errno
import itertools
import json
import shutil
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.monitoring
import numpy as np
import pytest
import quick
import small_run

from fedjax_bal import data, files, load_run
from fedjax_bal.engine.host import executable
from fedjax_bal.lab import FolderError, RunFolder, checkpoint, environment, loop
from fedjax_bal.report import gallery, write_run_page

ONE = small_run.ONE


def test_metrics_hold_a_line_a_run_and_evaluated_round(trained):
    lines = small_run.metrics(trained())
    runs = [(m, s) for s in (0, 1) for m in ("fedavg", "control variates")]
    assert [(x["method"], x["seed"], x["round"]) for x in lines] == [(*run, r) for run in runs for r in (2, 4, 6, 7)]
    first = lines[0]
    assert 0 < first["clients"] <= 6
    assert first["clients"] + first["dropped"] <= 6
    assert len(first["per_class_accuracy"]) == 10
    assert first["balanced_accuracy"] == pytest.approx(first["test_accuracy"])  # the test set is balanced


@pytest.mark.slow
def test_rounds_without_any_client_are_recorded_and_read_like_others(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "run_figures", lambda run: [])  # pictures are no matter here, and take their time
    path, few = tmp_path / "run", "availability={name: bernoulli, p: 0.03}"
    display = small_run.run(path, small_run.config(tmp_path, few, "methods=[{recipe: fedavg}]", "seeds=[0, 1]"))
    lines, frame = small_run.metrics(path), load_run(path).metrics()
    assert display.steps[-1] == ("fedavg", 1, 7)
    assert [line["round"] for line in lines] == [2, 4, 6, 7] * 2
    silent = [line["clients"] + line["dropped"] == 0 for line in lines]
    assert any(silent) and not all(silent)
    for number, line in enumerate(lines):
        if silent[number]:
            assert (line["train_loss"], line["bytes_up"], line["bytes_down"]) == (None, 0, 0)
            assert not number % 4 or line["test_loss"] == lines[number - 1]["test_loss"]
    assert list(frame["clients"]) == [line["clients"] for line in lines]
    assert "not finished" not in write_run_page(path).read_text()


def test_summary_agrees_with_the_metrics(trained):
    summary = RunFolder(trained()).read().summary
    lines = small_run.metrics(trained())
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


def test_a_finished_run_is_not_run_again(trained, tmp_path):
    path = shutil.copytree(trained(), tmp_path / "run")
    before = (path / "metrics.jsonl").read_bytes()
    display = small_run.run(path, small_run.config(tmp_path))
    assert display.steps == [(m, s, 7) for s in (0, 1) for m in ("fedavg", "control variates")]
    assert (path / "metrics.jsonl").read_bytes() == before


def damage(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.fixture(scope="module")
def one(trained):
    """A folder of one finished run, and its configuration."""
    path = trained(*ONE)
    return path, small_run.config(path.parent, *ONE)


@pytest.fixture
def copied(one, tmp_path):
    """A copy of that folder, and the configuration."""
    return shutil.copytree(one[0], tmp_path / "run"), one[1]


def checks_out(path):
    """Whether `sha256sum -c` says that the folder is intact."""
    return subprocess.run(["sha256sum", "--status", "--strict", "-c", "SHA256SUMS"], cwd=path).returncode == 0


def contents(path):
    """All bytes of a folder."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_finished_run_takes_another_label_and_is_not_run_again(copied, tmp_path):
    folder, _ = copied
    before = small_run.metrics(folder)
    small_run.run(folder, small_run.config(tmp_path, *ONE, "methods.0.label=FedAvg"))
    assert "label: FedAvg" in (folder / "config.yaml").read_text()
    assert small_run.metrics(folder) == before and checks_out(folder)


def assert_refused(path, config, *words):
    """The same command ends with a message that has these words, and touches nothing."""
    before = contents(path)
    with pytest.raises(FolderError) as error:
        small_run.run(path, config)
    assert all(word in str(error.value) for word in words), error.value
    assert contents(path) == before


def first_checkpoints(path):
    return sorted((path / "checkpoints" / "fedavg-seed-0").glob("*.npz"))


def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_used(copied, one):
    path, config = copied
    damage(first_checkpoints(path)[-1])
    display = small_run.run(path, config)
    damaged, resumed = (note for note in display.notes if not note.startswith(("data: ", "training: ")))
    assert "damaged" in damaged and "round-00000004" in damaged
    assert "resuming after round 2" in resumed
    # The display knows where the run stands before anything is compiled.
    lines = small_run.metrics(path)
    assert (display.steps[0], display.accuracies[0]) == (("fedavg", 0, 2), lines[0]["test_accuracy"])
    assert lines == small_run.metrics(one[0])


def test_with_all_checkpoints_damaged_nothing_is_touched(copied):
    path, config = copied
    for file in first_checkpoints(path):
        damage(file)
    assert_refused(path, config, "every checkpoint is damaged", "--fresh")


def test_lost_lines_of_metrics_are_named_and_nothing_is_touched(copied):
    path, config = copied
    _, second = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text(second)
    assert_refused(path, config, "lacks round 2 of fedavg, seed 0", "--fresh")


def test_repeated_lines_in_any_order_lose_nothing_and_the_later_one_counts(copied):
    path, config = copied
    first, second = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    wrong = json.dumps({**json.loads(first), "test_accuracy": 0.125}) + "\n"
    (path / "metrics.jsonl").write_text(second + wrong + second + first)
    before = first_checkpoints(path)[-1].stat().st_ino
    display = small_run.run(path, config)
    assert display.steps == [("fedavg", 0, 4)] and len(display.notes) == 2  # data and training
    assert first_checkpoints(path)[-1].stat().st_ino == before
    assert (path / "metrics.jsonl").read_text() == first + second
    assert checks_out(path)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda path: (path / "execution.json").unlink(), "execution.json"),
        (lambda path: (path / "metrics.jsonl").write_text("{}\n"), "metrics.jsonl"),
        (lambda path: (path / "summary.json").write_text("{}"), "summary.json"),
    ],
)
def test_a_file_that_no_session_has_written_like_that_is_named_and_nothing_is_touched(copied, change, name):
    path, config = copied
    change(path)
    assert_refused(path, config, name)


FAULTS = {
    "an input/output error": OSError(errno.EIO, "Input/output error"),
    "no permission": PermissionError(errno.EACCES, "Permission denied"),
}


class Failing:
    """A stream whose reads fail."""

    def __init__(self, stream, error):
        self.stream, self.error = stream, error

    def __enter__(self):
        return self

    def __exit__(self, *about):
        self.stream.close()

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def read(self, *count):
        raise self.error

    readinto = read


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "where", "name"),
    [
        ("an input/output error", "reading", "round-00000004.npz"),
        ("no permission", "opening", "metrics.jsonl"),
    ],
)
def test_what_can_not_be_read_for_the_moment_is_not_damaged(copied, one, monkeypatch, fault, where, name):
    path, config = copied
    opened = files.open_file

    def failing(file):
        stream = opened(file)
        if Path(file).name != name:
            return stream
        if where == "reading":
            return Failing(stream, FAULTS[fault])
        stream.close()
        raise FAULTS[fault]

    with monkeypatch.context() as patched:
        for module in (files, checkpoint):
            patched.setattr(module, "open_file", failing)
        with pytest.raises(FolderError, match=f"{name}: can't be read .*nothing was changed"):
            small_run.run(path, config)
        if name != "round-00000004.npz":
            with pytest.raises(FolderError, match=f"{name}: can't be read"):
                RunFolder(path).read()
    assert contents(path) == contents(one[0])


def with_other(monkeypatch, change):
    """Makes the data set another one under its name."""
    load = data.load
    monkeypatch.setattr(data, "load", lambda *args, **rest: change(load(*args, **rest)))


OTHER_DATA = {
    "pixels": lambda own: own._replace(train_images=255 - own.train_images),
    "classes in another order": lambda own: own._replace(class_names=own.class_names[::-1]),
    "owners of images": lambda own: own._replace(train_clients=np.zeros(len(own.train_labels), np.int32)),
}


@pytest.mark.parametrize("other", quick.only(OTHER_DATA, "pixels", "classes in another order"))
def test_other_data_than_the_folder_was_begun_with_are_refused(copied, monkeypatch, other):
    path, config = copied
    with_other(monkeypatch, OTHER_DATA[other])
    longer = small_run.config(path.parent, *ONE, "training.rounds=6")
    wanted = longer if other == "pixels" else config  # whether or not anything is left to do
    assert_refused(path, wanted, "started with different images, labels, names", "--fresh")


def test_a_whole_checkpoint_of_another_version_s_state_is_not_deleted(copied, monkeypatch):
    path, config = copied
    for file in first_checkpoints(path):  # with a leaf more, as another optax may have
        arrays = checkpoint.read(file)
        checkpoint.save(file.parent, checkpoint.round_of(file), Renamed({**arrays, ".added": np.zeros(3)}))
    assert_refused(path, config, "undamaged, but doesn't fit the state", ".added", "--fresh")


class Renamed(dict):
    """A tree whose leaves have these very names."""


jax.tree_util.register_pytree_with_keys(
    Renamed,
    lambda own: ([(Plain(name), own[name]) for name in own], tuple(own)),
    lambda names, leaves: Renamed(zip(names, leaves, strict=True)),
)


class Plain(str):
    """A key that is written as it is."""

    def __str__(self):
        return str.__str__(self)


@pytest.mark.parametrize(
    ("name", "value"),
    quick.only(
        [("jax_random_seed_offset", 5), ("jax_default_matmul_precision", "float32")], ("jax_random_seed_offset", 5)
    ),
)
def test_a_run_goes_on_under_the_settings_of_jax_that_it_was_begun_with(copied, one, name, value):
    path, config = copied
    before, longer = getattr(jax.config, name), small_run.config(path.parent, *ONE, "training.rounds=6")
    try:
        jax.config.update(name, value)
        assert_refused(path, longer, f"{name}: {before} then, {value} now ({name.upper()} sets it)")
        small_run.run(path, config)  # nothing is left to do, so that nothing depends on it
    finally:
        jax.config.update(name, before)
    assert contents(path) == contents(one[0])


def test_a_finished_run_keeps_the_versions_and_the_device_that_trained_it(copied, one, monkeypatch):
    path, config = copied
    monkeypatch.setattr(environment, "versions", lambda: {"jax": "99", "new": "1"})
    monkeypatch.setattr(environment, "device_name", lambda: "another machine")
    small_run.run(path, config)
    assert contents(path) == contents(one[0])
    small_run.run(path, small_run.config(path.parent, *ONE, "training.rounds=6"))
    before, after = (json.loads((own / "summary.json").read_text()) for own in (one[0], path))
    assert after["versions"] == {"jax": f"{before['versions']['jax']}; 99", "new": "1"}
    assert after["device"] == f"{before['device']}; another machine"


def test_fresh_starts_over(copied, one):
    path, config = copied
    display = small_run.run(path, config, fresh=True)
    assert display.steps == [("fedavg", 0, 0), ("fedavg", 0, 2), ("fedavg", 0, 4)]
    assert small_run.metrics(path) == small_run.metrics(one[0])


def test_a_checkpoint_of_another_run_is_not_used_and_not_deleted(copied):
    path, _ = copied
    first, other = (path / "checkpoints" / f"fedavg-seed-{seed}" for seed in (0, 1))
    shutil.copytree(first, other)
    both = small_run.config(path.parent, *ONE, "seeds=[0, 1]")
    assert_refused(path, both, "fedavg-seed-1/round-00000004.npz: belongs to another run")


@pytest.mark.slow
def test_methods_that_differ_in_numbers_alone_are_compiled_once_by_a_thread(tmp_path, monkeypatch):
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

    monkeypatch.setattr(executable, "compile_for_backend", counted)
    monkeypatch.setattr(loop, "open_stack", opened_late)
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
    slow = {name: names.pop(f"jit({name})") for name in ("dispatch", "initial_variables", "state_of", "exhibits")}
    assert slow == {"dispatch": 2, "initial_variables": 1, "state_of": 2, "exhibits": 1}
    assert not [name for name in names if "eval" in name or "model" in name]


@pytest.mark.slow
def test_an_error_of_the_thread_is_that_of_the_run(tmp_path, monkeypatch):
    def refuse(lowered):
        raise ValueError("no such program")

    monkeypatch.setattr(executable, "compile_for_backend", refuse)
    monkeypatch.setattr(executable, "_PROGRAMS", {})  # another test's simulation may have the same program
    with pytest.raises(ValueError, match="no such program"):
        small_run.run(tmp_path / "run", small_run.config(tmp_path))


def test_methods_share_who_was_there(trained):
    lines = small_run.metrics(trained())
    cohorts = lambda method: [
        (x["seed"], x["round"], x["clients"], x["dropped"]) for x in lines if x["method"] == method
    ]
    assert cohorts("fedavg") == cohorts("control variates")


def test_with_all_checkpoints_gone_nothing_is_touched(copied):
    path, config = copied
    for file in first_checkpoints(path):
        file.unlink()
    assert_refused(path, config, "has no checkpoint, but", "round 4 of fedavg, seed 0")


def test_a_kill_between_the_first_lines_and_their_checkpoint_loses_nothing(copied):
    path, config = copied
    before = small_run.metrics(path)
    for file in first_checkpoints(path):
        file.unlink()
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    late = lambda line: line["method"] == "fedavg" and line["seed"] == 0 and line["round"] > 2
    (path / "metrics.jsonl").write_text("".join(line for line in lines if not late(json.loads(line))))
    small_run.run(path, config)
    assert small_run.metrics(path) == before


def test_the_time_in_the_summary_includes_compilation(one):
    summary = json.loads((one[0] / "summary.json").read_text())
    cost = summary["cost"]
    assert cost["compile_s"] > 0 and cost["train_s"] > 0
    assert summary["wall_s"] == pytest.approx(cost["compile_s"] + cost["train_s"], abs=1e-3)


@pytest.mark.slow
def test_time_counts_rounds_that_are_not_evaluated_too(tmp_path, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    one = small_run.config(tmp_path, "execution.rounds_per_dispatch=1", "methods=[{recipe: fedavg}]", "seeds=[0]")
    small_run.run(tmp_path / "run", one)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["round"], line["wall_s"]) for line in lines] == [(2, 2.0), (4, 4.0), (6, 6.0), (7, 7.0)]
