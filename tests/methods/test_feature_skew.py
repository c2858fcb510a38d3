"""Noise and rotations by client."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from rounding import FORMULA, SUM

from fedjax_bal.data.batches import append_rows
from fedjax_bal.parts import NoiseByClient, RotationByClient
from fedjax_bal.recipes import feature_skew
from fedjax_bal.types import Batch

MEAN, STD = np.array([0.25, 0.5], np.float32), np.array([0.5, 0.25], np.float32)
FEDERATION = SimpleNamespace(mean=MEAN, std=STD, num_clients=5)
PIXELS = np.random.default_rng(0).uniform(size=(6, 4, 4, 2)).astype(np.float32)
ROWS = np.arange(6, dtype=np.int32)
BATCH = Batch((PIXELS - MEAN) / STD, ROWS, ROWS, np.ones(6, bool))


@jax.jit
def images(part, client, batch):
    """Of a client's changed batch."""
    return part.batch(jax.random.key(3), batch, SimpleNamespace(federation=FEDERATION, client=client)).images


def pixels(part, client, batch=BATCH):
    """What a client's network sees, as pixels."""
    return np.asarray(images(part, client, batch)) * STD + MEAN


@pytest.mark.parametrize(("client", "level"), [(0, 0.0), (1, 0.05), (4, 0.2)])
def test_noise_grows_from_client_to_client(client, level):
    noise = np.asarray(jax.random.normal(jax.random.key(3), PIXELS.shape))
    np.testing.assert_allclose(pixels(NoiseByClient(0.2), client), PIXELS + level * noise, atol=FORMULA)


@pytest.mark.parametrize(("client", "quarters"), [(0, 0), (2, 1), (4, 2)])
def test_angles_grow_from_client_to_client(client, quarters):
    wanted = np.rot90(PIXELS, quarters, axes=(1, 2))
    np.testing.assert_allclose(pixels(RotationByClient(180.0), client), wanted, atol=SUM)


def test_corners_become_black():
    white = (np.ones((1, 10, 10, 2), np.float32) - MEAN) / STD
    turned = pixels(RotationByClient(45.0), 4, BATCH._replace(images=white))[0]
    np.testing.assert_allclose([turned[y, x] for y in (0, 9) for x in (0, 9)], 0.0, atol=FORMULA)
    np.testing.assert_allclose(turned[3:7, 3:7], 1.0, atol=SUM)


@pytest.mark.parametrize("part", [NoiseByClient(0.2), RotationByClient(90.0)])
def test_added_images_stay(part):
    both = append_rows(BATCH, BATCH.images[:2], ROWS[:2])
    np.testing.assert_allclose(pixels(part, 4, both)[6:], PIXELS[:2], atol=FORMULA)
    assert np.abs(pixels(part, 4, both)[:6] - PIXELS).max() > 0.1


def test_a_recipe_has_what_is_asked_for():
    assert feature_skew(0, 0).parts == ()
    assert [part.slot for part in feature_skew(0.1, 90).parts] == ["RotationByClient", "NoiseByClient"]
