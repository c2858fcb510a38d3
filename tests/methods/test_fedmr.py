"""FedMR: both losses against their transcriptions."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
import toys
from methods import float64, hand

from fedjax_bal.methods.prototypes import FeatureSums, Prototypes
from fedjax_bal.parts import ClassDecorrelation, PrototypeMargin
from fedjax_bal.recipes import fedavg, fedmr
from fedjax_bal.types import Aggregate, Batch, ServerContext

pytestmark = pytest.mark.usefixtures("double")

FEATURES = hand.draw(hand.ROWS, hand.FEATURES)
NOTHING = jnp.zeros((hand.ROWS, hand.CLASSES))


def correlations(features, batch=None):
    """The loss within classes."""
    part = ClassDecorrelation(0.3)
    return part.loss(hand.outputs(NOTHING, features), batch or hand.batch(), None, hand.context())


def test_the_correlations_within_a_class_equal_their_transcription():
    def transcription(features):
        total, counted = 0.0, 0
        for label in np.unique(hand.LABELS[hand.REAL]):
            rows = features[hand.REAL & (label == hand.LABELS)]
            if len(rows) > 1:
                scaled = (rows - rows.mean(0)) / np.sqrt(rows.var(0, ddof=1) + 1e-8)
                products = scaled.T @ scaled  # correlations times n - 1
                total += np.mean([products[i, j] ** 2 for i, j in itertools.permutations(range(hand.FEATURES), 2)])
                counted += len(rows)
        assert counted == 5  # three rows of one class, two of another; the third class has a single real row
        return 0.3 * total / counted

    hand.check(correlations, transcription, FEATURES)


@pytest.mark.parametrize("rows", [0, 2])
def test_classes_of_a_row_or_none_and_equal_rows_add_nothing(rows):
    batch: Batch = hand.batch()._replace(real=np.arange(hand.ROWS) < rows)
    value, gradient = hand.value_and_gradient(lambda features: correlations(features, batch), FEATURES)
    assert value == 0 and not gradient.any()
    alike = hand.value_and_gradient(correlations, np.ones_like(FEATURES))
    assert alike[0] == 0 and np.isfinite(alike[1]).all()


def test_the_margin_to_other_prototypes_equals_its_transcription():
    means, present = hand.draw(hand.CLASSES, hand.FEATURES, seed=3), np.array([True, True, True, False])
    found = []

    def transcription(features):
        lacking = []
        for c in np.unique(hand.LABELS[hand.REAL]):
            centre = features[hand.REAL & (c == hand.LABELS)].mean(0)
            for j in range(hand.CLASSES):
                if j != c and present[c] and present[j]:
                    margin = np.linalg.norm(means[c] - means[j]) - np.linalg.norm(centre - means[j])
                    lacking.append(max(margin, 0.0))
        assert len(lacking) == 4
        found[:] = lacking
        return 0.7 * np.mean(lacking)

    ctx = hand.context(broadcast={"PrototypeMargin": Prototypes(jnp.array(means), jnp.array(present))})
    loss = lambda features: PrototypeMargin(0.7).loss(hand.outputs(NOTHING, features), hand.batch(), None, ctx)
    hand.check(loss, transcription, 3 * FEATURES, 1e-7)
    assert 0.0 in found and max(found) > 0.1
    none = hand.context(broadcast={"PrototypeMargin": Prototypes(jnp.array(means), jnp.zeros(hand.CLASSES, bool))})
    assert PrototypeMargin(0.7).loss(hand.outputs(NOTHING, FEATURES), hand.batch(), None, none) == 0


def test_a_class_that_no_client_delivered_keeps_its_prototype():
    old = Prototypes(jnp.full((toys.CLASSES, 2), 5.0), jnp.array([True, True, False, False]))
    sums = FeatureSums(jnp.full((toys.CLASSES, 2), 6.0), jnp.array([3.0, 0.0, 2.0, 0.0]))
    filled = dict.fromkeys(ServerContext._fields) | {
        "state": old, "aggregate": Aggregate({}, {"PrototypeMargin": sums}, jnp.ones(1), None)
    }  # fmt: skip
    new = PrototypeMargin().update(None, ServerContext(**filled))
    assert new.present.tolist() == [True, True, True, False]
    assert new.means[:3, 0].tolist() == [2.0, 5.0, 3.0]


@pytest.mark.slow
def test_without_weights_it_is_fedavg():
    float64.assert_same_runs(fedmr(0.0, 0.0), fedavg())


def test_without_prototypes_nothing_is_sent():
    assert fedmr(0.1, 0.0).parts == (ClassDecorrelation(0.1),)
