"""`make_round`: a round is a pure function, equal to `simulate`, and to itself under jax's transformations."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys
from rounding import FORMULA, SUM

from fedjax_bal import Execution, LocalTraining, Participation, make_round, models, optimizer, recipes, simulate
from fedjax_bal.selection import bernoulli, power_of_choice
from fedjax_bal.testing import toy

LOCAL = LocalTraining(batch_size=4, optimizer=optimizer("sgd", 0.1))
HALF = Participation(clients_per_round=4, delivery=bernoulli(0.7))
ROUNDS = 3


def pair(recipe, participation=HALF, **execution):
    return make_round(
        recipe, toys.network(), toys.federation(), local=LOCAL, participation=participation,
        execution=Execution(**execution),
    )  # fmt: skip


def trained(round_fn, key, plans, hyperparameters=None):
    """The state after all rounds of the plans, in one scan."""
    numbers = hyperparameters or round_fn.hyperparameters
    return jax.lax.scan(lambda state, plan: round_fn.step(numbers, key, state, plan), round_fn.init(key), plans)


in_one_program = jax.jit(trained)


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [recipes.combine(recipes.scaffold(), recipes.rebafl()), recipes.astraea(mediator_epochs=2), recipes.fedavgm()],
    ids=lambda recipe: recipe.name,
)
def test_a_scan_over_rounds_equals_simulate_to_the_bit(recipe):
    round_fn = pair(recipe)
    plans = round_fn.plans(seed=5, rounds=ROUNDS)
    state, info = in_one_program(round_fn, jax.random.key(5), plans)
    result = simulate(
        recipe, toys.network(), toys.federation(), toys.test_set(), rounds=ROUNDS, seed=5, local=LOCAL,
        participation=HALF, execution=Execution(devices=1),
    )  # fmt: skip
    assert int(state.round) == ROUNDS and info.losses.shape[0] == ROUNDS
    jax.tree.map(np.testing.assert_array_equal, state.variables, result.variables)


@pytest.mark.slow
def test_limits_hold_where_clients_would_end_together():
    local = LocalTraining(steps=3, batch_size=4, optimizer=optimizer("sgd", 0.1, momentum=0.9))
    ends = []
    for strategy in ("map", "vmap"):
        round_fn = make_round(
            recipes.fednova(), toys.network(), toys.federation(), local=local, execution=Execution(strategy=strategy)
        )
        plan = jax.tree.map(lambda leaf: leaf[0], round_fn.plans(seed=0, rounds=1))
        plan = plan._replace(limits=np.arange(plan.clients.size, dtype=np.int32).reshape(plan.clients.shape))
        key = jax.random.key(0)
        ends.append(jax.jit(round_fn.step)(round_fn.hyperparameters, key, round_fn.init(key), plan)[0].variables)
    chex.assert_trees_all_close(*ends, rtol=SUM, atol=FORMULA)


@pytest.mark.slow
def test_seeds_and_plans_in_one_vmap_equal_separate_runs():
    round_fn, keys = pair(recipes.rebafl()), jax.random.split(jax.random.key(1), 3)
    drawn = [round_fn.plans(seed, rounds=2) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *drawn)
    together, _ = jax.jit(jax.vmap(trained, (None, 0, 0)))(round_fn, keys, stacked)
    apart = [in_one_program(round_fn, *own)[0] for own in zip(keys, drawn, strict=True)]
    jax.tree.map(lambda leaf, *own: np.testing.assert_allclose(leaf, np.stack(own), 1e-5, 1e-6), together, *apart)


@pytest.mark.slow
def test_hyperparameters_in_one_vmap_equal_recipes_of_their_own():
    key, mus = jax.random.key(0), jnp.array([0.0, 0.5])
    round_fn = pair(recipes.fedprox(mu=0.1))
    plans = round_fn.plans(0, 2)
    (name,) = (name for name in round_fn.hyperparameters if name.endswith(".mu"))
    of_mu = lambda mu: trained(round_fn, key, plans, round_fn.hyperparameters | {name: mu})[0].variables
    apart = [in_one_program(pair(recipes.fedprox(mu=float(mu))), key, plans)[0].variables for mu in mus]
    stacked = jax.tree.map(lambda *own: np.stack(own), *apart)
    chex.assert_trees_all_close(jax.jit(jax.vmap(of_mu))(mus), stacked, rtol=SUM, atol=FORMULA)


def dense():
    return models.build("mlp", toys.CLASSES, (1, toys.WIDTH, 1), hidden=(6,))


NUMBERS = ("FeatureTransfer.mu", "FeatureTransfer.epsilon", "optimizer.learning_rate")


def loss_of_numbers():
    """The loss after two rounds of ReBaFL as a function of `NUMBERS`, and where to differentiate it."""
    model, federation, execution = dense(), toys.federation(), Execution(differentiable=True)
    recipe = recipes.rebafl(mu=0.2, epsilon=0.1)
    round_fn = make_round(recipe, model, federation, local=LOCAL, participation=HALF, execution=execution)
    plans = round_fn.plans(0, 2)

    def loss(values):
        numbers = round_fn.hyperparameters | dict(zip(NUMBERS, values, strict=True))
        state, _ = trained(round_fn, jax.random.key(0), plans, numbers)
        logits = round_fn.model.apply(state.variables, jnp.asarray(federation.images), train=False)[0].logits
        return optax.softmax_cross_entropy_with_integer_labels(logits, federation.labels).mean()

    return loss, jnp.array([round_fn.hyperparameters[name] for name in NUMBERS])


@pytest.mark.slow
def test_derivatives_through_rounds_equal_finite_differences():  # of other layers: tests/models/test_derivatives.py
    loss, values = loss_of_numbers()
    compiled, steps = jax.jit(loss), 1e-2 * np.eye(len(values), dtype=np.float32)
    slopes = np.array([(float(compiled(values + step)) - float(compiled(values - step))) / 2e-2 for step in steps])
    forwards, backwards = (jax.jit(derivative(loss))(values) for derivative in (jax.jacfwd, jax.grad))
    np.testing.assert_allclose(forwards, backwards, rtol=1e-3, atol=FORMULA)
    np.testing.assert_allclose(forwards, slopes, rtol=0.02, atol=2e-4)


@pytest.mark.slow
def test_static_loops_change_nothing_but_the_length():
    plans = pair(recipes.rebafl()).plans(0, 2)
    both = (pair(recipes.rebafl(), differentiable=on) for on in (False, True))
    states = [in_one_program(round_fn, jax.random.key(0), plans)[0] for round_fn in both]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), *states)


def test_a_step_is_traced_once_and_counts_nothing_for_an_empty_place():
    round_fn, traces = pair(recipes.fedavg()), []

    @jax.jit
    def step(state, plan):
        traces.append(1)
        return round_fn.step(round_fn.hyperparameters, jax.random.key(0), state, plan)[0]

    state, plans = round_fn.init(jax.random.key(0)), round_fn.plans(0, 3)
    for plan in zip(plans.clients, plans.delivered, strict=True):
        state = step(state, plan)
    assert int(state.round) == 3
    clients = np.append(plans.clients[0][:-1], [[len(toys.SIZES)]], 0).astype(np.int32)
    ends = [step(state, (clients, clients < end)).variables for end in (len(toys.SIZES), len(toys.SIZES) + 1)]
    for other in (-1, -7, 99):
        numbers = np.append(clients[:-1], [[other]], 0).astype(np.int32)
        ends.append(step(state, (numbers, np.ones(numbers.shape, bool))).variables)
    for end in ends[1:]:
        chex.assert_trees_all_equal(end, ends[0])
    assert len(traces) == 1


@pytest.mark.slow
def test_clients_without_rows_deliver_nothing():
    federation, empty = toy.federation(), toy.SIZES.index(0)
    listed = Participation(selector=toys.chosen([[0], [empty]]))
    round_fn = make_round(recipes.feddyn(), toy.network(), federation, local=LOCAL, participation=listed)
    assert round_fn.plans(0, 1).delivered.tolist() == [[[True], [False]]]
    step = jax.jit(lambda *given: round_fn.step(round_fn.hyperparameters, jax.random.key(0), *given)[0])
    both = np.ones((2, 1), bool)
    state = step(round_fn.init(jax.random.key(0)), (np.array([[0], [4]], np.int32), both))
    beside, lost = (step(state, (np.array([[0], [empty]], np.int32), on)) for on in (both, both & [[True], [False]]))
    chex.assert_trees_all_equal(beside, lost)
    # FedDyn's server adds the mean drift of all clients, so that a model without any update would move.
    only = step(state, (np.array([[empty], [len(toy.SIZES)]], np.int32), both))
    chex.assert_trees_all_equal(only[1:], state[1:])


def test_a_plan_may_be_in_numpy_where_nothing_is_compiled():
    round_fn, key = pair(recipes.fedavg()), jax.random.key(0)
    plan = jax.tree.map(lambda leaf: leaf[0], round_fn.plans(0, 1))
    assert isinstance(plan.clients, np.ndarray)
    one = lambda state: round_fn.step(round_fn.hyperparameters, key, state, plan)
    assert jax.eval_shape(one, round_fn.init(key))[1].losses.shape == (4, 1)


def test_given_variables_are_where_training_starts():
    round_fn, key = pair(recipes.scaffold()), jax.random.key(0)
    own = toys.network().init(jax.random.key(9))
    jax.tree.map(np.testing.assert_array_equal, round_fn.init(key, own).variables, own)


def test_what_cannot_be_done_is_refused():
    round_fn = pair(recipes.fedprox())
    with pytest.raises(ValueError, match=r"hyperparameters: received \['mu'\]"):
        round_fn.step({"mu": 1.0}, jax.random.key(0), round_fn.init(jax.random.key(0)), round_fn.plans(0, 1))
    with pytest.raises(ValueError, match="plans: the selector learns from each round's outcome"):
        pair(recipes.fedavg(), Participation(selector=power_of_choice(2, 4, sizes=toys.SIZES))).plans(0, 2)
    with pytest.raises(ValueError, match="rounds: received 0"):
        round_fn.plans(0, 0)
    nobody = np.zeros((0, 1), int), np.zeros((0, 1), bool)
    with pytest.raises(ValueError, match=r"plan: received no clients \(shape \(0, 1\)\), must list at least one place"):
        round_fn.step(round_fn.hyperparameters, jax.random.key(0), round_fn.init(jax.random.key(0)), nobody)
    with pytest.raises(ValueError, match=r"variables: received \[3\] for params.w1, where the method's model has"):
        round_fn.init(jax.random.key(0), {"params": {"w1": np.zeros(3), "w2": np.zeros((6, 4))}, "stats": {}})


CLIENTS, BOTH = np.array([[0], [1]]), np.ones((2, 1), bool)
WRONG_PLANS = {
    r"plan: for G chains": (CLIENTS[:, 0], BOTH[:, 0]),
    r"different shapes.*plan: clients and delivered": (CLIENTS, BOTH[:1]),
    r"expected bool.*plan: clients and delivered": (CLIENTS, CLIENTS),
    r"expected .*int.*plan: clients and delivered": (CLIENTS / 1.0, BOTH),
}


@pytest.mark.parametrize("message", WRONG_PLANS)
def test_a_plan_of_another_form_is_refused(message):
    round_fn, key = pair(recipes.fedavg()), jax.random.key(0)
    step = lambda state: round_fn.step(round_fn.hyperparameters, key, state, WRONG_PLANS[message])
    with pytest.raises(AssertionError, match=message):
        jax.eval_shape(step, round_fn.init(key))


def test_a_hyperparameter_of_another_shape_is_refused():
    round_fn, key = pair(recipes.fedprox()), jax.random.key(0)
    numbers = round_fn.hyperparameters | {"optimizer.learning_rate": np.ones(2)}
    with pytest.raises(AssertionError, match="hyperparameters: optimizer.learning_rate"):
        jax.eval_shape(lambda state: round_fn.step(numbers, key, state, (CLIENTS, BOTH)), round_fn.init(key))


def test_a_state_of_another_round_function_is_refused():
    key, round_fn, other = jax.random.key(0), pair(recipes.scaffold()), pair(recipes.fedavg())
    state = round_fn.init(key)
    fewer = state._replace(memory=jax.tree.map(lambda leaf: leaf[:-1], state.memory))
    step = lambda state: round_fn.step(round_fn.hyperparameters, key, state, (CLIENTS, BOTH))
    for theirs in (fewer, other.init(key), tuple(state)):
        with pytest.raises(AssertionError, match="memory/ControlVariates|tree structs"):
            jax.eval_shape(step, theirs)


def test_given_variables_have_32_bits_and_are_finite():
    round_fn, key = pair(recipes.fedavg()), jax.random.key(0)
    own = toys.network().init(jax.random.key(9))
    half = round_fn.init(key, jax.tree.map(lambda leaf: leaf.astype(np.float16), own)).variables
    assert {leaf.dtype for leaf in jax.tree.leaves(half.params)} == {np.dtype(np.float32)}
    with pytest.raises(ValueError, match="variables: received numbers that aren't finite in params"):
        round_fn.init(key, jax.tree.map(lambda leaf: leaf * np.nan, own))
