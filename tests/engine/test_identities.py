"""Identities between methods, and what may never leave a trace."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import table
import toys
from rounding import FORMULA, STEPS

from fedjax_bal import recipes
from fedjax_bal.engine.host import build_simulation
from fedjax_bal.errors import DivergenceError
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.parts import Logits, Weigh, part
from fedjax_bal.recipes import Recipe
from fedjax_bal.selection import Presence, bernoulli, uniform
from fedjax_bal.selection.trace import Trace

NOBODY = Presence((0.0,))
LOCAL = LocalTraining(epochs=2, batch_size=8, optimizer=optimizer("sgd", 0.1, momentum=0.5))
CLIENTS = Participation(clients_per_round=4)
EXECUTION = Execution(rounds_per_dispatch=1)


def simulation(recipe, **changes):
    # The same for all, so that runs of FedAvg have the same program.
    options = {"rounds": 3, "local": LOCAL, "participation": CLIENTS, "execution": EXECUTION} | changes
    options["evaluation"] = Evaluation(update_diversity=True)
    return build_simulation(recipe, toys.network(), toys.federation(), toys.test_set(), **options)


def state_after(sim):
    return table.finish(sim)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [recipes.fedprox(0.0), recipes.rebafl(epsilon=1.0, mu=0.0)],
    ids=["fedprox of weight 0", "rebafl with a uniform prior and weight 0"],
)
def test_methods_that_do_nothing_are_fedavg(recipe):
    fedavg = state_after(simulation(recipes.fedavg()))
    assert toys.largest_difference(state_after(simulation(recipe)).variables, fedavg.variables) < FORMULA


@part
class Scaled(Logits):
    """All logits times a factor."""

    factor: float = 2.0

    def logits(self, logits, batch, ctx):
        return self.factor * logits


@part
class ScaledLater(Scaled):
    """From the second round on."""

    first_round = 1


@pytest.mark.slow
def test_a_part_acts_from_its_first_round_on():
    def after_a_round(recipe, snapshot=None):
        sim = simulation(recipe, rounds=2)
        return jax.device_get(sim.advance(0, snapshot or sim.init(0)).snapshot)

    later, always = (Recipe("scaled", (part(),)) for part in (ScaledLater, Scaled))
    first = after_a_round(later)
    second = after_a_round(later, first)
    for found, recipe, start in ((first, recipes.fedavg(), None), (second, always, first)):
        wanted = after_a_round(recipe, start)
        assert toys.largest_difference(found.state.variables, wanted.state.variables) < FORMULA


@pytest.mark.slow
def test_balanced_softmax_without_a_second_class_does_not_learn():
    federation = toys.federation()
    labels = np.repeat(np.arange(4), 5)
    single = federation._replace(
        images=federation.images[:20], labels=labels.astype(np.int32), rows=np.arange(20, dtype=np.int32),
        offsets=np.array([0, 5, 10, 15, 20], np.int32), class_counts=5 * np.eye(4, dtype=np.int32),
        copy=np.zeros(20, np.int32),
    )  # fmt: skip
    for recipe, learns in ((recipes.balanced_softmax(), False), (recipes.rebafl(), True)):
        sim = build_simulation(recipe, toys.network(), single, toys.test_set(), rounds=2)
        before = jax.device_get(sim.init(0).state.variables.params)
        after = state_after(sim).variables.params
        assert (toys.largest_difference(before, after) > 0) == learns


@pytest.mark.parametrize("server", [None, pytest.param(optimizer("adam", 0.1), marks=pytest.mark.slow)])
def test_a_round_in_which_nothing_arrives_keeps_the_model(server):
    clients = replace(CLIENTS, delivery=NOBODY)
    sim = simulation(recipes.fedavg(), server_optimizer=server, participation=clients)
    before = jax.device_get(sim.init(0).state)
    state, records = table.finish(sim)
    assert toys.largest_difference(before, state) == 0
    assert [r["clients"] for r in records] == [0, 0, 0]
    assert [r["dropped"] for r in records] == [4, 4, 4]
    assert records[0]["train_loss"] is None
    assert records[0]["update_diversity"] is None


def test_methods_share_weights_cohorts_and_batches():
    half = replace(CLIENTS, availability=bernoulli(0.5))
    sims = [simulation(recipe, participation=half) for recipe in (recipes.fedavg(), recipes.rebafl())]
    starts = [sim.init(4).state.variables for sim in sims]
    assert toys.largest_difference(*starts) == 0
    for number in range(3):
        first, second = (sim.plan(4, number, ())[0] for sim in sims)
        assert (first.clients == second.clients).all()
        assert (first.delivered == second.delivered).all()


def test_update_diversity_is_the_mean_squared_distance_from_the_mean():
    def after_a_round(*clients):
        there = np.isin(np.arange(len(toys.SIZES)), clients)
        chosen = Participation(selector=toys.chosen([[3], [5], [8], [1]]), delivery=Trace(there[None]))
        sim = simulation(recipes.fedavg(), participation=chosen)
        return sim.advance(0, sim.init(0))

    models = [after_a_round(client).snapshot.state.variables.params for client in (3, 5, 8)]
    models = np.stack([np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(own)]) for own in models]).astype(
        float
    )
    got = after_a_round(3, 5, 8).records[0]["update_diversity"]
    spread = models - models.mean(0)
    assert got == pytest.approx((spread**2).sum(1).mean(), rel=STEPS)


@pytest.mark.slow
def test_a_server_step_that_breaks_the_model_is_named_as_such():
    local = optimizer("sgd", 100.0)  # updates larger than 2, which the server's factor takes out of float32
    server = optimizer("sgd", 3e38)
    sim = simulation(
        recipes.fedavg(), server_optimizer=server, local=replace(LOCAL, optimizer=local),
        execution=replace(EXECUTION, huge_factor=None),
    )  # fmt: skip
    with pytest.raises(DivergenceError, match="global model is not finite after the server's step"):
        sim.advance(0, sim.init(0))


@pytest.mark.slow
def test_weights_that_are_no_numbers_do_not_leave_the_model_as_it_was_unnoticed():
    @part
    class Undefined(Weigh):
        """Divides zero by zero."""

        def weigh(self, weights, cohort, server):
            return weights * (weights.sum() - weights.sum()) / 0.0

    recipe = Recipe("undefined", (Undefined(),))
    sim = simulation(recipe)
    with pytest.raises(DivergenceError, match="the global model is not finite .* check what your own parts return"):
        sim.advance(0, sim.init(0))
    absent = simulation(recipe, participation=replace(CLIENTS, delivery=NOBODY))
    start = jax.device_get(absent.init(0).state.variables)
    assert toys.largest_difference(state_after(absent).variables, start) == 0.0


def test_clients_that_never_take_a_step_are_never_there():
    sim = simulation(
        recipes.fedavg(),
        local=replace(LOCAL, batch_size=10, drop_last=True),
        participation=replace(CLIENTS, clients_per_round=10),
    )
    with_steps = [client for client, size in enumerate(toys.SIZES) if size >= 10]
    plan, _ = sim.plan(0, 0, ())
    assert plan.clients[plan.delivered].tolist() == with_steps
    with pytest.raises(ValueError, match=r"batch_size: received 50 .* no client takes a single step .*largest has 20"):
        simulation(recipes.fedavg(), local=replace(LOCAL, batch_size=50, drop_last=True))


def test_a_batch_larger_than_any_client_costs_nothing():
    large, whole = (
        simulation(recipes.fedavg(), local=replace(LOCAL, batch_size=10**9)),
        simulation(recipes.fedavg(), local=replace(LOCAL, batch_size=20)),
    )
    assert large.setting == whole.setting


LOOKING = Participation(selector=toys.chosen([[1]])._replace(closed_loop=True))
BAD = [
    ({"rounds": 0}, "rounds: received 0"),
    ({"participation": replace(CLIENTS, clients_per_round=11)}, "received 11, but there are only 10 clients"),
    ({"participation": Participation(selector=uniform(3), clients_per_round=3)}, "together with a selector"),
    ({"participation": LOOKING, "execution": Execution(rounds_per_dispatch=3)}, "set it to 1"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[m for _, m in BAD])
def test_what_does_not_fit_is_refused_with_a_reason(changes, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        simulation(recipes.fedavg(), **changes)


def test_images_of_another_shape_are_refused():
    images, labels = toys.test_set()
    with pytest.raises(ValueError, match=r"test set: received images of shape \(5,\)"):
        build_simulation(recipes.fedavg(), toys.network(), toys.federation(), (images.reshape(-1, 5), labels), rounds=1)
