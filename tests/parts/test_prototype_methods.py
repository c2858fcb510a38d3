"""FedProto, FedNH and FedETF: against their transcriptions, by hand."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from parts import hand

from fedjax_bal import models
from fedjax_bal.methods.prototypes import Prototypes
from fedjax_bal.parts import PrototypeClassifier, PrototypeDistance
from fedjax_bal.recipes import fedetf
from fedjax_bal.types import Aggregate, Outcome, ServerContext, Variables

FEATURES = hand.draw(hand.ROWS, hand.FEATURES)


pytestmark = pytest.mark.usefixtures("double")


def directions(rows):
    """Rows of length 1."""
    return np.array([row / np.linalg.norm(row) for row in rows])


def test_the_distance_to_prototypes_equals_its_transcription():
    means, present = hand.draw(hand.CLASSES, hand.FEATURES, seed=3), [True, False, True, True]

    def transcription(features):
        real = np.flatnonzero(hand.REAL)
        known = [row for row in real if present[hand.LABELS[row]]]
        squares = [(features[row] - means[hand.LABELS[row]]) ** 2 for row in known]
        return 0.7 * np.sum(squares) / (len(real) * hand.FEATURES)

    ctx = hand.context(broadcast={"PrototypeDistance": Prototypes(jnp.array(means), jnp.array(present))})
    loss = lambda f: PrototypeDistance(0.7).loss(hand.outputs(jnp.zeros((7, 4)), f), hand.batch(), None, ctx)
    hand.check(loss, transcription, FEATURES)


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
        total += part.report(Outcome(None, hand.variables(5), None, None, ctx))
        for c in np.unique(labels):
            mean = units[labels == c].mean(0)
            wanted[c] += (labels == c).sum() * mean / np.linalg.norm(mean)
    np.testing.assert_allclose(total, wanted, rtol=1e-6, atol=1e-9)
    assert not wanted.any(1).all()  # a class that nobody delivered
    old = directions(hand.draw(toys.CLASSES, toys.FEATURES, seed=2))
    variables = Variables({"body": jnp.ones(2), "head": {"kernel": jnp.array(old.T), "scale": jnp.array(3.0)}}, {})
    aggregate = Aggregate(None, {part.slot: total}, None, None)
    filled = dict.fromkeys(ServerContext._fields) | {"aggregate": aggregate}
    after = part.refine(None, variables, ServerContext(**filled)).params
    for c in range(toys.CLASSES):
        moved = 0.6 * old[c]
        if wanted[c].any():
            moved = moved + 0.4 * wanted[c] / np.linalg.norm(wanted[c])
        np.testing.assert_allclose(after["head"]["kernel"][:, c], moved / np.linalg.norm(moved), rtol=1e-6)
    assert after["head"]["scale"] == 3 and after["body"].tolist() == [1, 1]


def test_clients_of_fednh_train_the_scale_but_no_prototype():
    part = PrototypeClassifier()
    model = part.bind(models.build("mlp", 4, (1, 5, 1), hidden=(6,)))
    params = model.init(jax.random.key(0)).params
    kernel = np.asarray(params["head"]["kernel"])
    np.testing.assert_allclose(kernel.T @ kernel, np.eye(4), atol=1e-6)  # evenly spread
    assert part.frozen(params) == {"body": False, "head": {"kernel": True, "scale": False}}


def test_the_simplex_of_fedetf_equals_its_transcription():
    part = fedetf(2.5).parts[0]
    model = part.bind(models.build("mlp", 4, (1, 5, 1), hidden=(6,)))
    head = jax.tree.map(np.asarray, model.init(jax.random.key(0)).params["head"])
    assert {name: leaf.shape for name, leaf in head.items()} == {"kernel": (6, 4), "bias": (4,), "scale": ()}
    vertices = np.sqrt(4 / 3) * (np.eye(4) - np.ones((4, 4)) / 4)
    np.testing.assert_allclose(models.simplex(4), vertices, rtol=1e-6)
    projected = directions(FEATURES @ head["kernel"] + head["bias"])
    wanted = [[2.5 * p @ v for v in vertices.T] for p in projected]
    np.testing.assert_allclose(model.head({"head": head}, jnp.asarray(FEATURES)), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("absent", ["excluded", "one"])
def test_absent_classes_of_fedetf_are_excluded_or_count_as_one_row(absent):
    counts, logits = np.array([3, 0, 5, 0]), np.array([[0.3, -1.0, 2.0, 0.5]])
    calibration = fedetf(absent=absent).parts[1]
    ctx = SimpleNamespace(class_counts=jnp.asarray(counts))
    found = jax.nn.softmax(calibration.logits(jnp.asarray(logits), None, ctx))
    rows = np.where(counts == 0, absent == "one", counts)
    wanted = rows * np.exp(logits)
    np.testing.assert_allclose(found, wanted / wanted.sum(), rtol=1e-5)
