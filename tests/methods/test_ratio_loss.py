"""Ratio loss: against its transcription."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from methods import hand, heads
from rounding import DOUBLE, FORMULA

from fedjax_bal.methods import ratio_loss as MODULE
from fedjax_bal.parts import BALANCED, RatioLoss
from fedjax_bal.types import Outputs, ServerContext, Variables

RATIOS = jax.jit(MODULE.ratios)

pytestmark = pytest.mark.usefixtures("double")


def monitor(steps):
    """Ratios with plain loops, as the authors' code has them."""
    classes, places = steps.shape
    owner = []
    for j in range(places):
        column = list(steps[:, j])
        top = column.index(max(column))
        near = [v == 0 for v in column] if column[top] == 0 else [abs(v) / abs(column[top]) > 0.8 for v in column]
        owner.append(top if sum(near) < 2 else None)
    found = []
    for c in range(classes):
        own = sum(steps[c, j] for j in range(places) if owner[j] == c)
        other = sum(np.delete(steps[:, j], c).mean() for j in range(places) if owner[j] == c)
        found.append(min(abs(own) / abs(other) if other != 0 else 10.0, 5000.0))
    return np.array(found)


@pytest.mark.parametrize("seed", range(5))
def test_ratios_equal_their_transcription(seed):
    steps = hand.draw(4, 30, seed=seed)
    steps[:, :5] = 0.0
    steps[1, 5:8] = 0.0
    steps[:, 8] = -np.abs(steps[:, 8])
    np.testing.assert_allclose(RATIOS(steps), monitor(steps), rtol=1e-9)


def test_a_class_that_owns_no_weight_has_the_value_of_the_authors_code():
    found = RATIOS(np.array([[1.0, 1.0], [0.1, 0.1], [0.0, -0.2]]))
    np.testing.assert_allclose(found[1:], [10, 10])


@pytest.mark.slow
def test_the_server_monitors_the_gradient_of_each_class():
    federation = toys.federation()._replace(auxiliary={BALANCED: np.arange(40)})
    params = {"head": {"kernel": hand.draw(5, 4), "bias": hand.draw(4)}}
    apply = lambda v, images, train: (Outputs(None, images.reshape(len(images), -1)), v)
    head = lambda p, features: features @ p["head"]["kernel"] + p["head"]["bias"]
    model = toys.network()._replace(apply=apply, head=head)
    filled = dict.fromkeys(ServerContext._fields) | {
        "variables": Variables(params, {}), "model": model, "federation": jax.tree.map(jnp.asarray, federation),
        "state": jnp.array([1.0, 2.0, 3.0, 4.0]),
    }  # fmt: skip
    after, sent = RatioLoss(0.5, 0.2).broadcast(None, ServerContext(**filled))
    images, labels = federation.images[:40].reshape(40, -1).astype(float), federation.labels[:40]
    steps = []
    for c in range(4):
        rows = images[labels == c]
        steps.append(-heads.head_gradient(rows, labels[labels == c], params["head"])[0]["kernel"].ravel())
    np.testing.assert_allclose(after, 0.5 + 0.2 * monitor(np.array(steps)), rtol=FORMULA)
    np.testing.assert_array_equal(sent, [1, 2, 3, 4])  # clients get the weights of the round before
    ctx, logits = hand.context(broadcast={"RatioLoss": sent}), hand.draw(hand.ROWS, hand.CLASSES)
    losses = RatioLoss().losses(jnp.asarray(logits), jnp.array(hand.LABELS), ctx)
    of_rows = np.log(np.exp(logits).sum(1)) - logits[np.arange(hand.ROWS), hand.LABELS]
    np.testing.assert_allclose(losses, (hand.LABELS + 1) * of_rows, rtol=DOUBLE)
