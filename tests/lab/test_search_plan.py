"""What a search varies, on which seeds and rows, and the messages about what it can't vary."""

import pytest

from fedjax_bal.config import load_config
from fedjax_bal.lab.search_plan import plan_search, read_range, tuned_name, validation_metric

METHODS = "methods=[fedavg, {recipe: rebafl, training: {optimizer: {learning_rate: 0.03}}}, {recipe: fedprox, mu: 0.2}]"


def keys(search):
    return {method.name: {key.name: key.dotted for key in method.keys} for method in search.methods}


def test_each_method_searches_the_keys_that_it_has():
    search = plan_search(None, [METHODS, "lr=0.001..1:log", "rebafl.mu=0..1", "rounds=3"])
    rate = "methods.0.training.optimizer.learning_rate"
    assert keys(search) == {
        "fedavg": {"lr": rate},
        "rebafl": {"lr": rate, "rebafl.mu": "methods.0.mu"},
        "fedprox": {"lr": rate},
    }
    assert search.config.training.rounds == 3
    # What the methods have in the configuration, their own overrides included.
    assert [method.keys[0].own for method in search.methods] == [0.1, 0.03, 0.1]
    only = plan_search(None, [METHODS, "mu=0..1"])
    assert list(keys(only)) == ["rebafl", "fedprox"] and only.methods[1].keys[0].own == 0.2


def test_a_trial_changes_the_method_whatever_its_entry_says():
    _, rebafl, _ = plan_search(None, [METHODS, "lr=0.001..1:log"]).methods
    trial = rebafl.config({"lr": 0.5})
    assert [method.training.optimizer.built.learning_rate for method in trial.methods] == [0.5]


def test_recipes_of_a_combination_have_their_own_hyperparameters():
    text = "methods=[{recipe: [fedprox, moon]}]"
    search = plan_search(None, [text, "fedprox.mu=0..1", "temperature=0.1..1"])
    assert keys(search) == {
        "fedprox+moon": {"fedprox.mu": "methods.0.recipe.0.mu", "temperature": "methods.0.recipe.1.temperature"}
    }
    [method] = search.methods[0].config({"fedprox.mu": 0.7, "temperature": 0.25}).methods
    assert [recipe.hyperparameters["mu"] for recipe in method.recipes] != [0.7, 0.7]
    assert method.recipes[0].hyperparameters["mu"] == 0.7
    assert method.recipes[1].hyperparameters["temperature"] == 0.25
    with pytest.raises(ValueError, match=r"mu: ambiguous for fedprox\+moon; give fedprox.mu or moon.mu"):
        plan_search(None, [text, "mu=0..1"])


def test_seeds_and_partitions_are_others_than_those_of_the_configuration():
    changes = ["methods=fedavg", "lr=0.1..1", "seeds=[0, 1000]", "partition_seeds=[1002, 5]", "partition.seed=1003"]
    search = plan_search(None, changes, repeats=3)
    assert search.seeds == (1001, 1004, 1005)
    trial = search.methods[0].config({"lr": 0.5})
    assert trial.seeds == trial.partition_seeds == (1001, 1004, 1005)
    # With more seeds the comparison goes on, and so does the search.
    assert plan_search(None, [changes[0], changes[1], "seeds=3"]).text == plan_search(None, changes[:2]).text
    best = search.compared({"fedavg": {"lr": 0.5}})
    assert (best.seeds, best.partition_seeds) == ((0, 1000), (1002, 5))


def test_validation_rows_are_set_aside_for_the_search_alone():
    search = plan_search(None, ["methods=fedavg", "lr=0.1..1"])
    [trial] = search.methods[0].config({"lr": 0.5}).methods
    assert search.methods[0].default_share and trial.evaluation.validation.fraction == 0.2
    assert not any(method.evaluation.validation.wanted for method in search.compared({"fedavg": {"lr": 0.5}}).methods)
    given = plan_search(None, ["methods=fedavg", "lr=0.1..1", "validation.per_class=5"])
    [trial] = given.methods[0].config({"lr": 0.5}).methods
    assert not given.methods[0].default_share
    assert (trial.evaluation.validation.per_class, trial.evaluation.validation.fraction) == (5, None)


def test_the_kind_of_a_key_decides_whether_its_range_has_whole_numbers():
    search = plan_search(None, ["methods=fedprox", "mu=0..1", "local_epochs=1..5", "batch_size=10,20"])
    kinds = {key.name: (key.whole, key.wanted.checked) for key in search.methods[0].keys}
    assert kinds == {"mu": (False, (0.0, 1.0)), "local_epochs": (True, (1, 5)), "batch_size": (False, (10, 20))}
    assert isinstance(kinds["mu"][1][0], float)


@pytest.mark.parametrize(
    ("text", "value", "expected", "border"),
    [
        ("0.001..1:log", 0.00123456, 0.0012346, True),
        ("0.001..1:log", 0.03123456, 0.031235, False),
        ("0.00123464..1", 0.00123464, 0.00123464, True),
        ("0.5..0.9999951", 0.9999951, 0.9999951, True),
        ("0..10", 5.0, 5.0, False),
    ],
)
def test_values_have_five_digits_and_stay_within_their_range(text, value, expected, border):
    [key] = plan_search(None, ["methods=fedprox", f"mu={text}"]).methods[0].keys
    assert key.value(value) == pytest.approx(expected, abs=0)
    assert key.is_at_border(key.value(value)) is border


def test_the_configurations_own_value_is_kept_to_all_digits():
    changes = ["methods=fedprox", "methods.0.mu=0.12345678", "mu=0.1..1"]
    [key] = plan_search(None, changes).methods[0].keys
    assert key.has_own and key.value(0.12345678) == 0.12345678 and key.value(0.12345679) == 0.12346


def test_the_comparison_has_every_method_and_the_best_values_beside_it():
    search = plan_search("quickstart", ["methods=fedavg,rebafl,iwds", "lr=0.001..1:log", "mu=0..1", "seeds=2"])
    best = {"rebafl": {"lr": 0.5, "mu": 0.25}}
    config = search.compared(best)
    assert [method.name for method in config.methods] == ["fedavg", tuned_name("rebafl"), "iwds", "rebafl"]
    rates = [method.training.optimizer.built.learning_rate for method in config.methods]
    assert rates == [0.1, 0.5, 0.1, 0.03] and config.methods[1].recipes[0].hyperparameters["mu"] == 0.25
    # The command gives the same method.
    changes = ["methods=fedavg,rebafl,iwds", "seeds=2", *search.changes(best)]
    assert load_config("quickstart", changes).methods[1].recipe == config.methods[1].recipe
    assert load_config("quickstart", changes).methods[1].training == config.methods[1].training
    alone = plan_search("quickstart", ["methods=fedavg", "lr=0.001..1:log"])
    assert alone.changes({"fedavg": {"lr": 0.5}}) == ["lr=0.5"] and alone.changes({}) == []


@pytest.mark.parametrize(
    ("changes", "parts"),
    {
        "nothing to search": (["rounds=3"], ["no key to search", "lr=0.001..1:log"]),
        "a range the wrong way round": (["lr=1..0.1"], ["lr: received 1..0.1", "0.1..1"]),
        "an empty range": (["lr=1..1"], ["lr: received 1..1", "smaller"]),
        "a logarithm of nothing": (["lr=0..1:log"], ["lr: received 0..1:log", "above 0"]),
        "a scale": (["lr=0.1..1:ln"], ["lr: received 0.1..1:ln", ":log"]),
        "no end": (["lr=0.1..nan"], ["lr: received 0.1..nan", "LOW..HIGH"]),
        "a range of texts": (["model=mlp..small_cnn"], ["model: received mlp..small_cnn", "model=A,B"]),
        "numbers for a text": (["optimizer.name=1..2"], ["optimizer.name=1..2", "optimizer.name: received 1"]),
        "out of the key's range": (["lr=-1..1"], ["lr=-1..1", "learning_rate: received -1"]),
        "a value out of range": (["batch_size=0,10"], ["batch_size=0,10", "batch_size: received 0"]),
        "values that don't go together": (
            ["optimizer=sgd,adam", "lr=0.1..1", "momentum=0..0.9"],
            ["optimizer=adam", "momentum"],
        ),
        "an unknown key": (["moment=0..1"], ["moment=0..1", "none of the methods", "'momentum'"]),
        "a hyperparameter of no method": (["methods=fedavg", "mu=0..1"], ["mu=0..1", "fedavg"]),
        "the task": (["alpha=0.1..1"], ["alpha: is partition.alpha", "task"]),
        "a key by two names": (
            ["lr=0.1..1", "training.optimizer.learning_rate=0.1..1"],
            ["lr, training.optimizer.learning_rate", "same key"],
        ),
        "two ranges": (["lr=0.1..1", "lr=0.1..2"], ["lr: received two ranges"]),
        "a range and a list": (["lr=0.1..1", "lr=0.1,2"], ["lr", "a range and a list"]),
        "a sweep": (["sweeps/clients", "lr=0.1..1"], ["sweeps/clients", "sweep"]),
    }.values(),
)
def test_what_cannot_be_searched_is_refused(changes, parts):
    file = changes.pop(0) if "=" not in changes[0] else "quickstart"
    methods = [] if any(change.startswith("methods") for change in changes) else ["methods=fedavg"]
    with pytest.raises(ValueError) as refused:
        plan_search(file, [*methods, *changes])
    assert all(part in str(refused.value) for part in parts), str(refused.value)


def test_paths_of_files_are_no_ranges():
    assert plan_search(None, ["methods=fedavg", "lr=0.1..1", "model.weights=../w.npz"]).config.model.weights.endswith(
        "w.npz"
    )
    assert read_range("lr", "1e-3..1e-1").low == 0.001


def test_an_optimizer_is_searched_with_its_rate():
    [method] = plan_search(None, ["methods=fedavg", "optimizer=sgd,adam", "lr=0.001..1:log"]).methods
    [trial] = method.config({"optimizer": "adam", "lr": 0.01}).methods
    assert (trial.training.optimizer.built.name, trial.training.optimizer.built.learning_rate) == ("adam", 0.01)


@pytest.mark.parametrize("name", ["test_accuracy", "final_accuracy", "worst_class_accuracy", "validation", "mine"])
def test_only_metrics_of_validation_rows_are_searched_by(name):
    assert validation_metric("loss") == validation_metric("validation_loss") == "validation_loss"
    with pytest.raises(ValueError, match=f"--metric: received '?{name}'?.*balanced_accuracy"):
        validation_metric(name)
