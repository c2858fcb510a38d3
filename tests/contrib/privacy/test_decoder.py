"""Decoders of features: their losses against NumPy, and that they invert what can be inverted."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from contrib.privacy.linear import IMAGES, ROTATION, error, features, odd
from rounding import FORMULA, STEPS, SUM

from fedjax_bal.contrib.privacy import decode, features_of, fit_decoder, kl_to_standard_normal
from fedjax_bal.models import build

OWN, SECRET = IMAGES[:200], IMAGES[200:]
fit = partial(fit_decoder, iterations=600, batch_size=32, rate=0.01, width=8, latent=3)


@cache
def fitted(kind, seed=0):
    return fit(jax.random.key(seed), *ROTATION, OWN, kind=kind)


@pytest.mark.parametrize("kind", quick.only(["upcnn", "vae"]))
def test_gives_back_images_whose_features_are_a_rotation(kind):
    found = fitted(kind)
    assert found.losses.shape == (600,)
    assert found.losses[-50:].mean() < 0.5 * found.losses[:10].mean()
    errors = error(decode(found, features(SECRET)), SECRET)
    assert errors.mean() < 0.1 * SECRET.var()
    wrong = error(decode(found, features(SECRET[::-1])), SECRET)
    assert errors.mean() < 0.1 * wrong.mean()


@pytest.mark.slow
def test_upcnn_loss_is_the_squared_error_of_what_it_decodes():
    found = fitted("upcnn")
    value = found.decoder.apply({"params": found.variables.params}, *batch(found), jnp.zeros((50, 0)))
    assert float(value) == pytest.approx(float(error(decode(found, features(SECRET)), SECRET).mean()), rel=STEPS)


@pytest.mark.slow
def test_vae_loss_against_numpy():
    found = fitted("vae")
    params, noise = {"params": found.variables.params}, np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32)
    network, (measured, images) = found.decoder, batch(found)
    mean, log_var = network.apply(params, images, method=lambda net, images: net.encoder(images))
    latents = np.asarray(mean) + np.exp(np.asarray(log_var)) ** 0.5 * noise
    again = np.asarray(network.apply(params, measured, latents, method="decode"))
    expected = (0.5 * ((again - images) ** 2).reshape(50, -1).sum(1) + divergence(mean, log_var)).mean()
    assert float(network.apply(params, measured, images, noise)) == pytest.approx(expected, rel=STEPS)


def batch(found):
    """Features measured as NumPy measures those of the attacker's own images, and images."""
    own = features(OWN)
    spread = np.sqrt(((own - own.mean(0)) ** 2).mean())
    np.testing.assert_allclose(found.variables.stats["mean"], own.mean(0), rtol=1e-3, atol=SUM)
    assert float(found.variables.stats["spread"]) == pytest.approx(spread, rel=STEPS)
    return (features(SECRET) - own.mean(0)) / spread, SECRET


def divergence(mean, log_var):
    """Of each row's normal law from the standard one: the expected difference of log densities."""
    total = np.zeros(len(mean))
    for z in range(mean.shape[1]):
        m, deviation = np.float64(mean[:, z]), np.exp(np.float64(log_var[:, z]) / 2)
        total += -np.log(deviation) + (deviation**2 + m**2) / 2 - 0.5
    return total


def test_divergence_against_numpy_and_sampling():
    rng = np.random.default_rng(1)
    mean, log_var = rng.normal(size=(2, 4, 3))
    got = kl_to_standard_normal(jnp.asarray(mean), jnp.asarray(log_var))
    np.testing.assert_allclose(got, divergence(mean, log_var), rtol=SUM)
    noise = rng.normal(size=(200_000, 4, 3))
    drawn = mean + np.exp(log_var / 2) * noise
    ratio = (-(noise**2) / 2 - log_var / 2 + drawn**2 / 2).sum(-1)
    np.testing.assert_allclose(got, ratio.mean(0), atol=0.1)


@pytest.mark.slow
def test_latents_are_0_or_drawn_by_the_key():
    prototypes = features(SECRET[:5])
    draw = lambda kind, seed: np.asarray(decode(fitted(kind), prototypes, jax.random.key(seed)))
    assert np.array_equal(draw("vae", 0), draw("vae", 0))
    assert not np.array_equal(draw("vae", 0), draw("vae", 1))
    assert np.array_equal(draw("upcnn", 0), decode(fitted("upcnn"), prototypes))
    found, latents = fitted("vae"), np.zeros((5, 3), np.float32)
    measured = (prototypes - found.variables.stats["mean"]) / found.variables.stats["spread"]
    expected = found.decoder.apply({"params": found.variables.params}, measured, latents, method="decode")
    np.testing.assert_allclose(decode(found, prototypes), expected, rtol=STEPS, atol=SUM)


@pytest.mark.parametrize("chunk", [3, 7, 100])
def test_features_in_chunks_are_those_of_the_model_in_evaluation(chunk):
    model = build("tiny_bn", 3, (8, 8, 1))
    variables = jax.jit(model.init)(jax.random.key(0))
    images = np.random.default_rng(1).normal(size=(7, 8, 8, 1)).astype(np.float32)
    expected = model.apply(variables, images, train=False)[0].features
    np.testing.assert_allclose(features_of(model, variables, images, chunk=chunk), expected, rtol=SUM, atol=FORMULA)


WRONG = {"iterations": 0, "batch_size": 1.5, "width": 1, "latent": 0, "rate": float("nan")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "vea"}, "kind: received 'vea'"),
        ({"images": OWN[:, :2]}, r"images: received shape \(200, 2, 4, 1\)"),
        ({"images": OWN[:0]}, "A of at least 1"),
        ({"model": odd(), "images": np.zeros((2, 6, 6, 1))}, r"received \(6, 6, 1\).*multiples of 4"),
        *(({name: value}, f"{name}: received {value}") for name, value in WRONG.items()),
    ],
)
def test_refuses(changes, message):
    settings = {"key": jax.random.key(0), "model": ROTATION[0], "variables": ROTATION[1], "images": OWN} | changes
    with pytest.raises(ValueError, match=message):
        fit_decoder(**settings)
