"""FedRS: against its transcription."""

import numpy as np
import pytest
import quick
import toys
from methods import float64

from fedjax_bal.recipes import fedrs

COUNTS = toys.federation().class_counts
SCALES = {
    "hard": lambda client, number: np.where(COUNTS[client] > 0, 1.0, 0.4),
    "soft": lambda client, number: 0.4 + 0.6 * COUNTS[client] / COUNTS[client].max(),
}

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("mode", quick.only(SCALES, "soft"))
def test_fedrs_equals_its_transcription(mode):
    float64.assert_averages(fedrs(0.4, mode), scale=SCALES[mode])
