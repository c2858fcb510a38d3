"""Contexts, batches and results made by hand, so that a part's method can be called without a run."""

import jax
import jax.numpy as jnp
import numpy as np
import reference
import toys
from rounding import FORMULA

from fedjax_bal.types import Batch, Context, Outputs, Variables

ROWS, CLASSES, FEATURES = 7, toys.CLASSES, toys.FEATURES
COUNTS = np.array([9, 2, 0, 4])
LABELS = np.array([0, 1, 3, 0, 0, 3, 1])
REAL = np.array([True, True, True, True, True, False, True])
"""A batch with one row that is padding, of a client that lacks a class."""


def draw(*shape, seed=0):
    """Normal numbers."""
    return np.random.default_rng(seed).normal(size=shape)


def context(**given):
    """A client of the toy federation with the counts above, at round 0."""
    fields = {
        **dict.fromkeys(Context._fields), "steps_state": {}, "round": jnp.array(0), "class_counts": jnp.array(COUNTS),
        "size": jnp.array(COUNTS.sum()), "broadcast": {}, "memory": {}, "prepared": {}, "federation": toys.federation(),
        "model": toys.network(),
    }  # fmt: skip
    return Context(**(fields | given))


def batch():
    """The batch, with the images of some rows of the toy federation."""
    rows = np.arange(ROWS)
    images = jnp.asarray(toys.federation().images[rows], float)
    return Batch(images, jnp.array(LABELS), jnp.array(rows), jnp.array(REAL))


def outputs(logits, features=None):
    """A forward pass with these results."""
    return Outputs(jnp.asarray(logits), jnp.asarray(draw(ROWS, FEATURES, seed=9) if features is None else features))


def weights(seed):
    """Weights of the toy network."""
    with jax.ensure_compile_time_eval():  # also where a loss that is traced asks for them
        return jax.tree.map(np.asarray, jax.jit(toys.network().init)(jax.random.key(seed)).params)


def variables(seed):
    """The same, as a model's variables."""
    return Variables(weights(seed), {})


def value_and_gradient(function, at):
    """In NumPy."""
    found = jax.jit(jax.value_and_grad(lambda x: jnp.asarray(function(x)).sum()))(jnp.asarray(at))
    return jax.tree.map(np.asarray, found)


def check(function, transcription, at, tolerance=1e-10):
    """Compares value and gradient with a transcription's, the latter by central differences."""
    value, gradient = value_and_gradient(function, at)
    wanted, slopes, step = transcription(at), np.zeros_like(at), 1e-5
    for place in np.ndindex(at.shape):
        ahead, behind = at.copy(), at.copy()
        ahead[place] += step
        behind[place] -= step
        slopes[place] = (transcription(ahead) - transcription(behind)) / (2 * step)
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(value, wanted, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(gradient, slopes, rtol=FORMULA, atol=1e-7)
    assert np.abs(slopes).max() > 1e-3


def received(images):
    """Logits of the received model."""
    return reference.forward(weights(5), np.asarray(images).reshape(ROWS, -1))[1]


def softmax(row):
    """Of one row."""
    return np.exp(row) / np.exp(row).sum()


def directions(rows):
    """Rows of length 1."""
    return np.array([row / np.linalg.norm(row) for row in rows])
