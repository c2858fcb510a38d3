"""Code of the user's: an object equals itself, so that a second call compiles nothing and keeps nothing."""

import gc

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

from fedjax_bal import LocalTraining, data, models, simulate
from fedjax_bal.parts import Loss, part
from fedjax_bal.recipes import Recipe

LABELS = np.arange(12) % 3
FEATURES = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
FEDERATION = data.federate(FEATURES, LABELS, [np.arange(6), np.arange(6, 12)], 3)


def rate(count):
    return 0.1 / (1.0 + count)


@part
class Decay(Loss):
    """Half the squared norm of the parameters."""

    def loss(self, outputs, batch, params, ctx):
        return 0.5 * optax.tree.norm(params, squared=True)


class Linear(nn.Module):
    """A linear model."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, use_bias=False)(x)


@pytest.mark.slow
def test_a_second_call_with_the_users_objects_compiles_nothing(caplog):
    model = models.from_linen(Linear(), (4,), 3)
    recipe = Recipe("decay", (Decay(),))
    local = LocalTraining(batch_size=6, optimizer=optax.sgd(rate))
    train = lambda: simulate(recipe, model, FEDERATION, (FEATURES, LABELS), rounds=1, seed=0, local=local)
    compiled = []
    ends = []
    for _ in range(2):
        with jax.log_compiles():
            ends.append(train())
        gc.collect()  # what the second call reuses isn't kept by accident
        compiled.append(sum("Finished XLA compilation" in record.message for record in caplog.records))
        caplog.clear()
    assert compiled[0] > 0 == compiled[1]
    jax.tree.map(np.testing.assert_array_equal, ends[0].variables, ends[1].variables)
