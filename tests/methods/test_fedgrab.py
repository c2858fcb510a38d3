"""Fed-GraB: against its transcription."""

import numpy as np
import pytest
import reference
import toys
from methods import float64, hand
from methods.heads import descended, flat, flat_images, network

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


@pytest.mark.slow
def test_fedgrab_equals_its_transcription():
    gains, options, data = (10.0, 0.01, 0.1), float64.OPTIONS, toys.federation()
    sim = float64.simulation(fedgrab(*gains), model=network())
    weights, own, again = flat(float64.initial(sim)), {}, 0
    for number, cohort in float64.cohorts(sim):
        changes, rate = {}, options.rate * options.decay**number
        for client in cohort:
            again += client in own
            w, balancer = dict(weights), own.setdefault(client, Incremental(gains))
            for rows in reference.draws(data, float64.SEED, number, client, options):
                images = flat_images()[rows]
                features = np.tanh(images @ w["body"])
                slopes = balancer.gradients(features @ w["kernel"] + w["bias"], data.labels[rows])
                of_body = images.T @ ((slopes @ w["kernel"].T) * (1 - features**2))
                w = descended(w, {"body": of_body, "kernel": features.T @ slopes, "bias": slopes.sum(0)}, rate)
            changes[client] = float64.difference(w, weights)
        weights = float64.plus(weights, float64.mean(float64.by_size(cohort), changes))
    assert again
    assert np.ptp(balancer.output) > 1
    float64.assert_equal(flat(float64.run(sim).variables.params), weights)


def test_other_logits_than_those_that_controllers_watch_are_refused():
    with pytest.raises(ValueError, match="fedgrab: received PriorCalibration, which changes the logits"):
        float64.simulation(combine(fedgrab(), balanced_softmax()), model=network())
