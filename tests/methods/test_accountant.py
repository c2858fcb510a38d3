"""Epsilon of noisy means: against divergences worked out by hand, with and without sampling."""

import math
import sys

import numpy as np
import pytest
from rounding import FORMULA
from scipy.special import gammaln, logsumexp

from fedjax_bal.parts import epsilon


def from_divergences(divergences, alpha, delta):
    """Epsilon from Rényi divergences (Canonne et al., 2020)."""
    return (divergences + np.log1p(-1 / alpha) - (math.log(delta) + np.log(alpha)) / (alpha - 1)).min()


def of_all_clients(noise, rounds, delta):
    """T rounds of Gaussian noise have Rényi divergence alpha T / (2 z^2)."""
    alpha = np.concatenate([np.linspace(1.01, 12, 20_000), np.arange(13, 512)])
    return from_divergences(alpha * rounds / (2 * noise**2), alpha, delta)


def of_samples(noise, rate, alpha):
    """The divergence of a round whose clients are drawn one by one, for a whole alpha (Mironov et al., 2019, eq. 6)."""
    k = np.arange(alpha + 1)
    ways = gammaln(alpha + 1) - gammaln(k + 1) - gammaln(alpha - k + 1)
    drawn = ways + (alpha - k) * math.log1p(-rate) + k * math.log(rate) + k * (k - 1) / (2 * noise**2)
    return logsumexp(drawn) / (alpha - 1)


@pytest.mark.parametrize(("noise", "rounds"), [(4.0, 1), (4.0, 20), (1.0, 3)])
@pytest.mark.parametrize(("neighbours", "sensitivity"), [("add_or_remove", 1), ("replace", 2)])
def test_all_clients_in_every_round(noise, rounds, neighbours, sensitivity):
    pytest.importorskip("dp_accounting")
    wanted = of_all_clients(noise / sensitivity, rounds, 1e-5)
    assert epsilon(noise, rounds, 50, 50, 1e-5, neighbours) == pytest.approx(wanted, rel=5e-3)


@pytest.mark.parametrize(
    ("noise", "rounds", "clients", "size"), [(1.12, 14_062, 60_000, 256), (2.0, 30, 1000, 10), (1.0, 100, 100, 10)]
)
def test_a_sample_in_every_round(noise, rounds, clients, size):
    pytest.importorskip("dp_accounting")
    alpha = np.arange(2, 65)
    divergences = rounds * np.array([of_samples(noise, size / clients, own) for own in alpha])
    wanted = from_divergences(divergences, alpha, 1e-5)
    assert epsilon(noise, rounds, clients, size, 1e-5) == pytest.approx(wanted, rel=FORMULA)


def test_the_divergences_are_those_of_a_published_value():
    """TensorFlow Privacy: 60 epochs of 60,000 rows, batches of 256, noise 1.12 give 2.92 by Mironov's older bound."""
    alpha = np.arange(2, 65)
    divergences = 14_062 * np.array([of_samples(1.12, 256 / 60_000, own) for own in alpha])
    assert round((divergences - math.log(1e-5) / (alpha - 1)).min(), 2) == 2.92


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
