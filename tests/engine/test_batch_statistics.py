"""Batch statistics: carried through steps, never touched by padding, averaged with the cohort's weights."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from flat import build

from fedjax_bal import data, models, recipes
from fedjax_bal.data.batches import normalised
from fedjax_bal.optim.optimizers import optimizer

SIZES = (9, 4, 12)


@cache
def federation():
    rng = np.random.default_rng(3)
    total = sum(SIZES)
    labels = rng.integers(0, 3, total).astype(np.int32)
    images = rng.integers(0, 256, (total, 4, 4, 1)).astype(np.uint8)
    rows = np.split(rng.permutation(total), np.cumsum(SIZES)[:-1])
    return data.federate(images, labels, rows, 3, mean=0.3, std=0.5)


@cache
def network():
    return models.build("tiny_bn", 3, (4, 4, 1))


def after(batch_size, strategy="map", rounds=1, epochs=1, recipe=None):
    shards = federation()
    sim = build(
        recipe or recipes.fedavg(), network(), shards, (shards.images, shards.labels), rounds=rounds,
        local_epochs=epochs, batch_size=batch_size, local_optimizer=optimizer("sgd", 0.1), strategy=strategy,
        rounds_per_dispatch=rounds,
    )  # fmt: skip
    return sim.advance(0, sim.init(0)).snapshot.state.variables


@pytest.mark.slow
def test_one_step_each_gives_the_weighted_mean_of_the_clients_statistics():
    shards, model = federation(), network()
    start = build(recipes.fedavg(), model, shards, (shards.images, shards.labels), rounds=1).init(0).state.variables
    wanted = jax.tree.map(np.zeros_like, start.stats)
    for client, size in enumerate(SIZES):
        rows = shards.rows[shards.offsets[client] : shards.offsets[client + 1]]
        images = normalised(jnp.asarray(shards.images[rows]), shards.mean, shards.std)
        _, moved = model.apply(start, images, train=True)
        wanted = jax.tree.map(lambda total, leaf, size=size: total + size / sum(SIZES) * leaf, wanted, moved.stats)
    assert toys.largest_difference(after(batch_size=12).stats, wanted) < 1e-6


@pytest.mark.slow
def test_padding_never_enters_statistics_or_parameters():
    exact, padded = after(batch_size=12), after(batch_size=40)
    assert toys.largest_difference(exact, padded) < 1e-6


@pytest.mark.slow
def test_map_equals_vmap_with_statistics():
    recipe = recipes.combine(recipes.scaffold(), recipes.rebafl())
    one, other = (after(5, strategy, rounds=2, epochs=2, recipe=recipe) for strategy in ("map", "vmap"))
    assert toys.largest_difference(one, other) < 5e-6
    assert not bool((one.stats["body"]["norm"]["var"] == 1).any())
