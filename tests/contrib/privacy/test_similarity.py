"""Nearest neighbours against brute force, and how near an attack came against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from rounding import FORMULA, STEPS, SUM

from fedjax_bal.contrib.privacy import nearest, recovered

RNG = np.random.default_rng(0)
POOL = RNG.normal(size=(23, 4, 5, 3)).astype(np.float32)
IMAGES = RNG.normal(size=(6, 4, 5, 3)).astype(np.float32)


def brute(images, pool):
    """Rows and root mean squares, one pair at a time, in float64."""
    distances = np.array([[np.sqrt(np.mean((np.float64(x) - y) ** 2)) for y in pool] for x in images])
    return distances.argmin(1), distances.min(1)


@pytest.mark.parametrize("chunk", [1, 9, 23, 1000])
def test_equals_brute_force_in_any_chunks(chunk):
    rows, distances = nearest(IMAGES, POOL, chunk=chunk)
    expected = brute(IMAGES, POOL)
    assert rows.dtype == jnp.int32 and distances.dtype == jnp.float32
    np.testing.assert_array_equal(rows, expected[0])
    np.testing.assert_allclose(distances, expected[1], rtol=SUM)


@pytest.mark.parametrize("chunk", [9, 23])
def test_a_copy_is_found_at_distance_0_however_bright(chunk):
    pool = POOL + 300
    rows, distances = nearest(pool[[22, 3]], pool, chunk=chunk)
    assert rows.tolist() == [22, 3]
    assert distances.tolist() == [0.0, 0.0]


def test_what_is_not_finite_is_never_near():
    images, pool = IMAGES.copy(), POOL.copy()
    images[1, 0, 0, 0] = np.nan
    pool[5], pool[6, 1, 1, 1] = np.inf, np.nan
    rows, distances = nearest(images, pool, chunk=9)
    kept = np.r_[0:5, 7:23]
    expected = brute(IMAGES, pool[kept])
    others = np.array([0, 2, 3, 4, 5])
    np.testing.assert_array_equal(np.asarray(rows)[others], kept[expected[0]][others])
    assert (int(rows[1]), float(distances[1])) == (0, np.inf)


@pytest.mark.parametrize(
    ("images", "pool", "chunk", "message"),
    [
        (IMAGES, POOL[:, :3], 5, r"\(6, 4, 5, 3\) and a pool of shape \(23, 3, 5, 3\)"),
        (IMAGES, POOL[:0], 5, "D of at least 1"),
        (IMAGES, POOL, 0, "chunk: received 0"),
    ],
)
def test_refuses(images, pool, chunk, message):
    with pytest.raises(ValueError, match=message):
        nearest(images, pool, chunk=chunk)


def test_recovery_against_numpy():
    correlations = [np.corrcoef(x.ravel(), y.ravel())[0, 1] for x, y in zip(IMAGES, POOL[:6], strict=True)]
    np.testing.assert_allclose(recovered(IMAGES, POOL[:6]), correlations, rtol=STEPS, atol=FORMULA)


def test_recovery_of_a_copy_and_of_a_constant():
    truth = np.stack([POOL[0], POOL[1], np.zeros_like(POOL[0])])
    images = np.stack([POOL[0], 3 * POOL[1] + 2, POOL[2]])
    np.testing.assert_allclose(recovered(images, truth), [1.0, 1.0, 0.0], atol=FORMULA)
