"""FedNH: against its transcription."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from methods import hand
from methods.hand import directions
from rounding import FORMULA

from fedjax_bal import models
from fedjax_bal.parts import PrototypeClassifier
from fedjax_bal.types import Aggregate, Outcome, ServerContext, Variables

pytestmark = pytest.mark.usefixtures("double")


def client(number):
    """A client's context, its features' directions by the model, and labels."""
    data = toys.federation()
    rows = data.rows[data.offsets[number] : data.offsets[number + 1]]
    ctx = hand.context(
        client=jnp.array(number), size=jnp.array(len(rows)), class_counts=jnp.array(data.class_counts[number]),
        federation=jax.tree.map(jnp.asarray, data), batch_size=8,
    )  # fmt: skip
    features, _ = reference.forward(hand.weights(5), data.images[rows].reshape(len(rows), -1).astype(float))
    return ctx, directions(features), data.labels[rows]


def test_prototypes_of_fednh_equal_their_transcription():
    part, total, wanted = PrototypeClassifier(0.6), 0.0, np.zeros((toys.CLASSES, toys.FEATURES))
    for number in (1, 3):
        ctx, units, labels = client(number)
        outcome = Outcome(None, hand.variables(5), None, None, ctx)
        total += np.asarray(jax.jit(lambda outcome=outcome: part.report(outcome))())
        for c in np.unique(labels):
            mean = units[labels == c].mean(0)
            wanted[c] += (labels == c).sum() * mean / np.linalg.norm(mean)
    np.testing.assert_allclose(total, wanted, rtol=FORMULA, atol=1e-9)
    assert not wanted.any(1).all()  # a class that nobody delivered
    old = directions(hand.draw(toys.CLASSES, toys.FEATURES, seed=2))
    variables = Variables({"body": jnp.ones(2), "head": {"kernel": jnp.array(old.T), "scale": jnp.array(3.0)}}, {})
    aggregate = Aggregate(None, {part.slot: total}, None, None)
    filled = dict.fromkeys(ServerContext._fields) | {"aggregate": aggregate}
    after = jax.jit(lambda: part.refine(None, variables, ServerContext(**filled)).params)()
    for c in range(toys.CLASSES):
        moved = 0.6 * old[c]
        if wanted[c].any():
            moved = moved + 0.4 * wanted[c] / np.linalg.norm(wanted[c])
        np.testing.assert_allclose(after["head"]["kernel"][:, c], moved / np.linalg.norm(moved), rtol=FORMULA)
    assert after["head"]["scale"] == 3 and after["body"].tolist() == [1, 1]


def test_clients_of_fednh_train_the_scale_but_no_prototype():
    part = PrototypeClassifier()
    model = part.bind(models.build("mlp", 4, (1, 5, 1), hidden=(6,)))
    params = jax.jit(model.init)(jax.random.key(0)).params
    kernel = np.asarray(params["head"]["kernel"])
    np.testing.assert_allclose(kernel.T @ kernel, np.eye(4), atol=FORMULA)  # evenly spread
    assert part.frozen(params) == {"body": False, "head": {"kernel": True, "scale": False}}
