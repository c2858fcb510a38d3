"""Runs that start from given variables, and all that a run gives back."""

import jax
import numpy as np
import pytest
import toys
from rounding import FORMULA, STEPS

from fedjax_bal import models, optimizer, recipes
from fedjax_bal.engine.host import build_simulation, simulate
from fedjax_bal.options import LocalTraining
from fedjax_bal.types import Variables


def run(recipe=None, rate=0.1, **options):
    return simulate(
        recipe or recipes.fedavg(), toys.network(), toys.federation(), toys.test_set(), seed=0,
        local=LocalTraining(batch_size=4, optimizer=optimizer("sgd", rate)), **{"rounds": 2} | options,
    )  # fmt: skip


@pytest.mark.slow
def test_a_run_starts_from_what_it_is_given_and_leaves_it_alone():
    first = run()
    for given in (first.variables, jax.device_get(first.variables), {"params": first.variables.params}):
        before = jax.tree.map(np.array, given)
        still = run(rate=0.0, variables=given)
        jax.tree.map(np.testing.assert_array_equal, still.variables, jax.device_get(first.variables))
        moved = run(variables=given, rounds=1)
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(given), before)
        assert moved.history[0]["test_loss"] < first.history[0]["test_loss"]


def test_starting_from_the_drawn_model_changes_nothing():
    sim = build_simulation(
        recipes.scaffold(), toys.network(), toys.federation(), toys.test_set(), rounds=2,
        local=LocalTraining(batch_size=4),
    )  # fmt: skip
    drawn = jax.device_get(sim.init(0).state)
    given = jax.device_get(sim.init(0, drawn.variables).state)
    jax.tree.map(np.testing.assert_array_equal, given, drawn)


def test_variables_of_another_model_are_refused_by_name():
    good = toys.network().init(jax.random.key(0))
    wide = {"w1": np.zeros((5, 7)), "w2": good.params["w2"]}
    lacking, more = {"w1": good.params["w1"]}, {**good.params, "w3": np.zeros(2)}
    for params, message in (
        (wide, r"variables: received \[5, 7\] for params.w1, where the method's model has \[5, 6\]"),
        (lacking, r"variables: received nothing for params.w2, where the method's model has \[6, 4\]"),
        (more, r"variables: received \[2\] for params.w3, where the method's model has nothing"),
    ):
        with pytest.raises(ValueError, match=message):
            run(variables=Variables(params, {}))
    # What a method adds to its model is missing in that of another one.
    mlp = models.build("mlp", toys.CLASSES, (1, toys.WIDTH, 1))
    sim = build_simulation(
        recipes.moon(), mlp, toys.federation(), toys.test_set(), rounds=2, local=LocalTraining(batch_size=4)
    )
    with pytest.raises(ValueError, match="nothing for params.projection.*trained by a method that adds the same to it"):
        sim.init(0, mlp.init(jax.random.key(0)))


@pytest.mark.slow
def test_a_result_has_the_clients_memory_and_the_servers_state():
    result = run(recipes.scaffold())
    clients, classes = toys.federation().num_clients, toys.CLASSES
    (memory,) = result.client_memory.values()
    assert jax.tree.leaves(memory)[-1].shape == (clients, toys.FEATURES, classes)
    (server,) = result.server_state.values()
    # SCAFFOLD's control variate of the server is the mean of those of the clients.
    for own, mean in zip(jax.tree.leaves(memory), jax.tree.leaves(server), strict=True):
        np.testing.assert_allclose(np.mean(own, 0), mean, rtol=STEPS, atol=FORMULA)
        assert np.any(own)
    assert run().client_memory == run().server_state == {}
