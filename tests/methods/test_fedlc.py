"""FedLC: against its transcription, and where it is FedAvg."""

from dataclasses import replace

import numpy as np
import pytest
import toys
from methods import float64

from fedjax_bal.recipes import fedavg, fedlc

pytestmark = pytest.mark.usefixtures("double")


def test_fedlc_equals_its_transcription():
    counts = toys.federation().class_counts
    assert (counts == 0).any()  # absent classes count as 1e-8
    float64.assert_averages(fedlc(0.7), offset=lambda client, number: 0.7 * np.maximum(counts[client], 1e-8) ** -0.25)


@pytest.mark.slow
def test_strength_zero_is_fedavg():
    float64.assert_same_runs(fedlc(0.0), fedavg())


@pytest.mark.slow
def test_equal_counts_are_fedavg():
    data = toys.federation()
    by_class = [np.flatnonzero(data.labels == c) for c in range(toys.CLASSES)]
    rows = np.concatenate([own[2 * client : 2 * client + 2] for client in range(5) for own in by_class])
    even = data._replace(
        rows=rows.astype(np.int32), offsets=np.arange(0, 41, 8, dtype=np.int32), copy=np.zeros(40, np.int32),
        class_counts=np.full((5, toys.CLASSES), 2, np.int32),
    )  # fmt: skip
    four = replace(float64.CLIENTS, clients_per_round=4)
    float64.assert_same_runs(fedlc(), fedavg(), federation=even, participation=four)
