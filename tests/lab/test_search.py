"""A search carried through: in one program, resumed, with trials that diverge, and blind for the test set."""

import io

import numpy as np
import optuna
import pytest
import small_run
from rich.console import Console

from fedjax_bal.config import ConfigError
from fedjax_bal.engine.host import executable
from fedjax_bal.lab import Progress, SearchFolder, SharedInputs, Stopped, load_run, search, setup
from fedjax_bal.lab.errors import ForeignFolderError
from fedjax_bal.lab.search import run_search
from fedjax_bal.lab.search_plan import MethodSearch, plan_search
from fedjax_bal.report import write_sweep_page

CHANGES = ("methods=fedavg", "hidden=[8]", "rounds=2", "evaluation.every=1", "seeds=[0]")
RATE = "lr=0.001..1:log"


def plan(tmp_path, *changes, **options):
    file = tmp_path / "small.yaml"
    file.write_text(small_run.TEXT)
    return plan_search(file, [*CHANGES, *(changes or [RATE])], **options)


def carry(wanted, path, trials=8, together=4, should_stop=lambda: False, **options):
    """A session: what was found, and what was said."""
    folder = SearchFolder(path)
    console = Console(record=True, width=400, file=io.StringIO())
    with folder.claimed(wanted):
        inputs = SharedInputs(None, 1, folder.read_devices())
        display = Progress(console, plain=True)
        found = run_search(wanted, folder, inputs, display, should_stop, trials=trials, together=together, **options)
    return found, console.export_text()


def trials_of(path, method="fedavg"):
    """Number, values and result of each trial in the journal."""
    backend = optuna.storages.journal.JournalFileBackend(str(path / "journal.log"))
    study = optuna.load_study(study_name=method, storage=optuna.storages.JournalStorage(backend))
    return [(trial.number, trial.params, trial.state.name, trial.value) for trial in study.trials]


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A finished search of eight trials in two batches: its plan, its folder, what was found, and the programs."""
    tmp_path = tmp_path_factory.mktemp("search")
    programs = []
    compile_for_backend = executable.compile_for_backend
    with pytest.MonkeyPatch.context() as patch:
        counted = lambda lowered: programs.append(lowered) or compile_for_backend(lowered)
        patch.setattr(executable, "compile_for_backend", counted)
        patch.setattr(executable, "_PROGRAMS", executable.WeakValueDictionary())
        wanted = plan(tmp_path)
        found, _ = carry(wanted, tmp_path / "out")
    return wanted, tmp_path / "out", found, programs


@pytest.mark.slow
def test_all_trials_train_in_one_program(searched):
    _, path, [found], programs = searched
    assert len(programs) == 1
    trials = trials_of(path)
    assert [number for number, *_ in trials] == list(range(8))
    assert trials[0][1] == {"lr": 0.05}  # the configuration's own
    assert len({params["lr"] for _, params, *_ in trials}) == 8
    assert found.trials == 8 and found.failed == 0 and found.own == trials[0][3]
    assert found.value == max(value for *_, value in trials)


@pytest.mark.slow
def test_the_result_of_a_trial_is_its_mean_on_validation_rows(searched):
    _, path, _, _ = searched
    sweep = load_run(path / "trials" / "fedavg")
    assert len(sweep) == 8
    _, params, _, value = trials_of(path)[3]
    rate = float(f"{params['lr']:.5g}")
    lines = small_run.metrics(path / "trials" / "fedavg" / "points" / f"lr={rate}")
    assert [line["seed"] for line in lines] == [1000, 1000]
    assert value == pytest.approx(np.mean([line["validation_balanced_accuracy"] for line in lines]))


@pytest.mark.slow
def test_trials_are_the_points_of_a_sweep_with_a_page(searched):
    _, path, _, _ = searched
    assert "learning_rate" in write_sweep_page(path / "trials" / "fedavg").read_text()


@pytest.mark.slow
def test_a_search_that_was_killed_goes_on_to_the_same_trials(searched, tmp_path, monkeypatch):
    wanted, path, found, _ = searched
    # Before the results of the first batch are told, and in the middle of drawing the second.
    with monkeypatch.context() as patch:
        patch.setattr(search, "_score", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            carry(wanted, tmp_path / "out")
    assert [state for *_, state, _ in trials_of(tmp_path / "out")] == ["RUNNING"] * 4
    with pytest.raises(Stopped):
        carry(wanted, tmp_path / "out", should_stop=lambda: True)
    assert [state for *_, state, _ in trials_of(tmp_path / "out")] == ["COMPLETE"] * 4 + ["RUNNING"] * 4
    again, said = carry(wanted, tmp_path / "out")
    assert trials_of(tmp_path / "out") == trials_of(path)
    assert again[0].best == found[0].best
    # Once it is finished, nothing is trained.
    _, said = carry(wanted, tmp_path / "out")
    assert said == ""


@pytest.mark.slow
def test_more_trials_go_on_from_the_finished_ones(searched, tmp_path):
    wanted, path, _, _ = searched
    carry(wanted, tmp_path / "out", trials=4)
    [found], _ = carry(wanted, tmp_path / "out", trials=8)
    assert found.trials == 8 and trials_of(tmp_path / "out") == trials_of(path)


@pytest.mark.slow
def test_labels_of_the_test_set_change_nothing(searched, tmp_path, monkeypatch):
    wanted, path, _, _ = searched
    load = setup.SharedInputs.dataset

    def poisoned(self, config):
        dataset = load(self, config)
        return dataset._replace(test_labels=(dataset.test_labels + 1) % 10)

    monkeypatch.setattr(setup.SharedInputs, "dataset", poisoned)
    carry(wanted, tmp_path / "out")
    lines = [small_run.metrics(folder / "trials/fedavg/points/lr=0.05") for folder in (path, tmp_path / "out")]
    assert lines[0][-1]["test_accuracy"] != lines[1][-1]["test_accuracy"]
    assert trials_of(tmp_path / "out") == trials_of(path)


@pytest.mark.slow
def test_another_search_has_another_folder(searched, tmp_path):
    _, path, _, _ = searched
    other = plan(tmp_path, "lr=0.01..1:log", metric="loss")
    with pytest.raises(ForeignFolderError, match="search.keys.lr"), SearchFolder(path).claimed(other):
        pass


@pytest.mark.slow
def test_a_trial_that_diverges_is_worse_than_all_others(tmp_path):
    [found], said = carry(plan(tmp_path, "lr=0.01,0.1,1e30"), tmp_path / "out", trials=6, together=6)
    by_value = {params["lr"]: (state, value) for _, params, state, value in trials_of(tmp_path / "out")}
    assert by_value["1e+30"] == ("PRUNED", None)
    assert found.best["lr"] in (0.01, 0.1) and found.failed and "diverged" in said
    # Equal trials are trained once.
    assert len(list((tmp_path / "out/trials/fedavg/points").iterdir())) == len(by_value) <= 3


@pytest.mark.slow
def test_values_that_do_not_go_together_are_left_out(tmp_path, monkeypatch):
    build = MethodSearch.config

    def picky(self, values):
        if values["lr"] > 0.1:
            raise ConfigError("too fast")
        return build(self, values)

    monkeypatch.setattr(MethodSearch, "config", picky)
    [found], said = carry(plan(tmp_path), tmp_path / "out")
    states = {(params["lr"] > 0.1, state) for _, params, state, _ in trials_of(tmp_path / "out")}
    assert states == {(False, "COMPLETE"), (True, "FAIL")}
    assert found.failed and "left out: too fast" in said


@pytest.mark.slow
def test_a_search_without_any_result_says_so(tmp_path):
    with pytest.raises(ValueError, match="fedavg: none of 2 trials has a result"):
        carry(plan(tmp_path, "lr=1e30..1e31"), tmp_path / "out", trials=2)


@pytest.mark.slow
def test_a_damaged_journal_is_named(searched, tmp_path):
    wanted, _, _, _ = searched
    folder = SearchFolder(tmp_path / "out")
    with folder.claimed(wanted):
        folder.begin(wanted)
        folder.journal.write_text("not a journal\nat all\n")
    with pytest.raises(ValueError, match="journal.log: damaged"):
        carry(wanted, tmp_path / "out")
