"""Differential privacy: clipping and noise against NumPy."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_bal import data, models, recipes, simulate
from fedjax_bal.parts import PrivateMean

SERVER = SimpleNamespace(key=jax.random.key(0))


def deltas(clients, size):
    rng = np.random.default_rng(0)
    return {"a": rng.normal(size=(clients, size)), "b": rng.normal(size=(clients, 2, 3))}


def test_updates_are_clipped_and_count_alike():
    own = deltas(4, 5)
    own["a"][1], own["b"][1], own["a"][3] = 0.01, 0.01, np.nan
    norms = np.sqrt((own["a"] ** 2).sum(1) + (own["b"] ** 2).sum((1, 2)))
    got = PrivateMean(0.5, 0.0).reduce(jax.tree.map(jnp.asarray, own), jnp.array([0.7, 0.2, 0.1, 0.0]), SERVER)
    for name, leaf in own.items():
        clipped = [leaf[k] * min(1.0, 0.5 / norms[k]) for k in range(3)]  # the fourth doesn't deliver
        np.testing.assert_allclose(got[name], sum(clipped) / 3, rtol=1e-5)


def test_the_noise_has_its_scale_and_is_the_rounds_own():
    clients, zero = 8, {"a": jnp.zeros((8, 20_000)), "b": jnp.zeros((8, 100, 100))}
    reduce = lambda seed: PrivateMean(0.5, 3.0).reduce(
        zero, jnp.ones(clients) / clients, SimpleNamespace(key=jax.random.key(seed))
    )
    noise, again, other = reduce(0), reduce(0), reduce(1)
    for name in noise:
        assert np.std(noise[name]) == pytest.approx(3.0 * 0.5 / clients, rel=0.03)
        assert abs(np.mean(noise[name])) < 5 * 3.0 * 0.5 / clients / 100
        assert np.array_equal(noise[name], again[name])
        assert not np.array_equal(noise[name], other[name])
    assert abs(np.corrcoef(noise["a"][:10_000], np.ravel(noise["b"]))[0, 1]) < 0.05


def test_whatever_would_have_no_noise_is_refused():
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 2
    images = rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    federation = data.federate(images, labels, np.array_split(np.arange(40), 4), 2)

    with pytest.raises(ValueError, match="dp: received ControlVariates, whose report or probe"):
        recipe = recipes.combine(recipes.scaffold(), recipes.dp())
        simulate(recipe, models.build("mlp", 2, (8, 8, 1)), federation, (images, labels), rounds=1, seed=0)
