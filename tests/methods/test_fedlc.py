"""FedLC: against its transcription."""

import numpy as np
import pytest
import toys
from methods import float64

from fedjax_bal.recipes import fedlc

pytestmark = pytest.mark.usefixtures("double")


def test_fedlc_equals_its_transcription():
    counts = toys.federation().class_counts
    assert (counts == 0).any()  # absent classes count as 1e-8
    float64.assert_averages(fedlc(0.7), offset=lambda client, number: 0.7 * np.maximum(counts[client], 1e-8) ** -0.25)
