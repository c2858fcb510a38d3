"""Fed-GraB: against its transcription."""

import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from methods import float64, hand

from fedjax_bal.parts import GradientBalancer
from fedjax_bal.recipes import balanced_softmax, combine, fedgrab
from fedjax_bal.types import Variables

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


def test_controllers_equal_their_transcription():
    gains = (3.0, 0.4, 0.7)
    part, wanted = GradientBalancer(*gains), Incremental(gains)
    rest = part.init_memory(Variables({"head": {"kernel": jnp.zeros((3, hand.CLASSES))}}, {}))
    ctx = hand.context(memory={part.slot: rest})
    carry = part.init_steps(ctx)
    for step in range(4):
        logits = hand.draw(hand.ROWS, hand.CLASSES, seed=step)
        within = ctx._replace(steps_state={part.slot: carry})

        def transcription(logits):
            terms = np.log1p(np.exp(logits)) - np.eye(hand.CLASSES)[hand.LABELS] * logits
            return (wanted.weights(hand.LABELS) * terms).sum()

        losses = lambda z, within=within: part.losses(z, jnp.array(hand.LABELS), within)
        hand.check(losses, transcription, logits)
        carry = part.next_steps(carry, hand.outputs(logits), hand.batch(), within)
        wanted.gradients(logits[hand.REAL], hand.LABELS[hand.REAL])
        np.testing.assert_allclose(carry.output, wanted.output, rtol=1e-10)
    assert np.ptp(wanted.output) > 1


def with_head():
    """The toy network with its second layer called the classifier."""
    plain = toys.network()
    below = lambda v: v._replace(params={"w1": v.params["w1"], "w2": v.params["head"]["kernel"]})

    def init(key):
        params = plain.init(key).params
        return Variables({"w1": params["w1"], "head": {"kernel": params["w2"]}}, {})

    apply = lambda v, images, **settings: (plain.apply(below(v), images, **settings)[0], v)
    return plain._replace(init=init, apply=apply, head=lambda p, features: features @ p["head"]["kernel"])


@pytest.mark.slow
def test_fedgrab_equals_its_transcription():
    gains, options, data = (10.0, 0.01, 0.1), float64.OPTIONS, toys.federation()
    sim = float64.simulation(fedgrab(*gains), model=with_head())
    begun = float64.initial(sim)
    weights, own, again = {"w1": begun["w1"], "w2": begun["head"]["kernel"]}, {}, 0
    flat = data.images.reshape(len(data.images), -1).astype(float)
    for number, cohort in float64.cohorts(sim):
        changes, rate = {}, options.rate * options.decay**number
        for client in cohort:
            again += client in own
            w, balancer = dict(weights), own.setdefault(client, Incremental(gains))
            for rows in reference.draws(data, float64.SEED, number, client, options):
                features, logits = reference.forward(w, flat[rows])
                slopes = balancer.gradients(logits, data.labels[rows])
                first = flat[rows].T @ ((slopes @ w["w2"].T) * (1 - features**2))
                w = {"w1": w["w1"] - rate * first, "w2": w["w2"] - rate * features.T @ slopes}
            changes[client] = float64.difference(w, weights)
        weights = float64.plus(weights, float64.mean(float64.by_size(cohort), changes))
    assert again
    found = float64.run(sim).variables.params
    float64.assert_equal({"w1": found["w1"], "w2": found["head"]["kernel"]}, weights)


def test_other_logits_than_those_that_controllers_watch_are_refused():
    with pytest.raises(ValueError, match="fedgrab: received PriorCalibration, which changes the logits"):
        float64.simulation(combine(fedgrab(), balanced_softmax()), model=with_head())
