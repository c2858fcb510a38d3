"""The curve of IWDS, Figure 3, against its formula."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import iwds_figure3

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", iwds_figure3.PAIRS)
def test_ratios_follow_the_formula(name):
    first, second = iwds_figure3.PAIRS[name]
    betas = np.array([0.0, 0.3, 0.8, 0.9, 0.99, 0.999, 0.9999, 0.99999])
    expected = first * (1 - betas**second) / (second * (1 - betas**first))
    np.testing.assert_allclose(iwds_figure3.ratios(betas, (first, second)), expected, rtol=1e-9)


def test_the_ends_of_the_curve_and_the_value_at_beta_0():
    betas = iwds_figure3.grid()
    curve = iwds_figure3.ratios(betas, (4500.0, 500 / 9))
    assert betas[0] == 0 and curve[0] == pytest.approx(81, rel=1e-12)
    assert curve[-1] == pytest.approx(1, abs=3e-3)
    assert (np.diff(curve) <= 1e-12).all()
    assert iwds_figure3.ratios(np.array([0.9999]), (4500.0, 500 / 9))[0] == pytest.approx(1.24, abs=5e-3)
