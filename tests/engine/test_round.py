"""What parts on the server get to see, and when."""

import jax
import jax.numpy as jnp
import optax
import pytest
import toys
from flat import build

from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.parts import Refine, Report, Server, Step, Weigh, part
from fedjax_bal.recipes import Recipe

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
        return jax.tree.map(lambda leaf: 0 * leaf + server.aggregate.reports[self.slot], delta)

    def update(self, key, server):
        heard = server.state["heard"] + server.aggregate.reports[self.slot]
        moved = server.variables.params["w1"][0, 0]
        return {**server.state, "heard": heard, "moved": moved}

    def refine(self, key, variables, server):
        assert server.aggregate is None and server.cohort is None
        return jax.tree.map(lambda leaf: leaf + server.state["sent"], variables)


def test_parts_on_the_server_see_their_state_the_reports_and_the_model_of_the_moment():
    recipe, given = Recipe("watching", (Watching(),)), (toys.network(), toys.federation(), toys.test_set())
    options = {"local_optimizer": optimizer("sgd", 0.1), "server_optimizer": optimizer("sgd", 1.0)}
    sim = build(recipe, *given, rounds=ROUNDS, clients_per_round=4, rounds_per_dispatch=ROUNDS, **options)
    start = jax.device_get(sim.init(0).state.variables)
    advance = sim.advance(0, sim.init(0))
    state = jax.device_get(advance.snapshot.state)
    seen = state.server["Watching"]
    assert (seen["sent"], seen["heard"]) == (1 + 2 + 3, 4 * ROUNDS)
    moved = jax.tree.map(lambda leaf: leaf + 4.0 * ROUNDS, start)  # each round by the number of reports
    assert toys.largest_difference(state.variables, moved) < 1e-5
    assert seen["moved"] == state.variables.params["w1"][0, 0]
    images, labels = toys.test_set()
    shown = jax.tree.map(lambda leaf: leaf + seen["sent"], state.variables)
    logits = toys.network().apply(shown, images, train=False)[0].logits
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    assert advance.records[-1]["test_loss"] == pytest.approx(float(losses.mean()), rel=1e-5)
