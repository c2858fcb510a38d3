"""Epsilon of noisy means: against Gaussian noise worked out by hand, and a published value."""

import math
import sys

import numpy as np
import pytest

from fedjax_bal.contrib.privacy import epsilon


def of_all_clients(noise, rounds, delta):
    """Rényi divergence alpha T / (2 z^2) of T rounds of Gaussian noise, turned into epsilon (Canonne et al., 2020)."""
    alpha = np.concatenate([np.linspace(1.01, 12, 20_000), np.arange(13, 512)])
    bound = alpha * rounds / (2 * noise**2) + np.log1p(-1 / alpha) - (math.log(delta) + np.log(alpha)) / (alpha - 1)
    return bound.min()


@pytest.mark.parametrize(("noise", "rounds"), [(4.0, 1), (4.0, 20), (1.0, 3)])
@pytest.mark.parametrize(("neighbours", "sensitivity"), [("add_or_remove", 1), ("replace", 2)])
def test_all_clients_in_every_round(noise, rounds, neighbours, sensitivity):
    pytest.importorskip("dp_accounting")
    wanted = of_all_clients(noise / sensitivity, rounds, 1e-5)
    assert epsilon(noise, rounds, 50, 50, 1e-5, neighbours) == pytest.approx(wanted, rel=5e-3)


def test_a_published_value():
    """TensorFlow Privacy's tutorial: 60,000 rows, batches of 256, noise 1.12, 60 epochs: 2.92 by an earlier bound."""
    pytest.importorskip("dp_accounting")
    assert 2.4 < epsilon(1.12, 60 * 60_000 // 256, 60_000, 256, 1e-5) < 2.92


def test_sampling_helps_and_replacing_costs():
    pytest.importorskip("dp_accounting")
    few = epsilon(2.0, 100, 1000, 10, 1e-5)
    assert few < epsilon(2.0, 100, 1000, 100, 1e-5) < epsilon(2.0, 100, 1000, 1000, 1e-5)
    assert few < epsilon(2.0, 100, 1000, 10, 1e-5, "replace")


def test_without_noise_or_with_wrong_values():
    assert epsilon(0.0, 1, 10, 5, 1e-5) == math.inf
    with pytest.raises(ValueError, match="11 clients a round of 10"):
        epsilon(1.0, 1, 10, 11, 1e-5)
    with pytest.raises(ValueError, match="rounds: received 0"):
        epsilon(1.0, 0, 10, 5, 1e-5)


def test_the_package_may_be_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"pip install 'fedjax_bal\[privacy\]'"):
        epsilon(1.0, 1, 10, 5, 1e-5)
