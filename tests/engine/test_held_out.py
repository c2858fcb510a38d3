"""What was held out: against NumPy, and the same however clients are laid out."""

import dataclasses
from dataclasses import replace
from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from rounding import STEPS, SUM

from fedjax_bal import data, recipes
from fedjax_bal.engine.device import evaluation
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.engine.host import build_simulation, simulate
from fedjax_bal.engine.host.fine_tuning import FineTuner, plain_setting
from fedjax_bal.metrics import EarlyStopping, Shots, across_clients
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.optim.schedules import schedule
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.selection import bernoulli
from fedjax_bal.types import Variables

EPOCHS = 3
RATE = 0.5
MANY = 25  # more than any client has: a batch is all of a client's rows, so that their order makes no difference


@cache
def federation():
    """The toy federation, its clients with test rows, the rows of nobody for validation."""
    toy = toys.federation()
    rows = [toy.rows[a:b] for a, b in pairwise(toy.offsets)]
    training, tests = data.hold_out(np.random.default_rng(0), rows, 0.3)
    nobodys = np.setdiff1d(np.arange(len(toy.labels)), toy.rows)
    return data.federate(toy.images, toy.labels, training, toys.CLASSES, {"validation": nobodys}, tests=tests)


LOCAL = LocalTraining(epochs=EPOCHS, batch_size=MANY, optimizer=optimizer("sgd", RATE))
CLIENTS = Participation(delivery=bernoulli(0.8))
FEW = replace(CLIENTS, clients_per_round=4)
TWO = Participation(clients_per_round=2)
LANES = Execution(strategy="vmap", devices=2, chunk=2)


def simulation(recipe=None, **options):
    given = {"rounds": 2, "local": LOCAL, "participation": CLIENTS} | options
    return build_simulation(recipe or recipes.fedavg(), toys.network(), federation(), toys.test_set(), **given)


@cache
def all_together():
    """A simulation in which every client trains in every round, and what its only dispatch brings."""
    one = simulation(execution=Execution(strategy="map", devices=1))
    return one, one.advance(0, one.init(0))


def trained(variables, rows, epochs=EPOCHS):
    """The weights after steps of gradient descent on all of some rows at a time, in NumPy."""
    weights = {name: np.asarray(leaf, float) for name, leaf in variables.params.items()}
    inputs, labels = np.asarray(federation().images, float)[rows].reshape(len(rows), -1), federation().labels[rows]
    for _ in range(epochs):
        features = np.tanh(inputs @ weights["w1"])
        shares = np.exp(features @ weights["w2"])
        error = (shares / shares.sum(1, keepdims=True) - np.eye(toys.CLASSES)[labels]) / len(rows)
        back = (error @ weights["w2"].T) * (1 - features**2)
        weights = {"w1": weights["w1"] - RATE * inputs.T @ back, "w2": weights["w2"] - RATE * features.T @ error}
    return Variables(weights, {})


def own_accuracies(variables, clients, epochs=EPOCHS):
    """Accuracy of each client's own model on its test rows, of those that have some, in NumPy."""
    stored, found = federation(), []
    for client in clients:
        rows, tests = (x[0][x[1][client] : x[1][client + 1]] for x in ((stored.rows, stored.offsets), stored.tests))
        found += [correct(trained(variables, rows, epochs), tests)[0].mean()] if len(tests) else []
    return np.array(found)


def known(accuracies):
    """Those of clients with test rows, in the order of the clients."""
    assert len(accuracies) == 10
    return accuracies[~np.isnan(accuracies)]


def correct(variables, rows):
    """Whether the network classifies rows correctly, in NumPy, and its cross-entropy."""
    stored = federation()
    weights = {name: np.asarray(leaf, float) for name, leaf in variables.params.items()}
    logits = np.tanh(np.asarray(stored.images, float)[rows].reshape(len(rows), -1) @ weights["w1"]) @ weights["w2"]
    labels = stored.labels[rows]
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), labels]
    return logits.argmax(1) == labels, losses


@pytest.mark.slow
def test_the_global_model_on_what_was_held_out_equals_numpy():
    _, advance = all_together()
    record = advance.records[-1]
    stored, variables = federation(), advance.snapshot.state.variables
    right, losses = correct(variables, stored.auxiliary["validation"])
    assert record["validation_accuracy"] == pytest.approx(right.mean())
    assert record["validation_loss"] == pytest.approx(losses.mean(), rel=SUM)
    labels = stored.labels[stored.auxiliary["validation"]]
    recalls = [right[labels == label].mean() for label in np.unique(labels)]
    assert record["validation_balanced_accuracy"] == pytest.approx(np.mean(recalls))
    shares = [correct(variables, stored.tests.rows[a:b])[0] for a, b in pairwise(stored.tests.offsets) if b > a]
    wanted = across_clients("client_accuracy", np.array([own.mean() for own in shares]))
    assert len(shares) == 9  # the client with a single row has none
    assert {key: record[key] for key in wanted} == pytest.approx(wanted)
    listed = iter(shares)
    spans = np.diff(stored.tests.offsets)
    accuracies = [next(listed).mean() if span else None for span in spans]
    assert record["client_accuracies"] == [
        None if value is None else pytest.approx(value, abs=STEPS) for value in accuracies
    ]
    # The same by true class.
    hits = advance.client_hits
    assert hits is not None and hits.shape == (10, toys.CLASSES)
    right, _ = correct(variables, stored.tests.rows)
    owners = np.repeat(np.arange(10), spans)
    wanted = np.zeros_like(hits)
    np.add.at(wanted, (owners, stored.labels[stored.tests.rows]), right)
    assert hits.tolist() == wanted.tolist()


@pytest.mark.slow
def test_a_clients_own_test_rows_are_counted_two_at_a_time():
    _, advance = all_together()
    network, store = toys.network(), jax.tree.map(jnp.asarray, federation())
    variables, none = advance.snapshot.state.variables, jnp.zeros(toys.CLASSES, int)
    count = lambda client: evaluation._hits_of_client(network, variables, store, client, 2, none)
    assert advance.client_hits is not None and np.diff(store.tests.offsets).max() > 4
    assert jax.lax.map(count, jnp.arange(10)).tolist() == advance.client_hits.tolist()


@pytest.mark.slow
def test_hits_of_very_many_clients_are_of_all_classes_together(monkeypatch):
    _, by_class = all_together()
    monkeypatch.setattr(evaluation, "_MOST_CELLS", 10 * toys.CLASSES - 1)
    # Another option, or the program that is known already would be taken, in which the hits are by class.
    sim = simulation(execution=Execution(strategy="map", devices=1), evaluation=Evaluation(update_diversity=True))
    together = sim.advance(0, sim.init(0))
    assert together.client_hits is not None and by_class.client_hits is not None
    assert together.client_hits.tolist() == by_class.client_hits.sum(1, keepdims=True).tolist()
    assert together.records[-1]["client_accuracies"] == by_class.records[-1]["client_accuracies"]


@pytest.mark.slow
def test_the_cohorts_own_models_equal_numpy():
    one, advance = all_together()
    plan, _ = one.plan(0, 0, ())
    brought = plan.clients[plan.delivered]
    assert 5 < len(brought) < 10
    own = own_accuracies(one.init(0).state.variables, brought)
    wanted = across_clients("own_accuracy", own)
    assert {key: advance.records[0][key] for key in wanted} == pytest.approx(wanted)


@pytest.mark.slow
def test_fine_tuning_is_plain_training_of_each_client_whatever_the_method():
    method = recipes.combine(recipes.scaffold(), recipes.rebafl(mu=0.5))
    several = simulation(method, execution=LANES, participation=FEW, local=replace(LOCAL, epochs=1))
    personaliser, begun = FineTuner(several, EPOCHS), several.init(0)
    found = personaliser.run(0, begun)
    assert found.diverged == 0
    assert known(found.accuracies) == pytest.approx(own_accuracies(begun.state.variables, range(10)))

    broken = jax.tree.map(lambda leaf: leaf * np.nan, begun.state.variables)
    lost = personaliser.run(0, begun._replace(state=begun.state._replace(variables=broken)))
    assert lost.diverged == 9
    assert known(lost.accuracies).tolist() == [0] * 9


# Longer than any client's epochs, or shorter; and an order of rows, chains and a schedule that are training's own.
TRAINED_OTHERWISE = {
    "many steps": replace(LOCAL, epochs=None, steps=40),
    "few steps, one batch an epoch, by steps": LocalTraining(
        steps=1, batch_size=MANY, batches_per_epoch=1, drawing="replacement",
        optimizer=optimizer("sgd", RATE, step_schedule=schedule("cosine", length=1)),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "strategy"), [*zip(TRAINED_OTHERWISE, ("map", "vmap"), strict=True)])
def test_fine_tuning_takes_epochs_however_clients_are_trained(name, strategy):
    layout = Execution(strategy=strategy, devices=1)
    several = simulation(local=TRAINED_OTHERWISE[name], participation=FEW, execution=layout)
    begun = several.init(0)
    wanted = own_accuracies(begun.state.variables, range(10))
    untuned = own_accuracies(begun.state.variables, range(10), epochs=0)
    assert wanted.mean() > untuned.mean() + 0.1
    assert known(FineTuner(several, EPOCHS).run(0, begun).accuracies) == pytest.approx(wanted)


def test_nothing_of_a_setting_is_left_to_a_default():
    # With one, a field could be forgotten where the setting of fine-tuning is put together.
    fields = dataclasses.fields(Setting)
    missing = dataclasses.MISSING
    assert [field.name for field in fields if (field.default, field.default_factory) != (missing, missing)] == []


def test_of_local_training_fine_tuning_keeps_the_optimizer_and_the_batches_alone():
    rule = optimizer("sgd", RATE, momentum=0.5)
    asked = {"batch_size": 4, "drop_last": True, "lone_rows": "drop", "optimizer": rule}
    others = {"batches_per_epoch": 2, "batch_statistics": "local", "drawing": "replacement"}
    given = LocalTraining(steps=40, **asked, **others)
    assert {field.name for field in dataclasses.fields(given)} == {*asked, *others, "epochs", "steps"}
    setting = dataclasses.replace(simulation().setting, local=given)
    assert plain_setting(setting, EPOCHS).local == LocalTraining(epochs=EPOCHS, drawing="epochs", **asked)


def test_a_learning_rate_that_ends_at_0_leaves_nothing_to_fine_tune_with():
    ending = LocalTraining(optimizer=optimizer("sgd", RATE, schedule=schedule("cosine", length=2)))
    with pytest.raises(ValueError, match="personalised: the learning rate is 0 after the last of 2 rounds"):
        FineTuner(simulation(local=ending), 1)
    FineTuner(simulation(local=ending, rounds=1), 1)


def test_without_test_rows_there_is_nothing_to_fine_tune_for():
    bare = build_simulation(recipes.fedavg(), toys.network(), toys.federation(), toys.test_set(), rounds=1)
    with pytest.raises(ValueError, match="personalised: received 1 and a federation whose clients have no test rows"):
        FineTuner(bare, 1)
    with pytest.raises(ValueError, match="personalised: received 0"):
        FineTuner(simulation(), 0)
    with pytest.raises(ValueError, match="training: [0-9,]+ local steps in a round, at most 2,147,483,647 can be"):
        FineTuner(simulation(), 2**31 - 1)


def test_shot_groups_go_by_what_clients_are_trained_on():
    counts = federation().class_counts.sum(0)
    sim = simulation(evaluation=Evaluation(shots=Shots(int(counts.min()) + 1, int(counts.max()) - 1)))
    assert sim.groups["few"].tolist() == (counts < counts.min() + 1).tolist()
    assert sim.groups["many"].tolist() == (counts > counts.max() - 1).tolist()
    base = toys.federation()
    shared = data.federate(base.images, base.labels, [np.arange(len(base.labels))] * 3, base.num_classes)
    sizes = np.bincount(base.labels, minlength=base.num_classes)  # each image once, however many clients have it
    evaluation = Evaluation(shots=Shots(int(sizes.max()) + 1, int(sizes.max()) + 2))
    sim = build_simulation(recipes.fedavg(), toys.network(), shared, toys.test_set(), rounds=1, evaluation=evaluation)
    assert sim.groups["few"].all()


@pytest.mark.slow
def test_a_run_ends_with_the_dispatch_in_which_patience_runs_out_though_later_rounds_improve():
    def validated(early_stopping=None, rounds_per_dispatch=1):
        history = simulate(
            recipes.fedavg(), toys.network(), federation(), toys.test_set(), rounds=15, seed=0,
            local=replace(LOCAL, epochs=1), participation=TWO,
            execution=Execution(rounds_per_dispatch=rounds_per_dispatch), early_stopping=early_stopping,
        ).history  # fmt: skip
        return [record["validation_accuracy"] for record in history]

    values, rule = validated(), EarlyStopping(patience=2)
    waited = [number - values.index(max(values[:number])) - 1 for number in range(1, 16)]
    assert waited[:7] == [0, 0, 1, 2, 3, 0, 1]  # patience runs out with round 4, and round 6 is the best so far
    assert validated(early_stopping=rule) == values[:4]
    assert validated(early_stopping=rule, rounds_per_dispatch=7) == values[:7]


def test_early_stopping_needs_validation_rows():
    empty = federation()._replace(auxiliary={"validation": np.zeros(0, np.int32)})
    for given, message in (
        (toys.federation(), "early_stopping: received a federation without an auxiliary set 'validation'"),
        (empty, "an auxiliary set 'validation' without rows"),
    ):
        with pytest.raises(ValueError, match=message):
            rule = EarlyStopping(patience=2)
            simulate(recipes.fedavg(), toys.network(), given, toys.test_set(), rounds=1, seed=0, early_stopping=rule)


@pytest.mark.slow
def test_the_model_that_a_client_trained_is_measured_not_what_it_delivers():
    """With one bit a number, FedWSQ's clients deliver other models than they have trained."""
    records = []
    for recipe in (recipes.fedwsq(bits=1, everything=True), recipes.fedavg()):
        sim = simulation(recipe, rounds=1, evaluation=Evaluation(local_accuracy=True, local_test_images=20))
        records += sim.advance(0, sim.init(0)).records
    names = ("train_loss", "local_accuracy", "local_test_accuracy", "own_accuracy")
    sent, plain = ([record[name] for name in names] for record in records)
    assert sent == plain and records[0]["test_loss"] != records[1]["test_loss"]
