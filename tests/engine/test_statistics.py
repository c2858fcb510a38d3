"""Running batch statistics: the global model's, each client's own, or new ones; and rows that would be alone."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from rounding import FORMULA

from fedjax_bal import data, models, recipes
from fedjax_bal.engine.host import build_simulation, simulate
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.parts import Memory, Steps, part, static
from fedjax_bal.recipes import Recipe

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


def after(how, clients):
    """The statistics after each round of one client; parameters stay where they are, as the learning rate is 0."""
    shards = federation()
    sim = build_simulation(
        recipes.fedavg(), network(), shards, (shards.images, shards.labels), rounds=len(clients),
        local=LocalTraining(batch_size=4, optimizer=optimizer("sgd", 0.0), batch_statistics=how, lone_rows="keep"),
        participation=Participation(selector=toys.chosen(*([[client]] for client in clients))),
        execution=Execution(strategy="map", rounds_per_dispatch=1),
    )  # fmt: skip
    snapshot, seen = sim.init(0), []
    while snapshot.round < sim.rounds:
        snapshot = sim.advance(0, snapshot).snapshot
        seen.append(jax.device_get(snapshot.state.variables.stats))
    return seen


def close(one, other):
    return toys.largest_difference(one, other) < FORMULA


@pytest.mark.slow
def test_where_clients_begin():
    average = after("average", (0, 2, 0))
    local = after("local", (0, 2, 0))
    reset = after("server_reset", (0, 2, 0))
    assert close(average[0], local[0]) and close(average[0], reset[0])
    # The second client has never trained, so its own statistics are the initial ones.
    assert close(local[1], reset[1]) and not close(local[1], average[1])
    # The first client's second local training goes on from its first one, wherever the other one has been.
    assert not close(local[2], reset[2])
    alone = after("average", (0, 1, 0))
    assert not close(local[2], alone[2])
    assert close(local[2], after("local", (0, 1, 0))[2])


@pytest.mark.slow
def test_new_statistics_move_as_far_as_one_local_training_moves_them():
    reset = after("server_reset", (2, 2, 2))
    (mean, *_), (again, *_), _ = (jax.tree.leaves(stats) for stats in reset)
    assert np.abs(mean).max() > 0.01
    np.testing.assert_allclose(mean, again, atol=0.2 * np.abs(mean).max())  # the same rows in another order


@part
class RowsUsed(Steps, Memory):
    """Counts how often each row is trained on, for each client `Int32[R]`."""

    rows: int = static(0)

    def init_steps(self, ctx):
        return jnp.zeros(self.rows, jnp.int32)

    def next_steps(self, carry, outputs, batch, ctx):
        return carry.at[batch.rows].add(batch.real.astype(jnp.int32))

    def init_memory(self, variables):
        return jnp.zeros(self.rows, jnp.int32)

    def remember(self, memory, outcome):
        return memory + outcome.ctx.steps_state[self.slot]


def rows_used(shards, rounds, **local):
    """How often each row is trained on in all, `[R]`."""
    count, net = len(shards.labels), models.build("mlp", shards.num_classes, shards.images.shape[1:])
    recipe = Recipe("counted", (RowsUsed(count),))
    run = simulate(
        recipe, net, shards, (shards.images[:1], shards.labels[:1]), rounds=rounds, seed=0,
        local=LocalTraining(**{"lone_rows": "drop"} | local), evaluation=Evaluation(every=rounds),
        participation=Participation(clients_per_round=shards.num_clients),
        execution=Execution(strategy="map", devices=1, rounds_per_dispatch=rounds),
    )  # fmt: skip
    return np.asarray(run.client_memory["RowsUsed"]).sum(0)


def lone_clients(**local):
    """Rows of clients of 9, 4, 12 and 1 rows, and how often each is trained on in 60 rounds of two epochs."""
    rng, sizes = np.random.default_rng(3), (9, 4, 12, 1)
    labels = rng.integers(0, 3, sum(sizes)).astype(np.int32)
    images = rng.integers(0, 256, (sum(sizes), 2, 2, 1)).astype(np.uint8)
    rows = np.split(rng.permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    shards = data.federate(images, labels, rows, 3)
    return rows, rows_used(shards, 60, batch_size=4, **local)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "epochs"), [({"epochs": 2}, (120, 120, 120, 120)), ({"steps": 6}, (180, 360, 120, 360))], ids=str
)
def test_each_row_is_left_out_as_often_as_the_others_and_none_of_whole_batches(options, epochs):
    (nine, *others), used = lone_clients(**options)
    epochs, *whole = epochs
    assert used[nine].sum() == 8 * epochs
    missed = epochs - used[nine]
    assert missed.min() > 0
    assert ((missed - epochs / 9) ** 2 / (epochs / 9)).sum() < 26.1  # chi-squared, 8 degrees: one in a thousand
    for rows, often in zip(others, whole, strict=True):
        assert used[rows].tolist() == [often] * len(rows)


@cache
def long_tail():
    """A hundred clients and five classes, the first one fifty times the last one; most clients hold few rows."""
    labels = np.repeat(np.arange(5), 250).astype(np.int32)
    rows = data.partition.draw(labels, "dirichlet", 100, 0, {"alpha": 0.3, "min_size": 1}, imbalance_factor=50)
    return data.federate(np.zeros((len(labels), 2, 2, 1), np.uint8), labels, rows, 5)


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "lone_rows"), [(2, "drop"), (3, "drop"), (3, "keep"), (16, "drop")])
def test_all_classes_lose_the_same_share_of_their_rows(batch_size, lone_rows):
    shards, epochs = long_tail(), 10
    used = rows_used(shards, 1, epochs=epochs, batch_size=batch_size, lone_rows=lone_rows)
    found = np.bincount(shards.labels, used, minlength=5)
    # A client of n rows, n mod B = 1, leaves out a row in each epoch, of class c with probability n_c / n.
    counts = shards.class_counts.astype(float)
    sizes = counts.sum(1)
    lone = (sizes % batch_size == 1) & (sizes > 1) & (lone_rows != "keep")
    chance = np.where(lone[:, None], counts / sizes[:, None], 0)
    mean, variance = epochs * (counts - chance).sum(0), epochs * (chance * (1 - chance)).sum(0)
    assert (np.abs(found - mean) <= 4 * np.sqrt(variance)).all()
    assert found.sum() == epochs * (sizes.sum() - lone.sum())


@pytest.mark.parametrize(
    ("model", "options", "steps"),
    [
        ("tiny_bn", {}, [2, 1, 3]),
        ("tiny_bn", {"lone_rows": "keep"}, [3, 1, 3]),
        ("tiny_bn", {"drop_last": True}, [2, 1, 3]),
        ("tiny_bn", {"drop_last": True, "batch_size": 5}, [1, 0, 2]),
        ("tiny_bn", {"batch_size": 1}, [9, 4, 12]),
        ("tiny_bn", {"batch_size": 11}, [1, 1, 1]),
        ("tiny_bn", {"drawing": "replacement"}, [2, 1, 3]),
        ("tiny_bn", {"batches_per_epoch": 1}, [1, 1, 1]),
        ("mlp", {}, [3, 1, 3]),
        ("mlp", {"lone_rows": "drop"}, [2, 1, 3]),
    ],
)
def test_lone_rows_are_no_batch_where_a_network_normalises_batches(model, options, steps):
    shards, net = federation(), models.build(model, 3, (4, 4, 1))
    local = LocalTraining(**{"batch_size": 4} | options)
    sim = build_simulation(recipes.fedavg(), net, shards, (shards.images, shards.labels), rounds=1, local=local)
    assert sim.federation is shards
    assert sim.setting.local_steps(np.array(SIZES)).tolist() == steps
    batch = sim.setting.batch_size
    assert sim.setting.samples(np.array(SIZES), np.array(steps)).tolist() == [
        min(size, batch * taken) for size, taken in zip(SIZES, steps, strict=True)
    ]
