"""Running batch statistics: the global model's, each client's own, or new ones; and rows that would be alone."""

from functools import cache

import jax
import numpy as np
import pytest
import toys
from flat import build

from fedjax_bal import data, models, recipes
from fedjax_bal.data import without_lone_rows
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.selection import Selector

SIZES = (9, 4, 12)


@cache
def federation():
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, sum(SIZES)).astype(np.int32)
    images = rng.integers(0, 256, (sum(SIZES), 4, 4, 1)).astype(np.uint8)
    rows = np.split(rng.permutation(sum(SIZES)), np.cumsum(SIZES)[:-1])
    return data.federate(images, labels, rows, 3, mean=0.3, std=0.5)


@cache
def network():
    return models.build("tiny_bn", 3, (4, 4, 1))


def turns(*cohorts):
    """A selector of one client a round, in this order."""
    select = lambda state, seed, round, available: (np.array([[cohorts[round]]], np.int32), state)
    return Selector(lambda seed, n: (), select, lambda state, plan, info: state, 1, 1, 1, False)


def after(how, cohorts, strategy="map", start=None, **options):
    """The statistics after each round; parameters stay where they are, as the learning rate is 0."""
    shards = federation()
    sim = build(
        recipes.fedavg(), network(), shards, (shards.images, shards.labels), rounds=len(cohorts),
        selector=turns(*cohorts), batch_size=4, local_optimizer=optimizer("sgd", 0.0), batch_statistics=how,
        strategy=strategy, lone_rows="keep", **options,
    )  # fmt: skip
    snapshot, seen = sim.init(0), []
    while snapshot.round < sim.rounds:
        snapshot = sim.advance(0, snapshot).snapshot
        seen.append(jax.device_get(snapshot.state.variables.stats))
    return seen


def close(one, other):
    return toys.largest_difference(one, other) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["map", "vmap"])
def test_where_clients_begin(strategy):
    average = after("average", (0, 2, 0), strategy)
    local = after("local", (0, 2, 0), strategy)
    reset = after("server_reset", (0, 2, 0), strategy)
    assert close(average[0], local[0]) and close(average[0], reset[0])
    # The second client has never trained, so its own statistics are the initial ones.
    assert close(local[1], reset[1]) and not close(local[1], average[1])
    # The first client's second local training goes on from its first one, wherever the other one has been.
    assert not close(local[2], reset[2])
    alone = after("average", (0, 1, 0), strategy)
    assert not close(local[2], alone[2])
    assert close(local[2], after("local", (0, 1, 0), strategy)[2])


@pytest.mark.slow
def test_new_statistics_move_as_far_as_one_local_training_moves_them():
    reset = after("server_reset", (2, 2))
    (mean, *_), (again, *_) = (jax.tree.leaves(stats) for stats in reset)
    assert np.abs(mean).max() > 0.01
    np.testing.assert_allclose(mean, again, atol=0.2 * np.abs(mean).max())  # the same rows in another order


def test_lone_rows_leave_clients_weights_and_counts():
    shards = federation()
    shorter = without_lone_rows(shards, 4)
    assert np.diff(shorter.offsets).tolist() == [8, 4, 12]
    assert shorter.class_counts.sum(1).tolist() == [8, 4, 12]
    place = shards.offsets[1] - 1
    gone = shards.rows[place]
    assert np.setdiff1d(shards.rows, shorter.rows).tolist() == [gone]
    assert (shards.class_counts - shorter.class_counts)[0, shards.labels[gone]] == 1
    for client in range(3):
        own = shorter.rows[shorter.offsets[client] : shorter.offsets[client + 1]]
        assert np.bincount(shards.labels[own], minlength=3).tolist() == shorter.class_counts[client].tolist()
    assert without_lone_rows(shards, 1) is shards and without_lone_rows(shards, 5) is shards
    single = without_lone_rows(data.federate(shards.images, shards.labels, [np.arange(1), np.arange(2, 4)], 3), 4)
    assert np.diff(single.offsets).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("model", "options", "sizes"),
    [
        ("tiny_bn", {}, [8, 4, 12]),
        ("tiny_bn", {"lone_rows": "keep"}, [9, 4, 12]),
        ("tiny_bn", {"drop_last": True}, [9, 4, 12]),
        ("tiny_bn", {"drawing": "replacement"}, [8, 4, 12]),
        ("mlp", {}, [9, 4, 12]),
        ("mlp", {"lone_rows": "drop"}, [8, 4, 12]),
    ],
)
def test_they_are_dropped_where_a_network_normalises_batches(model, options, sizes):
    shards, net = federation(), models.build(model, 3, (4, 4, 1))
    sim = build(recipes.fedavg(), net, shards, (shards.images, shards.labels), rounds=1, batch_size=4, **options)
    assert np.diff(sim.federation.offsets).tolist() == sizes


def test_unknown_ways_are_named():
    shards = federation()
    for name in ("batch_statistics", "lone_rows"):
        with pytest.raises(ValueError, match=f"{name}: received 'none'"):
            build(recipes.fedavg(), network(), shards, (shards.images, shards.labels), rounds=1, **{name: "none"})
