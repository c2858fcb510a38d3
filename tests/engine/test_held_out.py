"""Validation rows and the clients' own tests: against NumPy, against rounds of training, however clients are laid out."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import toys

from fedjax_bal import data, recipes
from fedjax_bal.engine.personalising import Personaliser
from fedjax_bal.groups import Shots, over_clients
from fedjax_bal.optimizers import optimizer
from fedjax_bal.selection import bernoulli
from fedjax_bal.simulation import build

EPOCHS = 3
MANY = 25  # more than any client has: a batch is all of a client's rows, so that their order makes no difference


@cache
def federation():
    """The toy federation, its clients with test rows, the rows of nobody for validation."""
    toy = toys.federation()
    rows = [toy.rows[a:b] for a, b in pairwise(toy.offsets)]
    training, tests = data.hold_out(np.random.default_rng(0), rows, 0.3)
    nobodys = np.setdiff1d(np.arange(len(toy.labels)), toy.rows)
    return data.federate(toy.images, toy.labels, training, toys.CLASSES, {"validation": nobodys}, tests=tests)


def simulation(recipe=None, **options):
    given = {"rounds": 2, "rounds_per_dispatch": 2, "evaluate_every": 2, "batch_size": MANY}
    given |= {"local_epochs": EPOCHS, "local_optimizer": optimizer("sgd", 0.3, decay=1.0)}
    return build(recipe or recipes.fedavg(), toys.network(), federation(), toys.test_set(), **(given | options))


@cache
def all_together():
    """A simulation in which every client trains in every round, and what its only dispatch brings."""
    one = simulation(strategy="map", devices=1, delivery=bernoulli(0.9))
    return one, one.advance(0, one.init(0))


def correct(variables, rows):
    """Whether the network classifies rows correctly, in NumPy, and its cross-entropy."""
    stored = federation()
    weights = {name: np.asarray(leaf, float) for name, leaf in variables.params.items()}
    logits = np.tanh(np.asarray(stored.images, float)[rows].reshape(len(rows), -1) @ weights["w1"]) @ weights["w2"]
    labels = stored.labels[rows]
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), labels]
    return logits.argmax(1) == labels, losses


def test_the_global_model_on_what_was_held_out_equals_numpy():
    _, advance = all_together()
    (record,) = advance.records
    stored, variables = federation(), advance.progress.state.variables
    right, losses = correct(variables, stored.auxiliary["validation"])
    assert record["validation_accuracy"] == pytest.approx(right.mean())
    assert record["validation_loss"] == pytest.approx(losses.mean(), rel=1e-5)
    labels = stored.labels[stored.auxiliary["validation"]]
    recalls = [right[labels == label].mean() for label in np.unique(labels)]
    assert record["validation_balanced_accuracy"] == pytest.approx(np.mean(recalls))
    shares = [correct(variables, stored.tests.rows[a:b])[0] for a, b in pairwise(stored.tests.offsets) if b > a]
    wanted = over_clients("client_accuracy", np.array([own.mean() for own in shares]))
    assert len(shares) == 9  # the client with a single row has none
    assert {key: record[key] for key in wanted} == pytest.approx(wanted)


def test_devices_and_lanes_change_nothing():
    _, advance = all_together()
    other = simulation(strategy="vmap", devices=2, chunk=2, delivery=bernoulli(0.9))
    (record,), (wanted,) = other.advance(0, other.init(0)).records, advance.records
    keys = [key for key in wanted if key.startswith(("validation", "client_", "own_"))]
    assert len(keys) == 13
    assert {key: record[key] for key in keys} == pytest.approx({key: wanted[key] for key in keys}, rel=1e-5)


def test_a_single_clients_own_model_is_the_global_one():
    # Its own accuracy is therefore the global model's on its own test rows.
    one = simulation(strategy="map", devices=1, clients_per_round=1, rounds=1, rounds_per_dispatch=1, evaluate_every=1)
    advance = one.advance(0, one.init(0))
    (client,), stored = advance.chosen, federation()
    rows = stored.tests.rows[stored.tests.offsets[client] : stored.tests.offsets[client + 1]]
    right, _ = correct(advance.progress.state.variables, rows)
    assert advance.records[0]["own_accuracy"] == pytest.approx(right.mean())


def test_fine_tuning_is_a_round_of_plain_training_for_each_client_whatever_the_method():
    # A round of all clients from the initial weights, which all methods share.
    plain = simulation(strategy="map", devices=1, rounds=1, rounds_per_dispatch=2, evaluate_every=1)
    (record,) = plain.advance(0, plain.init(0)).records
    method = recipes.combine(recipes.scaffold(), recipes.rebafl(mu=0.5))
    other = simulation(method, strategy="vmap", devices=2, chunk=2, clients_per_round=4, local_epochs=1)
    found = Personaliser(other, EPOCHS).run(0, other.init(0))
    wanted = {key: value for key, value in record.items() if key.startswith("own_accuracy")}
    assert len(found.accuracies) == 9
    assert over_clients("own_accuracy", found.accuracies) == pytest.approx(wanted)


def test_clients_that_diverge_are_counted_as_wrong():
    wild = simulation(strategy="map", devices=1, local_optimizer=optimizer("sgd", 1e30))
    found = Personaliser(wild, EPOCHS).run(0, wild.init(0))
    assert found.diverged == 9
    assert not found.accuracies.any()


def test_without_test_rows_there_is_nothing_to_fine_tune_for():
    bare = build(recipes.fedavg(), toys.network(), toys.federation(), toys.test_set(), rounds=1)
    with pytest.raises(ValueError, match="personalised: received a federation without test rows"):
        Personaliser(bare, 1)
    with pytest.raises(ValueError, match="personalised: received 0"):
        Personaliser(simulation(), 0)


def test_shot_groups_go_by_what_clients_are_trained_on():
    counts = federation().class_counts.sum(0)
    sim = simulation(shots=Shots(int(counts.min()) + 1, int(counts.max()) - 1))
    assert sim.groups["few"].tolist() == (counts < counts.min() + 1).tolist()
    assert sim.groups["many"].tolist() == (counts > counts.max() - 1).tolist()
