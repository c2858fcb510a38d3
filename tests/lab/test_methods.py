"""A comparison of Python objects: equal to a command's and to `simulate`; its folder is resumed, extended, refused."""

import jax
import numpy as np
import optax
import pytest
import small_run
from typer.testing import CliRunner

from fedjax_bal import (
    EarlyStopping,
    Evaluation,
    Execution,
    LocalTraining,
    Method,
    Participation,
    compare,
    load_run,
    models,
    optimizer,
    recipes,
    selection,
    simulate,
)
from fedjax_bal.cli.app import app
from fedjax_bal.lab import FolderError, loop
from fedjax_bal.lab.setup import set_up
from fedjax_bal.parts import Loss, part
from fedjax_bal.recipes import Recipe
from fedjax_bal.testing import toy

pytestmark = pytest.mark.slow

PAIR = {"fedavg": recipes.fedavg(), "prox": recipes.fedprox(mu=0.5)}
SETTINGS = {
    "rounds": 2,
    "local": LocalTraining(batch_size=4, optimizer=optimizer("sgd", 0.1)),
    "participation": Participation(clients_per_round=3),
}


def compared(methods=PAIR, seeds=(0, 1), **changes):
    return compare(methods, toy.network(), toy.federation(), toy.test_set(), seeds=seeds, **{**SETTINGS, **changes})


@pytest.fixture
def nothing_trains(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("something is trained")

    monkeypatch.setattr(loop, "open_stack", refuse)


def without_time(lines, **more):
    return [{key: value for key, value in (line | more).items() if key != "wall_s"} for line in lines]


def test_the_command_trains_the_same(trained, tmp_path):
    setup = set_up(small_run.config(tmp_path))
    simulation = setup.simulations[0]
    result = compare(
        {"fedavg": recipes.fedavg(), "control variates": recipes.scaffold()},
        simulation.setting.model,
        simulation.federation,
        setup.dataset,
        seeds=2,
        rounds=7,
        local=LocalTraining(epochs=1, batch_size=20, optimizer=optimizer("sgd", 0.05)),
        participation=Participation(
            clients_per_round=3, availability=selection.bernoulli(0.5), delivery=selection.bernoulli(0.8)
        ),
        evaluation=Evaluation(every=2),
        execution=Execution(rounds_per_dispatch=2),
        target_accuracy=0.3,
    )
    assert without_time(result.history) == small_run.metrics(trained())
    page = CliRunner().invoke(app, ["report", str(trained())])
    assert page.exit_code == 0
    table = (trained() / "tables.tex").read_text()
    assert result.to_latex().split("tabular")[1] in table


def test_simulate_trains_the_same_and_methods_share_what_a_seed_draws():
    equal = Method(recipes.fedprox(mu=0.5), local=SETTINGS["local"])
    result = compared({**PAIR, "equal": equal, "slow": Method(recipes.fedavg(), LocalTraining(batch_size=4))}, (3, 1))
    alone = simulate(PAIR["prox"], toy.network(), toy.federation(), toy.test_set(), seed=1, **SETTINGS)
    of = lambda method, seed: [line for line in result.history if (line["method"], line["seed"]) == (method, seed)]
    assert without_time(of("prox", 1)) == without_time(alone.history, method="prox", seed=1)
    assert without_time(of("equal", 3), method="prox") == without_time(of("prox", 3)) != without_time(of("prox", 1))
    assert of("slow", 1)[-1]["test_loss"] != of("fedavg", 1)[-1]["test_loss"]
    trained, expected = result.variables("equal", 1), alone.variables
    np.testing.assert_array_equal(trained.params["body"]["kernel"], expected.params["body"]["kernel"])


def test_a_folder_goes_on_and_returns_what_is_finished(tmp_path, request):
    first = compared({"prox": PAIR["prox"]}, seeds=1, rounds=1, out=tmp_path / "out")
    assert len(first.history) == 1
    longer = compared(out=tmp_path / "out")
    request.getfixturevalue("nothing_trains")
    again = compared(out=str(tmp_path / "out"))
    assert again.history == longer.history and repr(again) == repr(longer)
    np.testing.assert_array_equal(again.variables("prox", 1).params["head"]["dense"]["bias"], _bias(longer))
    with pytest.raises(AssertionError, match="trained"):
        compared(out=tmp_path / "out", seeds=3)


def _bias(result):
    return result.variables("prox", 1).params["head"]["dense"]["bias"]


def test_a_folder_holds_what_memory_does(tmp_path):
    held, kept = compared(), compared(out=tmp_path / "out")
    assert without_time(held.history) == without_time(kept.history)
    np.testing.assert_array_equal(_bias(held), _bias(kept))
    run = load_run(tmp_path / "out")
    assert run.methods == ("fedavg", "prox") and len(run.metrics()["round"]) == 8
    with pytest.raises(FolderError, match="compare"):
        run.variables("prox")
    for command in (["report"], ["run", "--out"]):
        shown = CliRunner().invoke(app, [*command, str(tmp_path / "out")])
        assert shown.exit_code == (0 if command == ["report"] else 2), shown.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "trained from Python" in page and "How to reproduce" not in page
    assert held.report(tmp_path / "page.html").read_text().count("<img") == page.count("<img")


@part
class Scaled(Loss):
    weight: float = 0.1

    def loss(self, outputs, batch, params, ctx):
        return self.weight * outputs.logits.sum() * 0


OWN = {"own": Recipe("own", (Scaled(),))}
ADAM = LocalTraining(batch_size=4, optimizer=optax.adam(0.1))


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ({}, {"local": LocalTraining(batch_size=5, optimizer=optimizer("sgd", 0.1))}, "local.batch_size: 4 here, 5"),
        ({}, {"participation": Participation(clients_per_round=2)}, "participation.clients_per_round: 3 here, 2"),
        ({}, {"methods": {**PAIR, "prox": recipes.fedprox(mu=0.1)}}, "methods.prox.parts: "),
        ({}, {"methods": {"fedavg": PAIR["fedavg"]}}, "methods.prox.recipe: fedprox here, None"),
        ({}, {"rounds": 1}, "training.rounds: 2 here, 1"),
        ({}, {"seeds": [1, 0]}, "seeds: "),
        ({"local": ADAM}, {"local": LocalTraining(batch_size=4, optimizer=optax.adam(0.2))}, "code: "),
        ({}, {"early_stopping": EarlyStopping(metric="validation_loss")}, "early_stopping.metric: "),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else "",
)
def test_another_comparison_is_refused(before, after, key, tmp_path, monkeypatch):
    monkeypatch.setattr("fedjax_bal.lab.methods.train_comparison", lambda comparison, *_, **__: comparison.finish())
    compared(out=tmp_path, **before)
    with pytest.raises(FolderError, match=key) as refused:
        compared(out=tmp_path, **{**before, **after})
    assert str(tmp_path) in str(refused.value)
    compared(out=tmp_path, **before)


def test_changed_code_and_data_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fedjax_bal.lab.methods.train_comparison", lambda comparison, *_, **__: comparison.finish())
    compared(OWN, out=tmp_path)
    monkeypatch.setattr("inspect.getsource", lambda kind: "changed")
    with pytest.raises(FolderError, match=r"methods.own.code: "):
        compared(OWN, out=tmp_path)
    monkeypatch.undo()
    inputs, labels = toy.test_set()
    with pytest.raises(FolderError, match=r"data.sha256: "):
        compare(OWN, toy.network(), toy.federation(), (inputs + 1, labels), seeds=2, **SETTINGS, out=tmp_path)


@pytest.mark.parametrize("given", [False, True])
def test_other_initial_weights_in_a_network_are_refused(given, tmp_path, monkeypatch):
    monkeypatch.setattr("fedjax_bal.lab.methods.train_comparison", lambda comparison, *_, **__: comparison.finish())
    first, second = (toy.network().init(jax.random.key(seed)) for seed in (0, 1))

    def go(variables):
        model = toy.network() if given else models.with_weights(toy.network(), variables)
        more = {"variables": variables} if given else {}
        compare(OWN, model, toy.federation(), toy.test_set(), seeds=1, **SETTINGS, out=tmp_path, **more)

    go(first)
    go(first)
    with pytest.raises(FolderError, match=r"data.sha256: " if given else r"methods.own.code: .*initial weights"):
        go(second)


def test_a_selector_of_ones_own_with_numbers_as_its_state_is_resumed_until_its_code_changes(tmp_path, monkeypatch):
    def in_turn(clients_per_round):
        def select(state, seed, round, available):
            first, count = state
            chosen = (first + np.arange(clients_per_round)) % count
            return chosen[:, None], ((first + clients_per_round) % count, count)

        return selection.Selector(
            lambda seed, num_clients: (0, num_clients), select, lambda state, plan, probes: state,
            chains=clients_per_round, chain_length=1, passes=1, closed_loop=False,
        )  # fmt: skip

    monkeypatch.setattr(selection.SELECTORS, "_entries", {**selection.SELECTORS, "in_turn": in_turn})
    turns = Participation(clients_per_round=2, selector=selection.Choice("in_turn"))
    whole = compared({"fedavg": recipes.fedavg()}, [0], participation=turns, rounds=4)
    compared({"fedavg": recipes.fedavg()}, [0], participation=turns, out=tmp_path)
    resumed = compared({"fedavg": recipes.fedavg()}, [0], participation=turns, rounds=4, out=tmp_path)
    assert without_time(resumed.history) == without_time(whole.history)
    monkeypatch.setattr("inspect.getsource", lambda code: "changed")
    with pytest.raises(FolderError, match=r"methods.fedavg.code: .*selector"):
        compared({"fedavg": recipes.fedavg()}, [0], participation=turns, rounds=4, out=tmp_path)


def test_what_a_folder_cannot_compare_is_refused(tmp_path):
    chosen = Participation(selector=selection.uniform(3))
    with pytest.raises(ValueError, match=r"participation.selector: .*by name"):
        compared(participation=chosen, out=tmp_path)
    small_run.config(tmp_path)
    with pytest.raises(FolderError, match="small.yaml"):
        compared(out=tmp_path)


def test_a_run_that_diverges_is_listed():
    broken = Method(recipes.fedavg(), LocalTraining(batch_size=4, optimizer=optimizer("sgd", 1e30)))
    with pytest.warns(UserWarning, match=r"broken, seed \d: diverged"):
        result = compared({"fedavg": PAIR["fedavg"], "broken": broken})
    assert result.table().count("broken") >= 2 and {line["method"] for line in result.history} == {"fedavg"}
    with pytest.raises(ValueError, match="broken, seed 1: has no model"):
        result.variables("broken", 1)
