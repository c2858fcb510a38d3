"""Code of the user's that reads values from outside: each call of the front door uses what they are by then."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys

from fedjax_bal import LocalTraining, check_part, data, make_round, models, optimizer, recipes, simulate
from fedjax_bal.engine.host import executable
from fedjax_bal.optim import calls_users_code
from fedjax_bal.parts import Loss, part
from fedjax_bal.recipes import Recipe
from fedjax_bal.testing import ConformanceError

NUMBER = 0.0
LABELS = np.arange(12) % 3
FEATURES = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
FEDERATION = data.federate(FEATURES, LABELS, [np.arange(6), np.arange(6, 12)], 3)
MLP = models.build("mlp", 3, (4,))


def rate(count):
    return NUMBER * jnp.ones(())


@part
class Pull(Loss):
    """NUMBER times half the squared norm: its gradient is NUMBER times the parameters."""

    def loss(self, outputs, batch, params, ctx):
        return NUMBER * 0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


class Scaled(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, use_bias=False)(NUMBER * x)


def by_hand():
    """A linear model with the same factor, of functions."""
    whole = toys.network()

    def apply(variables, inputs, **mode):
        outputs, after = whole.apply(variables, inputs, **mode)
        return outputs._replace(logits=NUMBER * outputs.logits), after

    return whole._replace(apply=apply)


def moved(recipe, model=MLP, *, by, federation=FEDERATION, **options):
    """The distance that one round moves the parameters, from the model's own start."""
    local = LocalTraining(batch_size=6, optimizer=by if not callable(by) else optimizer("sgd", by))
    start = model.init(jax.random.key(0))
    test = federation.images[:3], federation.labels[:3]
    end = simulate(recipe, model, federation, test, rounds=1, seed=0, local=local, variables=start, **options).variables
    return float(optax.tree.norm(jax.tree.map(jnp.subtract, end.params, start.params)))


def by_a_round():
    """The same by a round function of the caller's own."""
    pair = make_round(recipes.fedavg(), SCALED, FEDERATION, local=LocalTraining(batch_size=6))
    key, plan = jax.random.key(0), (np.arange(2)[:, None], np.ones((2, 1), bool))
    start = pair.init(key)
    end, _ = pair.step(pair.hyperparameters, key, start, plan)
    return float(optax.tree.norm(jax.tree.map(jnp.subtract, end.variables.params, start.variables.params)))


SCALED, HAND = models.from_linen(Scaled(), (4,), 3), by_hand()
PULL = Recipe("pull", (Pull(),))
USES = {
    "a schedule": lambda: moved(recipes.fedavg(), by=rate),
    "an optax schedule": lambda: moved(recipes.fedavg(), by=optax.sgd(rate)),
    "the server's schedule": lambda: moved(
        recipes.fedavg(), by=optimizer("sgd", 0.1), server_optimizer=optax.inject_hyperparams(optax.sgd)(rate)
    ),
    "a network": lambda: moved(recipes.fedavg(), SCALED, by=optimizer("sgd", 0.1)),
    "functions of a model": lambda: moved(
        recipes.fedavg(), HAND, by=optimizer("sgd", 0.1), federation=toys.federation()
    ),
    "a network in a round": by_a_round,
}
"""What reads NUMBER -> the distance moved, which is 0 for 0."""


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_a_changed_value_is_seen(name, monkeypatch):
    use = USES[name]
    monkeypatch.setattr(f"{__name__}.NUMBER", 0.5)
    assert use() > 0
    monkeypatch.setattr(f"{__name__}.NUMBER", 0.0)
    assert use() == 0


@pytest.mark.slow
def test_a_changed_value_of_a_part_is_seen(monkeypatch):
    plain = moved(recipes.fedavg(), by=optimizer("sgd", 0.1))
    monkeypatch.setattr(f"{__name__}.NUMBER", 0.5)
    pulled = moved(PULL, by=optimizer("sgd", 0.1))
    monkeypatch.setattr(f"{__name__}.NUMBER", 0.0)
    assert moved(PULL, by=optimizer("sgd", 0.1)) == plain != pulled


@pytest.mark.slow
def test_a_changed_value_is_checked(monkeypatch):
    assert check_part(Pull()).failed == ()
    monkeypatch.setattr(f"{__name__}.NUMBER", float("nan"))
    with pytest.raises((ConformanceError, ValueError), match="nan"):
        check_part(Pull())


@pytest.mark.slow
def test_built_in_methods_find_what_was_traced(monkeypatch):
    lowered = []
    lower = executable.lower_dispatch
    monkeypatch.setattr(
        executable,
        "lower_dispatch",
        lambda setting, *args, **kwargs: lowered.append(setting) or lower(setting, *args, **kwargs),
    )
    for _ in range(2):
        moved(recipes.fedprox(0.1), by=optimizer("sgd", 0.1, momentum=0.5))
    first, second = (jax.tree.structure(dataclasses.replace(own)) for own in lowered)
    assert first == second and hash(first) == hash(second)


@pytest.mark.parametrize(
    "given, own",
    [
        (optimizer("sgd", 0.1, momentum=0.9), False),
        (optimizer("sgd", optax.cosine_decay_schedule(0.1, 10)), False),
        (optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.linear_schedule(0.1, 0.0, 5))), False),
        (optax.inject_hyperparams(optax.sgd)(learning_rate=optax.exponential_decay(0.1, 2, 0.5)), False),
        (optimizer("sgd", rate), True),
        (optimizer("sgd", 0.1, step_schedule=lambda step: 1.0), True),
        (optax.sgd(rate), True),
        (optax.masked(optax.sgd(0.1), lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)), True),
        (optax.GradientTransformation(lambda params: (), lambda grads, state, params=None: (grads, state)), True),
    ],
)  # fmt: skip
def test_users_functions_are_told_from_those_of_libraries(given, own):
    assert calls_users_code(given) == own
