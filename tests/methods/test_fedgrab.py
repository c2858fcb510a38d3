"""Fed-GraB: against its transcription."""

import numpy as np
import pytest
from methods import float64, hand
from methods.heads import flat, network

from fedjax_bal.recipes import balanced_softmax, combine, fedgrab

pytestmark = pytest.mark.usefixtures("double")


class Incremental:
    """Controllers in the incremental form of the authors' code, with positive and negative gradients apart."""

    def __init__(self, gains):
        self.gains, self.up, self.down = gains, np.zeros(hand.CLASSES), np.zeros(hand.CLASSES)
        self.errors, self.output = [np.zeros(hand.CLASSES)] * 3, np.zeros(hand.CLASSES)

    def weights(self, labels):
        """Of each row and class."""
        curve = lambda u: (10 / 9) / (1 / 9 + np.exp(-0.5 * u))
        return np.array(
            [[curve(u if c == label else -u) for c, u in enumerate(self.output)] for label in labels]
        ).reshape(len(labels), hand.CLASSES)

    def gradients(self, logits, labels):
        """Of the mean loss with respect to logits, with weights; the controllers see them."""
        own = np.eye(hand.CLASSES)[labels]
        found = self.weights(labels) * (1 / (1 + np.exp(-logits)) - own) / len(labels)
        self.up += (np.abs(found) * own).sum(0)
        self.down += (np.abs(found) * (1 - own)).sum(0)
        self.errors = [self.down - self.up, *self.errors[:2]]
        now, last, before = self.errors
        p, i, d = self.gains
        self.output = self.output + p * (now - last) + i * now + d * (now - 2 * last + before)
        return found


def gradient(w, images, labels, balancer):
    """Of the balanced loss, which the balancer sees."""
    features = np.tanh(images @ w["body"])
    slopes = balancer.gradients(features @ w["kernel"] + w["bias"], labels)
    of_body = images.T @ ((slopes @ w["kernel"].T) * (1 - features**2))
    return {"body": of_body, "kernel": features.T @ slopes, "bias": slopes.sum(0)}


@pytest.mark.slow
def test_fedgrab_equals_its_transcription():
    gains = (10.0, 0.01, 0.1)
    sim = float64.simulation(fedgrab(*gains), model=network())
    weights, own, again = flat(float64.initial(sim)), {}, 0
    for number, cohort in float64.cohorts(sim):
        again += len(own.keys() & cohort)
        balancers = {client: own.setdefault(client, Incremental(gains)) for client in cohort}
        trained = {c: float64.train(weights, c, number, gradient=gradient, balancer=b)[0] for c, b in balancers.items()}
        weights = float64.mean(float64.by_size(cohort), trained)
    assert again and max(np.ptp(balancer.output) for balancer in own.values()) > 1
    float64.assert_equal(flat(float64.run(sim).variables.params), weights)


def test_other_logits_than_those_that_controllers_watch_are_refused():
    with pytest.raises(ValueError, match="fedgrab: received PriorCalibration"):
        float64.simulation(combine(fedgrab(), balanced_softmax()), model=network())
