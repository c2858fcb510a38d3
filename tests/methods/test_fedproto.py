"""FedProto: against its transcription."""

import jax.numpy as jnp
import numpy as np
import pytest
from methods import hand

from fedjax_bal.methods.prototypes import Prototypes
from fedjax_bal.parts import PrototypeDistance

pytestmark = pytest.mark.usefixtures("double")


def test_the_distance_to_prototypes_equals_its_transcription():
    means, present = hand.draw(hand.CLASSES, hand.FEATURES, seed=3), [True, False, True, True]

    def transcription(features):
        real = np.flatnonzero(hand.REAL)
        known = [row for row in real if present[hand.LABELS[row]]]
        squares = [(features[row] - means[hand.LABELS[row]]) ** 2 for row in known]
        return 0.7 * np.sum(squares) / (len(real) * hand.FEATURES)

    received = Prototypes(jnp.array(means), jnp.array(present))
    ctx = hand.context(broadcast={"PrototypeDistance": received})
    loss = lambda f: PrototypeDistance(0.7).loss(hand.outputs(jnp.zeros((7, 4)), f), hand.batch(), None, ctx)
    hand.check(loss, transcription, hand.draw(hand.ROWS, hand.FEATURES))
