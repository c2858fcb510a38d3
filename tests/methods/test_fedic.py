"""FedIC: against its transcription."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from methods import float64, hand
from rounding import SUM

from fedjax_bal.parts import BALANCED, CalibratedDistillation
from fedjax_bal.recipes import fedic
from fedjax_bal.types import Aggregate, ServerContext, Variables

pytestmark = pytest.mark.usefixtures("double")


ROWS, RATE, STEPS, SHARE, HEAT = 40, 0.02, 4, 0.3, 1.7


def softmax(values):
    """By row."""
    return np.exp(values) / np.exp(values).sum(-1, keepdims=True)


def sigmoid(values):
    """Of each value."""
    return 1 / (1 + np.exp(-values))


def adam(gradient, begun, decay):
    """Some steps of Adam with weight decay in the gradient."""
    w = {k: np.array(v, float) for k, v in begun.items()}
    m, v = ({k: np.zeros_like(leaf) for k, leaf in w.items()} for _ in range(2))
    for step in range(1, STEPS + 1):
        slopes = gradient(w)
        for k in w:
            g = slopes[k] + decay * w[k]
            m[k], v[k] = 0.9 * m[k] + 0.1 * g, 0.999 * v[k] + 0.001 * g**2
            w[k] = w[k] - RATE * m[k] / (1 - 0.9**step) / (np.sqrt(v[k] / (1 - 0.999**step)) + 1e-8)
    return w


def numeric(loss, at):
    """Gradients by central differences."""
    found = {}
    for name in at:
        found[name] = np.zeros_like(at[name])
        for place in np.ndindex(at[name].shape):
            values = []
            for shift in (1e-5, -1e-5):
                moved = {k: np.array(leaf) for k, leaf in at.items()}
                moved[name][place] += shift
                values.append(loss(moved))
            found[name][place] = (values[0] - values[1]) / 2e-5
    return found


def taught(received, deltas, weights, begun):
    """The update and the next calibration."""
    data = toys.federation()
    images, labels = data.images[:ROWS].reshape(ROWS, -1).astype(float), data.labels[:ROWS]
    there = [g for g, weight in enumerate(weights) if weight > 0]
    mean = {k: received[k] + sum(weights[g] * deltas[g][k] for g in there) for k in received}
    z = reference.forward(adam(lambda w: float64.gradient(w, images, labels), mean, 2e-4), images)[1]
    clients = [reference.forward({k: received[k] + deltas[g][k] for k in received}, images) for g in there]

    def teacher(own):
        trust = np.array([sigmoid(logits @ own["client_scale"] + own["client_offset"]) for _, logits in clients])
        trust = trust / trust.sum(0)
        together = sum(share[:, None] * logits for share, (_, logits) in zip(trust, clients, strict=True))
        features = np.mean([f for f, _ in clients], axis=0)
        gate = sigmoid(features @ own["gate"] + own["gate_offset"])[:, None]
        return gate * (own["class_scale"] * together + own["class_offset"]) + (1 - gate) * z

    hard = lambda logits: -np.log(softmax(logits)[np.arange(ROWS), labels]).mean()
    after = adam(lambda own: numeric(lambda c: hard(teacher(c)), own), begun, 0.0)
    wanted = softmax(teacher(after) / HEAT)

    def gradient(w):
        features, logits = reference.forward(w, images)
        error = (softmax(logits / HEAT) - wanted) / HEAT / ROWS
        soft = {"w1": images.T @ ((error @ w["w2"].T) * (1 - features**2)), "w2": features.T @ error}
        plain = float64.gradient(w, images, labels)
        return {k: SHARE * soft[k] + (1 - SHARE) * plain[k] for k in w}

    return float64.difference(adam(gradient, mean, 2e-4), received), after


@pytest.mark.slow
def test_fedic_equals_its_transcription():
    part = CalibratedDistillation(SHARE, HEAT, RATE, STEPS, ROWS, ROWS)
    federation = jax.tree.map(jnp.asarray, toys.federation()._replace(auxiliary={BALANCED: np.arange(ROWS)}))
    received, weights = hand.weights(0), np.array([0.5, 0.0, 0.2, 0.3])
    filled = dict.fromkeys(ServerContext._fields) | {
        "variables": Variables(received, {}), "model": toys.network(), "federation": federation,
        "key": jax.random.key(1),
    }  # fmt: skip
    server = ServerContext(**filled)
    server = server._replace(state=part.init_server(server))
    state, sent = part.broadcast(jax.random.key(2), server)
    assert not jax.tree.leaves(sent)
    deltas = [{k: 0.3 * hand.draw(*leaf.shape, seed=g) for k, leaf in received.items()} for g in range(4)]
    mean = {k: sum(p * d[k] for p, d in zip(weights, deltas, strict=True)) for k in received}
    deltas[1] = {k: np.full_like(leaf, np.nan) for k, leaf in received.items()}  # it doesn't count
    stacked = {k: jnp.stack([jnp.asarray(d[k]) for d in deltas]) for k in received}
    server = server._replace(state=state, aggregate=Aggregate(mean, {}, jnp.array(weights), None, deltas=stacked))
    begun = {k: np.asarray(v, float) for k, v in state.calibration._asdict().items()}
    update, after = taught(received, deltas, weights, begun)
    found, state = part.step(mean, server)
    float64.assert_equal(jax.tree.map(np.asarray, found), update, 1e-5)
    new = Variables(jax.tree.map(jnp.add, received, found), {})
    moved = part.update(None, server._replace(variables=new, state=state)).calibration
    for name, leaf in moved._asdict().items():
        np.testing.assert_allclose(leaf, after[name], rtol=SUM, atol=1e-7)
        assert np.abs(after[name] - begun[name]).max() > 1e-3


def test_a_server_without_rows_is_refused():
    with pytest.raises(ValueError, match="must have rows in 'balanced'"):
        float64.simulation(fedic())
