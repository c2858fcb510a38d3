"""Optax transformations as they are: when two are equal, and what can't be asked of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_bal.optim.optimizers import UNKNOWN, as_optimizer, optimizer_names
from fedjax_bal.optim.schedules import Opaque


def by_label(rate):
    return optax.partition({"fast": optax.sgd(rate), "slow": optax.sgd(0.01)}, {"w1": "fast", "w2": "slow"})


# Each makes a transformation of a number, which sits somewhere else in it each time.
MADE = {
    "chain": lambda x: optax.chain(optax.clip_by_global_norm(1.0), optax.add_decayed_weights(x), optax.sgd(0.1)),
    "schedule": lambda x: optax.adamw(optax.cosine_decay_schedule(x, 20)),
    "joined schedules": lambda x: optax.sgd(
        optax.join_schedules([optax.linear_schedule(0, x, 5), optax.constant_schedule(0.1)], [5])
    ),
    "number of steps": lambda x: optax.sgd(optax.cosine_decay_schedule(0.1, int(100 * x))),
    "injected": lambda x: optax.inject_hyperparams(optax.sgd)(x, momentum=0.9),
    "injected schedule": lambda x: optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(x, 0.0, 9)),
    "labels": by_label,
    "mask": lambda x: optax.masked(optax.sgd(x), {"w1": True, "w2": False}),
    "array": lambda x: optax.sgd(jnp.array([x, 1.0])),
    "several steps": lambda x: optax.MultiSteps(optax.sgd(x), 2).gradient_transformation(),
    "look ahead": lambda x: optax.apply_if_finite(optax.sgd(x), 3),
}
MADE |= {name: getattr(optax, name) for name in optimizer_names()}


@pytest.mark.parametrize("name", MADE)
def test_equal_numbers_make_equal_transformations(name):
    one, same, other = (as_optimizer("optimizer", MADE[name](x)) for x in (0.1, 0.1, 0.2))
    structures = [jax.tree.structure(own) for own in (one, same, other)]
    assert one == same != other
    assert hash(structures[0]) == hash(structures[1])
    assert structures[0] == structures[1] != structures[2]
    assert jax.tree.leaves(one) == []


def test_a_switch_is_not_a_number():
    assert Opaque(optax.scale(1)) != Opaque(optax.scale(1.0)) != Opaque(optax.scale(True))


def test_equal_transformations_share_a_trace():
    traces = []

    @jax.jit
    def step(own, params):
        traces.append(1)
        transform = own.transform(0)
        return transform.update(params, transform.init(params), params)[0]

    rates = (0.1, 0.1, 0.2)
    got = [float(step(as_optimizer("optimizer", optax.sgd(rate)), np.float32(-1.0))) for rate in rates]
    assert got == pytest.approx(rates)
    assert len(traces) == 2


def test_functions_of_other_origin_equal_themselves_alone():
    def of(function):
        return Opaque(optax.sgd(function))

    rate, other = [eval("lambda step: RATE", {"RATE": value}) for value in (0.1, 0.2)]
    assert rate.__code__ == other.__code__
    assert of(rate) == of(rate) != of(other)


def test_a_traced_number_is_kept():
    moved = jax.grad(lambda rate: as_optimizer("optimizer", optax.sgd(rate)).transform(0).update(2.0, (None, None))[0])
    assert float(moved(0.1)) == -2.0


USES = {
    "from the left": lambda rate: rate * jnp.ones(2),
    "from the right": lambda rate: jnp.ones(2) / rate,
    "by a number": lambda rate: 2 * rate,
    "NumPy": lambda rate: np.float32(2.0) * rate,
    "negative": lambda rate: -rate,
    "compared": lambda rate: rate > 0,
    "function": jnp.sqrt,
    "converted": float,
    "compiled": lambda rate: jax.jit(lambda rate, x: jnp.where(x > 0, rate, 0.0))(rate, 1.0),
}


@pytest.mark.parametrize("use", USES)
def test_what_is_unknown_says_what_to_pass(use):
    with pytest.raises(ValueError, match=r"learning rate and momentum can't be read .* fedjax_bal\.optimizer"):
        USES[use](UNKNOWN)
