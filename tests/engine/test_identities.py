"""Identities between methods, and what may never leave a trace."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest
import toys

from fedjax_bal import recipes
from fedjax_bal.engine.host import build
from fedjax_bal.errors import DivergenceError
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.parts import Logits, Weigh, part
from fedjax_bal.recipes import Recipe
from fedjax_bal.selection import Presence, Selector, bernoulli, uniform

NOBODY = Presence((0.0,))


LOCAL = LocalTraining(epochs=2, batch_size=8, optimizer=optimizer("sgd", 0.1, momentum=0.5))
PLAIN = replace(LOCAL, optimizer=optimizer("sgd", 0.1))
CLIENTS = Participation(clients_per_round=4)


def simulation(recipe, **changes):
    options = {"rounds": 3, "local": LOCAL, "participation": CLIENTS} | changes
    return build(recipe, toys.network(), toys.federation(), toys.test_set(), **options)


def state_after(sim, seed=0):
    snapshot = sim.init(seed)
    while snapshot.round < sim.rounds:
        snapshot = sim.advance(seed, snapshot).snapshot
    return snapshot.state


@cache
def fedavg():
    return jax.device_get(state_after(simulation(recipes.fedavg())).variables)


def fixed(*rounds, chain_length=1, passes=1):
    """The given chains, round after round."""

    def select(state, seed, round, available):
        return np.array(rounds[round % len(rounds)], np.int32).reshape(-1, chain_length), state

    groups = len(np.array(rounds[0]).reshape(-1, chain_length))
    keep = lambda s, p, i: s
    return Participation(selector=Selector(lambda s, n: (), select, keep, groups, chain_length, passes, False))


@pytest.mark.parametrize(
    "recipe",
    [recipes.fedprox(0.0), recipes.rebafl(epsilon=1.0, mu=0.0)],
    ids=["fedprox of weight 0", "rebafl with a uniform prior and weight 0"],
)
def test_methods_that_do_nothing_are_fedavg(recipe):
    assert toys.largest_difference(state_after(simulation(recipe)).variables, fedavg()) < 1e-6


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
    def after_a_round(part, snapshot=None):
        sim = simulation(Recipe("scaled", (part,)), rounds=2, execution=Execution(rounds_per_dispatch=1))
        return jax.device_get(sim.advance(0, snapshot or sim.init(0)).snapshot)

    first = after_a_round(ScaledLater())
    second = after_a_round(ScaledLater(), first)
    for found, factor, start in ((first, 1.0, None), (second, 2.0, first)):
        wanted = after_a_round(Scaled(factor), start)
        assert toys.largest_difference(found.state.variables, wanted.state.variables) < 1e-6


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
        sim = build(recipe, toys.network(), single, toys.test_set(), rounds=2)
        before = jax.device_get(sim.init(0).state.variables.params)
        after = state_after(sim).variables.params
        assert (toys.largest_difference(before, after) > 0) == learns


@pytest.mark.slow
def test_scaffold_begins_as_unweighted_fedavg_and_its_control_is_the_mean_gradient():
    rate = 0.1
    sim = simulation(
        recipes.scaffold(), rounds=1, local=PLAIN, participation=fixed([2]))  # fmt: skip
    plain = simulation(recipes.fedavg(), rounds=1, local=PLAIN, participation=fixed([2]))
    before = jax.device_get(sim.init(0).state.variables.params)
    corrected, usual = state_after(sim), state_after(plain)
    assert toys.largest_difference(corrected.variables, usual.variables) < 1e-6
    steps = 2 * -(-toys.SIZES[2] // 8)
    for name, memory in corrected.memory["ControlVariates"].items():
        mean_gradient = (before[name] - usual.variables.params[name]) / (steps * rate)
        np.testing.assert_allclose(memory[2], mean_gradient, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(corrected.server["ControlVariates"][name], mean_gradient / 10, rtol=1e-5, atol=1e-7)
        assert not np.delete(np.asarray(memory), 2, axis=0).any()


@pytest.mark.slow
def test_one_chain_of_all_clients_is_sequential_training():
    chain = [4, 0, 7, 2]
    together = state_after(simulation(recipes.fedavg(), rounds=1, participation=fixed(chain, chain_length=4)))
    sim = simulation(recipes.fedavg(), rounds=1, participation=fixed([0]))
    variables = None
    for client in chain:
        step = simulation(recipes.fedavg(), rounds=1, participation=fixed([client]))
        step._compiled, step._traffic = sim._compiled, sim._traffic
        sim = step
        snapshot = step.init(0)
        if variables is not None:
            snapshot = snapshot._replace(state=snapshot.state._replace(variables=variables))
        variables = step.advance(0, snapshot).snapshot.state.variables
    assert toys.largest_difference(together.variables, variables) < 1e-6


@pytest.mark.slow
def test_a_link_that_does_not_deliver_is_not_there():
    delivery = np.ones(10)
    delivery[7] = 1e-12
    with_gap = simulation(
        recipes.scaffold(), rounds=1, local=PLAIN,
        participation=replace(fixed([[4, 7, 2], [1, 0, 10]], chain_length=3), delivery=Presence(tuple(delivery))),
    )  # fmt: skip
    without = simulation(
        recipes.scaffold(), rounds=1, local=PLAIN, participation=fixed([[4, 2], [1, 0]], chain_length=2)
    )
    assert toys.largest_difference(state_after(with_gap), state_after(without)) < 1e-6


@pytest.mark.slow
def test_two_passes_are_one_pass_over_a_doubled_chain_but_for_the_draws():
    double = simulation(
        recipes.fedavg(), rounds=1, local=replace(LOCAL, batch_size=20, epochs=1),
        participation=fixed([4, 0], chain_length=2, passes=2),
    )  # fmt: skip
    single = simulation(
        recipes.fedavg(), rounds=1, local=replace(LOCAL, batch_size=20, epochs=1),
        participation=fixed([4, 0], chain_length=2),
    )  # fmt: skip
    once = single.advance(0, single.init(0))
    again = single.advance(0, once.snapshot._replace(round=0))
    # one full batch a round: the order within it changes nothing but rounding
    assert toys.largest_difference(state_after(double).variables, again.snapshot.state.variables) < 1e-6
    twice = double.advance(0, double.init(0))
    assert (once.client_updates, twice.client_updates) == (2, 4)
    # Astraea's formula counts a client once, however often its mediator comes by.
    assert twice.records[0]["bytes_up"] == once.records[0]["bytes_up"]


@pytest.mark.parametrize("server", [None, optimizer("adam", 0.1)], ids=["average", "adam"])
def test_a_round_in_which_nothing_arrives_keeps_the_model(server):
    sim = simulation(
        recipes.fedavg(), server_optimizer=server, participation=replace(CLIENTS, delivery=NOBODY),
        evaluation=Evaluation(update_diversity=True),
    )  # fmt: skip
    before = jax.device_get(sim.init(0).state)
    advance = sim.advance(0, sim.init(0))
    assert toys.largest_difference(before, advance.snapshot.state) == 0
    assert [r["clients"] for r in advance.records] == [0, 0, 0]
    assert [r["dropped"] for r in advance.records] == [4, 4, 4]
    assert advance.records[0]["train_loss"] is None
    assert advance.records[0]["update_diversity"] is None


@pytest.mark.slow
def test_server_optimizers_of_optax_take_the_negative_update_as_gradient():
    sim = simulation(recipes.fedavg(), rounds=1, server_optimizer=optimizer("sgd", 0.25))
    whole = simulation(recipes.fedavg(), rounds=1)
    start = jax.device_get(sim.init(0).state.variables.params)
    quarter, full = state_after(sim).variables.params, state_after(whole).variables.params
    for name in start:
        np.testing.assert_allclose(quarter[name], start[name] + 0.25 * (full[name] - start[name]), rtol=1e-5, atol=1e-6)


def test_methods_share_weights_cohorts_and_batches():
    sims = [
        simulation(r, participation=replace(CLIENTS, availability=bernoulli(0.5)))
        for r in (recipes.fedavg(), recipes.rebafl())
    ]
    starts = [sim.init(4).state.variables for sim in sims]
    assert toys.largest_difference(*starts) == 0
    for number in range(3):
        first, second = (sim.plan(4, number, ())[0] for sim in sims)
        assert (first.clients == second.clients).all()
        assert (first.delivered == second.delivered).all()


@pytest.mark.slow
def test_update_diversity_is_the_mean_squared_distance_from_the_mean():
    sims = [simulation(recipes.fedavg(), rounds=1, participation=fixed([c])) for c in (3, 5, 8)]
    models = []
    for sim in sims:
        if models:
            sim._compiled, sim._traffic = sims[0]._compiled, sims[0]._traffic
        flat = jax.tree.leaves(state_after(sim).variables.params)
        models.append(np.concatenate([np.asarray(leaf, float).ravel() for leaf in flat]))
    together = simulation(
        recipes.fedavg(), rounds=1, participation=fixed([3, 5, 8]), evaluation=Evaluation(update_diversity=True)
    )
    got = together.advance(0, together.init(0)).records[0]["update_diversity"]
    spread = np.stack(models) - np.mean(models, axis=0)
    assert got == pytest.approx((spread**2).sum(1).mean(), rel=1e-4)


@pytest.mark.slow
def test_bytes_are_counted_by_what_each_method_sends():
    model = 4 * (toys.WIDTH * toys.FEATURES + toys.FEATURES * toys.CLASSES)
    prototypes = 4 * toys.CLASSES * toys.FEATURES
    expected = {
        "fedavg": (model, model),
        "scaffold": (2 * model, 2 * model),
        # down: means and a presence byte a class; up: sums and a count a class
        "rebafl": (model + prototypes + toys.CLASSES, model + prototypes + 4 * toys.CLASSES),
    }
    for name, (down, up) in expected.items():
        sim = simulation(recipes.RECIPES[name](), local=PLAIN, participation=replace(CLIENTS, delivery=bernoulli(0.5)))
        records = sim.advance(0, sim.init(0)).records
        for record in records:
            assert record["bytes_down"] == down * (record["clients"] + record["dropped"]) == down * 4
            assert record["bytes_up"] == up * record["clients"]


@pytest.mark.slow
def test_a_server_step_that_breaks_the_model_is_named_as_such():
    local = optimizer("sgd", 100.0)  # updates larger than 2, which the server's factor takes out of float32
    server = optimizer("sgd", 3e38)
    sim = simulation(
        recipes.fedavg(), server_optimizer=server, local=replace(LOCAL, optimizer=local),
        execution=Execution(huge_factor=None),
    )  # fmt: skip
    with pytest.raises(DivergenceError, match="global model is not finite after the server's step"):
        sim.advance(0, sim.init(0))


def test_weights_that_are_no_numbers_do_not_leave_the_model_as_it_was_unnoticed():
    @part
    class Undefined(Weigh):
        """Divides zero by zero."""

        def weigh(self, weights, cohort, server):
            return weights * (weights.sum() - weights.sum()) / 0.0

    sim = simulation(Recipe("undefined", (Undefined(),)), rounds=1)
    with pytest.raises(DivergenceError, match="the global model is not finite .* check what your own parts return"):
        sim.advance(0, sim.init(0))
    absent = simulation(Recipe("undefined", (Undefined(),)), rounds=1, participation=replace(CLIENTS, delivery=NOBODY))
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


@pytest.mark.slow
def test_scaffolds_equal_weights_compose_with_other_weighing_parts():
    @part
    class Double(Weigh):
        """Doubles the weight of chains with more than ten samples."""

        def weigh(self, weights, cohort, server):
            return weights * (1 + (cohort.sizes > 10))

    options = {"rounds": 1, "local": PLAIN}
    doubling = recipes.Recipe("double", (Double(),))
    orders = [recipes.combine(recipes.scaffold(), doubling), recipes.combine(doubling, recipes.scaffold())]
    first, second = (state_after(simulation(recipe, **options)).variables for recipe in orders)
    alone = state_after(simulation(recipes.scaffold(), **options)).variables
    assert toys.largest_difference(first, second) < 1e-6 < toys.largest_difference(first, alone)


LOOKING = Participation(selector=fixed([1]).selector._replace(closed_loop=True))
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


def test_scaffold_refuses_local_optimizers_that_break_it():
    with pytest.raises(ValueError, match=r"momentum of 0.5.*momentum to 0, or scaffold_momentum to true"):
        simulation(recipes.scaffold())
    with pytest.raises(ValueError, match="needs? plain SGD"):
        simulation(recipes.scaffold(), local=replace(LOCAL, optimizer=optimizer("adam", 0.1)))
    nesterov = optimizer("sgd", 0.1, momentum=0.5, nesterov=True)
    with pytest.raises(ValueError, match="nesterov"):
        simulation(recipes.scaffold(scaffold_momentum=True), local=replace(LOCAL, optimizer=nesterov))


def test_images_of_another_shape_are_refused():
    images, labels = toys.test_set()
    with pytest.raises(ValueError, match=r"test set: received images of shape \(5,\)"):
        build(recipes.fedavg(), toys.network(), toys.federation(), (images.reshape(-1, 5), labels), rounds=1)
