"""BalanceFL: against its transcription."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import hand
from methods.hand import received, softmax
from rounding import FORMULA

from fedjax_bal.parts import Logits, Loss, parts_with
from fedjax_bal.recipes import balancefl, combine, fedvls, iwds

LOGITS = hand.draw(hand.ROWS, hand.CLASSES)

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.slow
def test_the_loss_of_balancefl_equals_its_transcription():
    own, absent, counts, teacher = [0, 3], [1, 2], [9, 0, 0, 4], received(hand.batch().images)
    labels = np.where(np.isin(hand.LABELS, own), hand.LABELS, 3)
    batch = hand.batch()._replace(labels=jnp.array(labels))
    ctx = hand.context(start=hand.variables(5), class_counts=jnp.array(counts))
    parts = balancefl(0.7, 2.5, 0.03).parts

    def transcription(logits):
        total = 0.0
        for row in np.flatnonzero(hand.REAL):
            p, q = softmax(teacher[row][absent] / 2.5), softmax(logits[row][absent] / 2.5)
            present = softmax(logits[row][own])
            classified = -np.log(present[own.index(labels[row])])
            distilled = -(p * np.log(q)).sum() + (p * np.log(p)).sum()  # the latter is a constant
            total += (classified + 0.7 * distilled) / hand.REAL.sum() + 0.03 * (present * np.log(present)).sum()
        return total

    def loss(logits):
        calibrated = logits
        for part in parts_with(parts, Logits):
            calibrated = part.logits(calibrated, batch, ctx)
        losses = -jax.nn.log_softmax(calibrated)[jnp.arange(hand.ROWS), labels]
        added = sum(part.loss(hand.outputs(logits), batch, None, ctx) for part in parts_with(parts, Loss))
        return jnp.where(hand.REAL, losses, 0.0).sum() / hand.REAL.sum() + added

    hand.check(loss, transcription, LOGITS, 1e-9)


@pytest.mark.parametrize("counts", [[3, 3, 1, 2], [0, 0, 0, 0], [5, 0, 0, 0]], ids=["all classes", "no row", "one"])
def test_entropy_stays_finite(counts):
    ctx, part = hand.context(class_counts=jnp.array(counts)), balancefl().parts[-1]
    loss = lambda z: part.loss(hand.outputs(z), hand.batch(), None, ctx)
    value, gradient = hand.value_and_gradient(loss, LOGITS)
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_balancefl_draws_classes_alike():
    recipe = balancefl()
    weights = np.asarray(recipe.parts[0].log_weights(jnp.array([9, 2, 1, 4]), hand.context()))
    np.testing.assert_allclose(weights - weights[2], -np.log([9, 2, 1, 4]), rtol=FORMULA)
    assert recipe.drawing == "replacement"


@pytest.mark.parametrize(("other", "part"), [(iwds, "iwds both bring DecayedResampling"), (fedvls, "PriorCalibration")])
def test_what_would_act_twice_is_refused(other, part):
    with pytest.raises(ValueError, match=part):
        combine(balancefl(), other())
