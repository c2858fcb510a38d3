"""FedETF: against its transcription."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import hand
from methods.hand import directions
from rounding import FORMULA, SUM

from fedjax_bal import models
from fedjax_bal.recipes import fedetf

FEATURES = hand.draw(hand.ROWS, hand.FEATURES)

pytestmark = pytest.mark.usefixtures("double")


def test_the_simplex_of_fedetf_equals_its_transcription():
    part = fedetf(2.5).parts[0]
    model = part.bind(models.build("mlp", 4, (1, 5, 1), hidden=(6,)))
    head = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(0)).params["head"])
    assert {name: leaf.shape for name, leaf in head.items()} == {"kernel": (6, 4), "bias": (4,), "scale": ()}
    vertices = np.sqrt(4 / 3) * (np.eye(4) - np.ones((4, 4)) / 4)
    np.testing.assert_allclose(models.simplex(4), vertices, rtol=FORMULA)
    projected = directions(FEATURES @ head["kernel"] + head["bias"])
    wanted = [[2.5 * p @ v for v in vertices.T] for p in projected]
    np.testing.assert_allclose(jax.jit(model.head)({"head": head}, FEATURES), wanted, rtol=SUM, atol=FORMULA)


@pytest.mark.parametrize("absent", ["excluded", "one"])
def test_absent_classes_of_fedetf_are_excluded_or_count_as_one_row(absent):
    counts, logits = np.array([3, 0, 5, 0]), np.array([[0.3, -1.0, 2.0, 0.5]])
    calibration = fedetf(absent=absent).parts[1]
    ctx = SimpleNamespace(class_counts=jnp.asarray(counts))
    found = jax.nn.softmax(calibration.logits(jnp.asarray(logits), None, ctx))
    rows = np.where(counts == 0, absent == "one", counts)
    wanted = rows * np.exp(logits)
    np.testing.assert_allclose(found, wanted / wanted.sum(), rtol=SUM)
