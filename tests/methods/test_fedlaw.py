"""FedLAW: against its transcription."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from methods import float64, hand

from fedjax_bal.parts import BALANCED
from fedjax_bal.recipes import fedavg, fedlaw
from fedjax_bal.types import ServerContext, Variables

ROWS, RATE, EPOCHS, SIZE = 22, 0.05, 21, 8
WEIGHTS = np.array([0.5, 0.0, 0.2, 0.3])

pytestmark = pytest.mark.usefixtures("double")


def server_rows():
    return toys.federation()._replace(auxiliary={BALANCED: np.arange(3, 3 + ROWS)})


def mixture(form, x, y):
    """Gamma and lambda, and the derivatives of lambda."""
    if form == "exp":
        shares = np.exp(x) / np.exp(x).sum()
        return np.exp(y), shares, np.diag(shares) - np.outer(shares, shares), np.exp(y)
    total = (x**2).sum()
    return y**2, x**2 / total, (np.diag(2 * x) - np.outer(x**2 / total, 2 * x)) / total, 2 * y


def mixed(received, deltas, form, optimizer, key):
    """The new model, and gamma."""
    data = server_rows()
    rows, flat = data.auxiliary[BALANCED], data.images.reshape(len(data.images), -1).astype(float)
    models = [{k: received[k] + delta[k] for k in received} for delta in deltas]
    shares = WEIGHTS[WEIGHTS > 0]
    x, y = (np.log(shares), 0.0) if form == "exp" else (np.full(len(shares), len(shares) ** -0.5), 1.0)
    order_key, _ = jax.random.split(key)
    first, second, count = np.zeros(len(x) + 1), np.zeros(len(x) + 1), 0
    for epoch in range(EPOCHS):
        order = np.asarray(jax.random.permutation(jax.random.fold_in(order_key, epoch), ROWS))
        for places in np.split(order, range(SIZE, ROWS, SIZE)):
            gamma, shares, slopes, rise = mixture(form, x, y)
            mean = {k: sum(share * model[k] for share, model in zip(shares, models, strict=True)) for k in received}
            here = {k: gamma * leaf for k, leaf in mean.items()}
            down = float64.gradient(here, flat[rows[places]], data.labels[rows[places]])
            along = lambda tree, down=down: sum((down[k] * tree[k]).sum() for k in down)
            g = np.append(gamma * slopes.T @ [along(model) for model in models], rise * along(mean))
            count += 1
            if optimizer == "adam":
                first, second = 0.5 * first + 0.5 * g, 0.999 * second + 0.001 * g**2
                way = first / (1 - 0.5**count) / (np.sqrt(second / (1 - 0.999**count)) + 1e-8)
            else:
                way = first = 0.9 * first + g
            rate = RATE * (0.5 if epoch >= 20 else 1.0)
            x, y = x - rate * way[:-1], y - rate * way[-1]
    gamma, shares, _, _ = mixture(form, x, y)
    return {k: gamma * sum(p * model[k] for p, model in zip(shares, models, strict=True)) for k in received}, gamma


@pytest.mark.parametrize(
    ("form", "optimizer"), [("exp", "adam"), pytest.param("square", "sgd", marks=pytest.mark.slow)]
)
def test_fedlaw_equals_its_transcription(form, optimizer):
    (part,) = fedlaw(RATE, EPOCHS, SIZE, form, optimizer).parts
    received, key = hand.weights(0), jax.random.key(4)
    deltas = [{k: 0.3 * hand.draw(*leaf.shape, seed=g) for k, leaf in received.items()} for g in range(4)]
    wanted, gamma = mixed(received, [deltas[g] for g in (0, 2, 3)], form, optimizer, key)
    deltas[1] = {k: np.full_like(leaf, np.nan) for k, leaf in received.items()}  # it doesn't count
    stacked = {k: jnp.stack([jnp.asarray(delta[k]) for delta in deltas]) for k in received}
    filled = dict.fromkeys(ServerContext._fields) | {
        "variables": Variables(received, {}), "model": toys.network(), "key": key,
        "federation": jax.tree.map(jnp.asarray, server_rows()),
    }  # fmt: skip
    found = jax.jit(lambda deltas: part.reduce(deltas, jnp.array(WEIGHTS), ServerContext(**filled)))(stacked)
    float64.assert_equal(jax.tree.map(np.asarray, found), float64.difference(wanted, received))
    assert abs(gamma - 1) > 0.05


@pytest.mark.slow
def test_without_training_it_is_fedavg():
    float64.assert_same_runs(fedlaw(epochs=0), fedavg(), federation=server_rows())


def test_a_server_without_rows_is_refused():
    with pytest.raises(ValueError, match="must have rows in 'balanced'"):
        float64.simulation(fedlaw())
