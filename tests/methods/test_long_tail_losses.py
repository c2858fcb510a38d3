"""Losses of long-tailed learning: against their transcriptions, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from methods import hand
from quick import only
from rounding import DOUBLE

from fedjax_bal.parts import ClassBalancedLoss, Disentangling, FocalLoss, LabelMargins, PriorCalibration
from fedjax_bal.recipes import balanced_softmax, class_balanced, combine, focal, ldam, logit_adjustment

pytestmark = pytest.mark.usefixtures("double")


LOGITS = hand.draw(hand.ROWS, hand.CLASSES)
OF_ALL = toys.federation().class_counts.sum(0)
SCOPES = {"local": hand.COUNTS, "global": OF_ALL}


def cross_entropy(logits, labels=hand.LABELS):
    """Of each row, with plain loops."""
    return np.array([np.log(np.exp(row).sum()) - row[label] for row, label in zip(logits, labels, strict=True)])


def test_counts_of_the_client_and_of_all_are_different():
    assert (OF_ALL > 0).all() and not (hand.COUNTS > 0).all()


@pytest.mark.parametrize("beta", only((0.0, 0.9, 1.0), 0.9))
@pytest.mark.parametrize("scope", SCOPES)
def test_class_balanced_loss_equals_its_transcription(scope, beta):
    def transcription(logits):
        weights = {}
        for c, n in enumerate(SCOPES[scope]):
            if n:
                weights[c] = 1 / n if beta == 1 else (1 - beta) / (1 - beta**n)
        mean = sum(weights.values()) / len(weights)
        own = np.array([weights[label] / mean for label in hand.LABELS])
        return (own * cross_entropy(logits)).sum()

    part = ClassBalancedLoss(beta, scope)
    hand.check(lambda z: part.losses(z, jnp.array(hand.LABELS), hand.context()), transcription, LOGITS)
    if beta == 0:
        np.testing.assert_allclose(transcription(LOGITS), cross_entropy(LOGITS).sum(), rtol=DOUBLE)


@pytest.mark.parametrize("gamma", only((0.0, 0.5, 2.0), 2.0))
def test_focal_loss_equals_its_transcription(gamma):
    def transcription(logits):
        chosen = np.exp(-cross_entropy(logits))
        return ((1 - chosen) ** gamma * cross_entropy(logits)).sum()

    hand.check(lambda z: FocalLoss(gamma).losses(z, jnp.array(hand.LABELS), None), transcription, LOGITS)
    sure = lambda logits: FocalLoss(0.5).losses(logits, jnp.zeros(1, int), None).sum()
    assert np.isfinite(jax.jit(jax.grad(sure))(jnp.array([[800.0, 0, 0, 0]]))).all()


@pytest.mark.parametrize("scope", SCOPES)
def test_logit_adjustment_equals_its_transcription(scope):
    def transcription(logits):
        prior = 0.9 * SCOPES[scope] / SCOPES[scope].sum() + 0.1 / hand.CLASSES
        return cross_entropy(logits + 1.7 * np.log(prior)).sum()

    part = PriorCalibration(0.1, 1.7, scope)

    def loss(logits):
        adjusted = part.logits(logits, hand.batch(), hand.context())
        return -jax.nn.log_softmax(adjusted)[jnp.arange(hand.ROWS), hand.LABELS]

    hand.check(loss, transcription, LOGITS)


def test_logit_adjustment_of_strength_1_is_balanced_softmax_and_refused_beside_it():
    assert logit_adjustment().parts == balanced_softmax().parts
    with pytest.raises(ValueError, match="balanced_softmax and logit_adjustment both bring PriorCalibration"):
        combine(balanced_softmax(), logit_adjustment())


@pytest.mark.parametrize("scope", SCOPES)
def test_margins_of_ldam_equal_their_transcription(scope):
    counts = SCOPES[scope]

    def transcription(logits):
        margins = [0.0 if n == 0 else n**-0.25 for n in counts]
        moved = logits.copy()
        for row, label in enumerate(hand.LABELS):
            moved[row, label] -= 8 * 0.4 * margins[label] / max(margins)
        return cross_entropy(moved).sum()

    part = LabelMargins(0.4, 8.0, scope)

    def loss(logits):
        return -jax.nn.log_softmax(part.logits(logits, hand.batch(), hand.context()))[jnp.arange(7), hand.LABELS]

    hand.check(loss, transcription, LOGITS)


def test_deferred_weights_are_those_of_the_class_balanced_loss():
    margins, weights = ldam(reweight_from=7, beta=0.9, counts="global").parts
    assert (margins.first_round, weights.first_round) == (0, 7)
    assert weights == ClassBalancedLoss(0.9, "global", 7)
    assert class_balanced(0.9).parts[0].first_round == 0


@pytest.mark.parametrize("scope", SCOPES)
def test_lade_equals_its_transcription(scope):
    def transcription(logits):
        prior, total, real = SCOPES[scope] / SCOPES[scope].sum(), 0.0, np.flatnonzero(hand.REAL)
        for c in range(hand.CLASSES):
            own = [logits[row, c] for row in real if hand.LABELS[row] == c]
            even = [logits[row, c] - np.log(prior[c] + 1e-9) + np.log(1 / hand.CLASSES + 1e-9) for row in real]
            second = np.log(np.mean(np.exp(even)))
            first = np.sum(own) / len(own) if own else 0.0
            total -= prior[c] * (first - second - 0.3 * second**2)
        return 0.7 * total

    part = Disentangling(0.7, 0.3, scope)
    hand.check(lambda z: part.loss(hand.outputs(z), hand.batch(), None, hand.context()), transcription, LOGITS, 1e-9)


def test_a_batch_of_padding_adds_nothing_to_lade():
    padding = hand.batch()._replace(real=jnp.zeros(hand.ROWS, bool))
    loss = lambda z: Disentangling().loss(hand.outputs(z), padding, None, hand.context())
    value, gradient = hand.value_and_gradient(loss, LOGITS)
    assert value == 0 and not gradient.any()


def test_two_criteria_are_refused():
    with pytest.raises(ValueError, match="FocalLoss and ClassBalancedLoss both replace the cross-entropy"):
        combine(focal(), class_balanced())
