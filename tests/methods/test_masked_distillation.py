"""FedVLS, FedLMD and FedNTD: against their transcriptions, by hand."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import hand
from methods.hand import received, softmax

from fedjax_bal.parts import LabelMaskingDistillation, LogitSuppression, NotTrueDistillation, VacantClassDistillation

pytestmark = pytest.mark.usefixtures("double")


LOGITS = hand.draw(hand.ROWS, hand.CLASSES)
FEW = np.array([9, 0, 0, 4])
EACH = np.array([3, 3, 1, 2])


def context(counts):
    """With a received model."""
    return hand.context(start=hand.variables(5), class_counts=jnp.array(counts))


def divergence(teacher, taught, student, learned, temperature=1.0):
    """From the teacher's probabilities among some classes to the student's among others."""
    p = dict(zip(taught, softmax(teacher[taught] / temperature), strict=True))
    q = dict(zip(learned, softmax(student[learned] / temperature), strict=True))
    return temperature**2 * sum(p[c] * np.log(p[c] / q[c]) for c in taught)


def checked(part, transcription, counts, logits=LOGITS):
    """The part's loss against its transcription."""
    hand.check(lambda z: part.loss(hand.outputs(z), hand.batch(), None, context(counts)), transcription, logits, 1e-9)


def test_distillation_of_vacant_classes_equals_its_transcription():
    teacher, absent = received(hand.batch().images), [1, 2]

    def transcription(logits):
        terms = [divergence(teacher[row], absent, logits[row], absent) for row in np.flatnonzero(hand.REAL)]
        return 0.7 * np.mean(terms)

    checked(VacantClassDistillation(0.7), transcription, FEW)


@pytest.mark.parametrize("counts", [EACH, [0, 0, 0, 0]], ids=["all classes", "no row"])
def test_a_client_with_all_classes_or_none_stays_finite(counts):
    for part in (VacantClassDistillation(), LogitSuppression(), LabelMaskingDistillation(), NotTrueDistillation()):
        loss = lambda z, part=part: part.loss(hand.outputs(z), hand.batch(), None, context(counts))
        value, gradient = hand.value_and_gradient(loss, LOGITS)
        assert np.isfinite(value) and np.isfinite(gradient).all()
    value, gradient = hand.value_and_gradient(
        lambda z: VacantClassDistillation().loss(hand.outputs(z), hand.batch(), None, context(EACH)), LOGITS
    )
    assert value == 0 and not gradient.any()


def test_suppression_of_logits_equals_its_transcription():
    def transcription(logits):
        prior, total, real = FEW / FEW.sum(), 0.0, np.flatnonzero(hand.REAL)
        for c in range(hand.CLASSES):
            shift = np.log(0.25 + 1e-9) - np.log(prior[c] + 1e-9)
            even = [0.0 if hand.LABELS[row] == c else logits[row, c] + shift for row in real]
            total += prior[c] * np.log(np.mean(np.exp(even)))
        return 0.3 * total

    checked(LogitSuppression(0.3), transcription, FEW)


@pytest.mark.parametrize("counts", [FEW, EACH, [9, 2, 1, 4]])
def test_label_masking_distillation_equals_its_transcription(counts):
    teacher = received(hand.batch().images)

    def transcription(logits):
        total = 0.0
        for row in np.flatnonzero(hand.REAL):
            others = [c for c in range(hand.CLASSES) if c != hand.LABELS[row]]
            minority = [c for c in others if counts[c] <= np.mean(counts)]
            if minority:
                total += divergence(teacher[row], minority, logits[row], others, 1.7)
        return 0.7 * total / hand.REAL.sum()

    checked(LabelMaskingDistillation(0.7, 1.7), transcription, counts)


def test_classes_of_equal_size_are_all_minorities_when_compiled():
    classes = 41  # the mean of as many ones is below 1, where it is compiled
    logits = jnp.array(hand.draw(len(hand.LABELS), classes))
    model = SimpleNamespace(apply=lambda variables, images, train: (hand.outputs(-logits), variables))
    part, given = LabelMaskingDistillation(), context(EACH)._replace(model=model)
    loss = jax.jit(
        lambda counts: part.loss(hand.outputs(logits), hand.batch(), None, given._replace(class_counts=counts))
    )
    assert loss(jnp.ones(classes, jnp.int32)) > 0.1


def test_not_true_distillation_equals_its_transcription():
    teacher = received(hand.batch().images)

    def transcription(logits):
        terms = []
        for row in np.flatnonzero(hand.REAL):
            others = [c for c in range(hand.CLASSES) if c != hand.LABELS[row]]
            terms.append(divergence(teacher[row], others, logits[row], others, 1.7))
        return 0.7 * np.mean(terms)

    checked(NotTrueDistillation(0.7, 1.7), transcription, FEW)
