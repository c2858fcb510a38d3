"""Batch normalisation with another epsilon and without scale and shift, against float64 and JAX's own derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_bal.models.normalization import BatchNorm

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(1, 0.7, (5, 2, 3, 2)).astype(np.float32)
STATS = {"mean": jnp.array([0.5, -1.0]), "var": jnp.array([0.3, 2.0])}
PARAMS = {"scale": jnp.array([2.0, -0.5]), "bias": jnp.array([1.0, 0.0])}
WEIGHTS = RNG.normal(size=IMAGES.shape).astype(np.float32)


def normalised(images, mean, var, epsilon, params):
    scale, shift = (np.float64(params[name]) for name in ("scale", "bias")) if params else (1.0, 0.0)
    return (np.float64(images) - mean) / np.sqrt(np.float64(var) + epsilon) * scale + shift


@pytest.mark.parametrize(("epsilon", "affine"), [(0.8, True), (1e-5, False), (0.8, False)])
def test_output_and_running_statistics_equal_float64(epsilon, affine):
    layer, params = BatchNorm(epsilon, affine), PARAMS if affine else {}
    initial = layer.init(jax.random.key(0), IMAGES, None, train=False)
    assert set(initial.get("params", {})) == set(params)
    variables = {"params": params, "stats": STATS}
    trained, changed = layer.apply(variables, IMAGES, None, train=True, mutable=["stats"])
    flat = np.float64(IMAGES).reshape(-1, 2)
    wanted = normalised(IMAGES, flat.mean(0), flat.var(0), epsilon, params)
    np.testing.assert_allclose(trained, wanted, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(changed["stats"]["mean"], 0.9 * STATS["mean"] + 0.1 * flat.mean(0), rtol=1e-5)
    np.testing.assert_allclose(changed["stats"]["var"], 0.9 * STATS["var"] + 0.1 * flat.var(0, ddof=1), rtol=1e-5)
    evaluated = layer.apply(variables, IMAGES, None, train=False)
    wanted = normalised(IMAGES, np.float64(STATS["mean"]), STATS["var"], epsilon, params)
    np.testing.assert_allclose(evaluated, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("epsilon", "affine"), [(0.8, True), (1e-5, False)])
def test_the_gradient_equals_jax_s_own(epsilon, affine):
    layer, params = BatchNorm(epsilon, affine), PARAMS if affine else {}

    def loss(params, images):
        output, _ = layer.apply({"params": params, "stats": STATS}, images, None, train=True, mutable=["stats"])
        return (output * WEIGHTS).sum()

    def plainly(params, images):
        mean, var = images.mean((0, 1, 2)), images.var((0, 1, 2))
        output = (images - mean) / jnp.sqrt(var + epsilon) * params.get("scale", 1.0) + params.get("bias", 0.0)
        return (output * WEIGHTS).sum()

    got, wanted = (jax.jit(jax.grad(function, (0, 1)))(params, IMAGES) for function in (loss, plainly))
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5), got, wanted)
