"""What parts on the server get to see, and when; rounds in which no update arrives."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import quick
import toys
from jax.flatten_util import ravel_pytree
from rounding import FORMULA, STEPS, SUM

from fedjax_bal import LocalTraining, Participation, make_round, recipes
from fedjax_bal.engine.host import build_simulation
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.parts import Refine, Report, Server, Step, Weigh, part
from fedjax_bal.recipes import Recipe
from fedjax_bal.selection import Choice
from fedjax_bal.testing.workbench import Bench
from fedjax_bal.types import Plan

ROUNDS = 3


@part
class Watching(Report, Weigh, Step, Server, Refine):
    """Leaves the model alone but for its evaluation, and counts on the server what it sees."""

    evaluation_only = True

    def report(self, outcome):
        return jnp.ones(())

    def init_server(self, server):
        assert server.state is None and server.aggregate is None and server.cohort is None
        return {"sent": jnp.zeros(()), "heard": jnp.zeros(()), "moved": jnp.zeros(())}

    def broadcast(self, key, server):
        assert server.aggregate is None and server.cohort is None
        return {**server.state, "sent": server.state["sent"] + 1 + server.round}, ()

    def weigh(self, weights, cohort, server):
        assert server.aggregate is None and server.cohort is cohort
        return weights * server.state["sent"]  # that of this round

    def step(self, delta, server):
        assert jax.tree.structure(delta) == jax.tree.structure(server.variables.params)
        return jax.tree.map(lambda leaf: 0 * leaf + server.aggregate.reports[self.slot], delta), server.state

    def update(self, key, server):
        heard = server.state["heard"] + server.aggregate.reports[self.slot]
        moved = server.variables.params["w1"][0, 0]
        return {**server.state, "heard": heard, "moved": moved}

    def refine(self, key, variables, server):
        assert server.aggregate is None and server.cohort is None
        return jax.tree.map(lambda leaf: leaf + server.state["sent"], variables)


@pytest.mark.slow
def test_parts_on_the_server_see_their_state_the_reports_and_the_model_of_the_moment():
    recipe, given = Recipe("watching", (Watching(),)), (toys.network(), toys.federation(), toys.test_set())
    options = {"local": LocalTraining(optimizer=optimizer("sgd", 0.1)), "server_optimizer": optimizer("sgd", 1.0)}
    sim = build_simulation(recipe, *given, rounds=ROUNDS, participation=Participation(clients_per_round=4), **options)
    start = jax.device_get(sim.init(0).state.variables)
    advance = sim.advance(0, sim.init(0))
    state = jax.device_get(advance.snapshot.state)
    seen = state.server["Watching"]
    assert (seen["sent"], seen["heard"]) == (1 + 2 + 3, 4 * ROUNDS)
    moved = jax.tree.map(lambda leaf: leaf + 4.0 * ROUNDS, start)  # each round by the number of reports
    assert toys.largest_difference(state.variables, moved) < SUM
    assert seen["moved"] == state.variables.params["w1"][0, 0]
    images, labels = toys.test_set()
    shown = jax.tree.map(lambda leaf: leaf + seen["sent"], state.variables)
    logits = toys.network().apply(shown, images, train=False)[0].logits
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    assert advance.records[-1]["test_loss"] == pytest.approx(float(losses.mean()), rel=SUM)


FIRST, SECOND, THIRD = [[0, 2], [4, 5], [6, 7]], [[2, 7], [0, 6], [4, 1]], [[7, 4], [1, 2], [5, 0]]
ALL, NONE = [[True, True]] * 3, [[False, False]] * 3
KEEPING = {
    "scaffold, rebafl, fedacg": recipes.combine(recipes.scaffold(), recipes.rebafl(mu=0.5), recipes.fedacg(mu=0.1)),
    "feddyn, fedavgm": recipes.combine(recipes.feddyn(alpha=0.1), recipes.fedavgm()),
    "fedpac": recipes.fedpac(),
}
"""Recipes with state of every kind: of clients, of server parts that add up reports or average, of Step parts and of
the server's optimizer, and leaves that stay with clients, which the server exchanges."""


@pytest.mark.parametrize("name", quick.only(KEEPING, "scaffold, rebafl, fedacg"))
def test_in_chains_too_a_round_in_which_nothing_arrives_changes_nothing(name):
    bench = Bench(KEEPING[name])
    empty = bench.simulation.federation.num_clients

    def train(*cohorts):
        return bench.run_with_states([Plan(np.array(ids, np.int32), np.array(on)) for ids, on in cohorts])

    nobody = [[empty, empty]] * 3
    states, seen = train((FIRST, ALL), (SECOND, ALL), (THIRD, NONE), (nobody, NONE))
    for after in states[3:]:
        chex.assert_trees_all_equal(after, states[2])
    assert np.isnan(seen.train_loss[2:]).all()
    np.testing.assert_array_equal(seen.test_loss[2:], seen.test_loss[1])
    # Of a chain, a client whose update is lost leaves no more trace than one that is not selected.
    lost = train((FIRST, ALL), (THIRD, [[True, False], [True, True], [False, False]]))[0][2]
    left_out = train((FIRST, ALL), ([[7, empty], [1, 2], [empty, empty]], [[True, False], [True, True], NONE[0]]))[0][2]
    chex.assert_trees_all_equal(lost, left_out)


@pytest.mark.parametrize(
    ("selector", "recipe", "by_size"),
    [
        pytest.param("uniform", recipes.fedavg(), True, marks=pytest.mark.slow),
        ("by_size", recipes.fedavg(), False),
        pytest.param("uniform", recipes.equal_weights(), False, marks=pytest.mark.slow),
        pytest.param("by_size", recipes.scaffold(), False, marks=pytest.mark.slow),
        pytest.param("by_size", recipes.climb(), False, marks=pytest.mark.slow),
        pytest.param("by_size", recipes.feddisco(a=0.0, b=0.0), False, marks=pytest.mark.slow),
    ],
)
def test_a_size_counts_once_by_the_draw_or_by_the_weight(selector, recipe, by_size):
    round_fn = make_round(
        recipe, toys.network(), toys.federation(), local=LocalTraining(batch_size=20, optimizer=optimizer("sgd", 0.1)),
        participation=Participation(selector=Choice(selector), clients_per_round=3),
    )  # fmt: skip
    state, ids, empty = round_fn.init(jax.random.key(0)), np.array([1, 4, 7]), len(toys.SIZES)

    @jax.jit
    def moved(clients):
        plan = clients[:, None], jnp.ones((3, 1), bool)
        after = round_fn.step(round_fn.hyperparameters, jax.random.key(0), state, plan)[0]
        return ravel_pytree(optax.tree.sub(after.variables.params, state.variables.params))[0]

    alone = np.stack([moved(np.array([client, empty, empty])) for client in ids])
    weights = np.take(toys.SIZES, ids) if by_size else np.ones(3)
    np.testing.assert_allclose(moved(ids), weights @ alone / weights.sum(), rtol=STEPS, atol=FORMULA)
