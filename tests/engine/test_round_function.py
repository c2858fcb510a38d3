"""`make_round`: a round is a pure function, equal to `simulate`, and to itself under jax's transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys

from fedjax_bal import Execution, LocalTraining, Participation, make_round, optimizer, recipes, simulate
from fedjax_bal.selection import bernoulli, power_of_choice

LOCAL = LocalTraining(batch_size=4, optimizer=optimizer("sgd", 0.1))
HALF = Participation(clients_per_round=4, delivery=bernoulli(0.7))
ROUNDS = 3


def pair(recipe, participation=HALF, **execution):
    return make_round(
        recipe,
        toys.network(),
        toys.federation(),
        local=LOCAL,
        participation=participation,
        execution=Execution(**execution),
    )


def trained(round_fn, key, plans, hyperparameters=None):
    """The state after all rounds of the plans, in one scan."""
    numbers = hyperparameters or round_fn.hyperparameters
    return jax.lax.scan(lambda state, plan: round_fn.step(numbers, key, state, plan), round_fn.init(key), plans)


def validation_loss(round_fn, numbers, plans):
    """Cross-entropy of the model after all rounds."""
    state, _ = trained(round_fn, jax.random.key(0), plans, numbers)
    images, labels = toys.test_set()
    logits = round_fn.model.apply(state.variables, jnp.asarray(images), train=False)[0].logits
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@pytest.mark.parametrize(
    "recipe",
    [
        recipes.rebafl(),
        recipes.scaffold(),
        pytest.param(recipes.astraea(mediator_epochs=2), marks=pytest.mark.slow),
        pytest.param(recipes.fedavgm(), marks=pytest.mark.slow),
    ],
)
def test_a_scan_over_rounds_equals_simulate_to_the_bit(recipe):
    round_fn = pair(recipe)
    plans = round_fn.plans(seed=5, rounds=ROUNDS)
    state, info = jax.jit(trained)(round_fn, jax.random.key(5), plans)
    result = simulate(
        recipe,
        toys.network(),
        toys.federation(),
        toys.test_set(),
        rounds=ROUNDS,
        seed=5,
        local=LOCAL,
        participation=HALF,
        execution=Execution(devices=1),
    )
    assert int(state.round) == ROUNDS and info.losses.shape[0] == ROUNDS
    jax.tree.map(np.testing.assert_array_equal, state.variables, result.variables)


@pytest.mark.slow
def test_seeds_in_one_vmap_equal_separate_runs():
    round_fn = pair(recipes.rebafl())
    keys, plans = jax.random.split(jax.random.key(1), 3), round_fn.plans(seed=0, rounds=2)
    together, _ = jax.vmap(lambda key: trained(round_fn, key, plans))(keys)
    apart = [trained(round_fn, key, plans)[0] for key in keys]
    jax.tree.map(lambda leaf, *own: np.testing.assert_allclose(leaf, np.stack(own), 1e-5, 1e-6), together, *apart)


@pytest.mark.slow
def test_plans_in_one_vmap_equal_separate_runs():
    round_fn, key = pair(recipes.fedavg()), jax.random.key(0)
    drawn = [round_fn.plans(seed, rounds=2) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *drawn)
    together, _ = jax.vmap(lambda plans: trained(round_fn, key, plans))(stacked)
    apart = [trained(round_fn, key, plans)[0] for plans in drawn]
    jax.tree.map(lambda leaf, *own: np.testing.assert_allclose(leaf, np.stack(own), 1e-5, 1e-6), together, *apart)


@pytest.mark.slow
def test_hyperparameters_in_one_vmap_equal_recipes_of_their_own():
    key, mus = jax.random.key(0), jnp.array([0.0, 0.5])
    round_fn = pair(recipes.fedprox(mu=0.1))
    plans = round_fn.plans(0, 2)
    (name,) = (name for name in round_fn.hyperparameters if name.endswith(".mu"))
    together, _ = jax.vmap(lambda mu: trained(round_fn, key, plans, round_fn.hyperparameters | {name: mu}))(mus)
    apart = [trained(pair(recipes.fedprox(mu=float(mu))), key, plans)[0].variables for mu in mus]
    jax.tree.map(
        lambda leaf, *own: np.testing.assert_allclose(leaf, np.stack(own), 1e-5, 1e-6), together.variables, *apart
    )


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("forward", "FeatureTransfer.mu"),
        *(
            pytest.param(mode, name, marks=pytest.mark.slow)
            for mode, name in [("backward", "optimizer.learning_rate"), ("backward", "FeatureTransfer.mu")]
        ),
    ],
)
def test_derivatives_through_rounds_equal_finite_differences(mode, name):
    round_fn = pair(recipes.rebafl(mu=0.2, epsilon=0.1), differentiable=mode == "backward")
    plans, derivative = round_fn.plans(0, 2), jax.jacfwd if mode == "forward" else jax.grad

    def loss(value):
        return validation_loss(round_fn, round_fn.hyperparameters | {name: value}, plans)

    value, step = float(round_fn.hyperparameters[name]), 1e-2
    compiled = jax.jit(loss)
    slope = (float(compiled(value + step)) - float(compiled(value - step))) / (2 * step)
    assert float(jax.jit(derivative(loss))(value)) == pytest.approx(slope, rel=0.02, abs=2e-4)


@pytest.mark.slow
def test_static_loops_change_nothing_but_the_length():
    plans = pair(recipes.rebafl()).plans(0, 2)
    states = [trained(pair(recipes.rebafl(), differentiable=on), jax.random.key(0), plans)[0] for on in (False, True)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), *states)


def test_a_step_is_traced_once():
    round_fn, traces = pair(recipes.fedavg()), []

    @jax.jit
    def step(state, plan):
        traces.append(1)
        return round_fn.step(round_fn.hyperparameters, jax.random.key(0), state, plan)[0]

    state, plans = round_fn.init(jax.random.key(0)), round_fn.plans(0, 3)
    for plan in zip(plans.clients, plans.delivered, strict=True):
        state = step(state, plan)
    assert (len(traces), int(state.round)) == (1, 3)


def test_given_variables_are_where_training_starts():
    round_fn, key = pair(recipes.scaffold()), jax.random.key(0)
    own = toys.network().init(jax.random.key(9))
    jax.tree.map(np.testing.assert_array_equal, round_fn.init(key, own).variables, own)


def test_what_cannot_be_done_is_refused():
    round_fn = pair(recipes.fedprox())
    with pytest.raises(ValueError, match=r"hyperparameters: received \['mu'\], must be \['Proximal.mu', 'optimizer.l"):
        round_fn.step({"mu": 1.0}, jax.random.key(0), round_fn.init(jax.random.key(0)), round_fn.plans(0, 1))
    with pytest.raises(ValueError, match="plans: the selector learns from each round's outcome"):
        pair(recipes.fedavg(), Participation(selector=power_of_choice(2, 4, sizes=toys.SIZES))).plans(0, 2)
