"""One table: every recipe, and every way of running it that must not change what it computes."""

import dataclasses
from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import toys
from flat import build
from table import RECIPES, finish

from fedjax_bal import recipes
from fedjax_bal.engine.device.program import dispatch, init_state
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.parts import Loss, part
from fedjax_bal.recipes import Recipe
from fedjax_bal.selection import bernoulli, uniform

ROUNDS = 5
ALL_ROLES = ["everything"]
"""For what the public battery checks of every recipe (tests/testing/test_battery.py), on the toys of this table."""


def simulation(name, strategy="map", **changes):
    options = {
        "rounds": ROUNDS,
        "clients_per_round": 4,
        "batch_size": 8,
        "local_optimizer": optimizer("sgd", 0.1),
        "availability": bernoulli(0.7),
        "delivery": bernoulli(0.8),
        "rounds_per_dispatch": ROUNDS,
        "strategy": strategy,
    }
    federation = changes.pop("federation", toys.federation())
    return build(RECIPES[name], toys.network(), federation, toys.test_set(), **(options | changes))


@cache
def compiled(name):
    """One compiled simulation for all checks on a recipe."""
    return simulation(name)


@cache
def outcome(name, seed=0):
    """The state and the metrics that everything else must agree with."""
    sim = compiled(name)
    advance = sim.advance(seed, sim.init(seed))
    return advance.snapshot.state, advance.records


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_ROLES)
def test_map_equals_vmap(name):
    state, _ = finish(simulation(name, "vmap"))
    assert toys.largest_difference(state, outcome(name)[0]) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_ROLES)
def test_jit_equals_no_jit(name):
    sim = simulation(name, rounds=1, rounds_per_dispatch=1, clients_per_round=2)
    want, _ = finish(sim)
    federation, test = jax.tree.map(jnp.asarray, (sim.federation, sim.test))
    schedule, _, _ = sim.schedule(0, 0, ())
    with jax.disable_jit():
        start = init_state(sim.setting, jax.random.key(0), federation)
        got, _, _ = dispatch(sim.setting, jax.random.key(0), start, schedule, federation, test)
    assert toys.largest_difference(got, want) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_ROLES)
def test_two_seeds_in_one_program_equal_two_runs(name):
    sim = compiled(name)
    federation, test = jax.tree.map(jnp.asarray, (sim.federation, sim.test))
    keys = jnp.stack([jax.random.key(seed) for seed in (0, 1)])
    schedules = [sim.schedule(seed, 0, ())[0] for seed in (0, 1)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *schedules)
    alike = {"number": None, "live": None, "evaluate": None}
    axes = schedules[0]._replace(plan=0, seats=0, assignment=0, **alike)
    schedule = stacked._replace(**{name: getattr(schedules[0], name) for name in alike})
    states = jax.vmap(partial(init_state, sim.setting), (0, None))(keys, federation)
    run = jax.vmap(partial(dispatch, sim.setting), (0, 0, axes, None, None))
    together, _, _ = jax.jit(run)(keys, states, schedule, federation, test)
    for seed in (0, 1):
        one = jax.tree.map(lambda leaf, seed=seed: leaf[seed], together)
        assert toys.largest_difference(one, outcome(name, seed)[0]) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", quick.only(["fedavg", "everything"], "everything"))
def test_rounds_a_dispatch_change_no_bit_of_the_draws(name):
    want, records = outcome(name)
    state, one_by_one = finish(simulation(name, rounds_per_dispatch=2))
    assert [r["round"] for r in one_by_one] == [r["round"] for r in records] == list(range(1, ROUNDS + 1))
    assert toys.largest_difference(state, want) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_order_of_the_cohort_changes_no_bit(name):
    sim, first = compiled(name), uniform(4)

    def backwards(state, seed, round, available):
        clients, state = first.select(state, seed, round, available)
        return clients[::-1], state

    reordered = simulation(name, clients_per_round=None, selector=first._replace(select=backwards))
    reordered._compiled, reordered._traffic = sim._compiled, sim._traffic
    chex.assert_trees_all_equal(finish(reordered)[0], outcome(name)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", quick.only(["fedavg", "everything"], "everything"))
def test_padding_for_a_larger_client_changes_no_draw(name):
    sim = simulation(name)
    sim.setting = dataclasses.replace(sim.setting, max_size=20 * sim.setting.max_size)
    assert toys.largest_difference(finish(sim)[0], outcome(name)[0]) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_results_are_finite_float32_and_survive_flattening(name):
    state, records = outcome(name)
    for leaf in jax.tree.leaves(state):
        assert leaf.dtype in (jnp.float32, jnp.int32, jnp.bool_)
        assert bool(jnp.isfinite(leaf).all())
    assert all(np.isfinite(record["train_loss"]) for record in records)
    leaves, structure = jax.tree.flatten(RECIPES[name])
    assert jax.tree.unflatten(structure, leaves) == RECIPES[name]
    assert RECIPES[name].parts == () or type(RECIPES[name].parts[0]).__name__ in repr(RECIPES[name])


@pytest.mark.slow
def test_one_program_serves_all_rounds_seeds_and_values():
    traces = []

    @part
    class Counting(Loss):
        """Counts how often it is traced."""

        def loss(self, outputs, batch, params, ctx):
            traces.append(1)
            return 0.0 * outputs.logits.sum()

    recipe = recipes.combine(recipes.fedprox(0.1), Recipe("counting", (Counting(),)))
    sim = build(recipe, toys.network(), toys.federation(), toys.test_set(), rounds=9, batch_size=8,
                selector=uniform(3), rounds_per_dispatch=2)  # fmt: skip
    sim.compile()
    after_compiling = len(traces)
    for seed in (0, 1, 2):
        finish(sim, seed)
    assert len(traces) == after_compiling > 0

    run = jax.jit(dispatch)
    schedule, _, _ = sim.schedule(0, 0, ())
    federation, test = jax.tree.map(jnp.asarray, (sim.federation, sim.test))
    counts = []
    for mu in (0.1, 0.2, 5.0):
        setting = dataclasses.replace(sim.setting, parts=(recipes.fedprox(mu).parts[0], Counting()))
        state = init_state(setting, jax.random.key(0), federation)
        run(setting, jax.random.key(0), state, schedule, federation, test)
        counts.append(len(traces))
    assert counts == [counts[0]] * 3
