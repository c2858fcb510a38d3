"""FedDecorr: against its transcription, by hand."""

import numpy as np
import pytest
from methods import hand

from fedjax_bal.parts import Decorrelation
from fedjax_bal.types import Batch

pytestmark = pytest.mark.usefixtures("double")


FEATURES = hand.draw(hand.ROWS, hand.FEATURES)


def loss(features, batch=None):
    """The part's loss."""
    return Decorrelation(0.3).loss(hand.outputs(hand.draw(hand.ROWS, 4), features), batch or hand.batch(), None, None)


@pytest.mark.slow
def test_the_loss_equals_its_transcription():
    def transcription(features):
        rows = features[hand.REAL]
        n, correlations = len(rows), np.corrcoef(rows.T)
        pairs = [correlations[i, j] ** 2 for i in range(hand.FEATURES) for j in range(hand.FEATURES) if i != j]
        return 0.3 * (n - 1) ** 2 / n * np.mean(pairs)

    hand.check(loss, transcription, FEATURES, 1e-6)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_batch_of_one_row_or_none_adds_nothing(rows):
    batch: Batch = hand.batch()._replace(real=np.arange(hand.ROWS) < rows)
    value, gradient = hand.value_and_gradient(lambda features: loss(features, batch), FEATURES)
    assert value == 0 and not gradient.any()
    alike = hand.value_and_gradient(loss, np.ones_like(FEATURES))
    assert alike[0] == 0 and np.isfinite(alike[1]).all()
