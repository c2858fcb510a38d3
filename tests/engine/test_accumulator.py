"""Sums over chains, taken a few at a time, against NumPy in double precision."""

import jax.numpy as jnp
import numpy as np
import pytest
from rounding import FORMULA, SUM

from fedjax_bal.engine.device.accumulator import Accumulator, ChainWeights, UpdateDiversity


def tallied(deltas, weights, counted, width):
    zeros = {"w": jnp.zeros(deltas.shape[1])}
    tally = Accumulator(zeros, zeros, {"n": jnp.zeros(())}, UpdateDiversity(jnp.zeros(()), zeros, jnp.zeros(())))
    for start in range(0, len(deltas), width):
        part = slice(start, start + width)
        reports = {"n": jnp.asarray(counted[part], jnp.float32)}
        own = {"w": jnp.asarray(deltas[part])}
        tally = tally.add(ChainWeights(weights[part], 2 * weights[part], counted[part]), own, own, reports)
    return tally


@pytest.mark.slow
@pytest.mark.parametrize(("width", "spread"), [(1, 1e-4), (3, 1.0), (3, 1e-4), (8, 1e-4)])
def test_sums_mean_and_spread(width, spread):
    rng = np.random.default_rng(0)
    # far from zero and close together, where a difference of squares would lose all digits
    deltas = (5 + spread * rng.normal(size=(24, 50))).astype(np.float32)
    counted = rng.random(24) < 0.7
    counted[[0, 3, 6, 8, 9, 12, 15, 16, 18, 21]] = True  # what comes first in a bucket is never padding
    weights = (rng.random(24) * counted).astype(np.float32)
    tally = tallied(deltas, jnp.asarray(weights), jnp.asarray(counted), width)
    exact = deltas[counted].astype(float)
    np.testing.assert_allclose(tally.delta["w"], weights.astype(float) @ deltas, rtol=SUM)
    np.testing.assert_allclose(tally.stats["w"], 2 * weights.astype(float) @ deltas, rtol=SUM)
    np.testing.assert_allclose(tally.spread.mean["w"], exact.mean(0), rtol=FORMULA)
    assert float(tally.reports["n"]) == counted.sum() == float(tally.spread.count)
    wanted = ((exact - exact.mean(0)) ** 2).sum(1).mean()
    assert float(tally.spread.diversity) == pytest.approx(wanted, rel=1e-4 if spread == 1 else 2e-2)


def test_nothing_counted_has_no_diversity():
    assert np.isnan(UpdateDiversity(jnp.zeros(()), {}, jnp.zeros(())).diversity)
