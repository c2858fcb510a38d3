"""Models without any secret: features that are a rotation of the pixels, and a network of one dense layer."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal.types import Model, Outputs, Variables

SIDE, CLASSES = 4, 3
PIXELS = SIDE**2
RNG = np.random.default_rng(3)
TURN = np.linalg.qr(RNG.normal(size=(PIXELS, PIXELS)))[0].astype(np.float32)
HEAD = (0.1 * RNG.normal(size=(PIXELS, CLASSES))).astype(np.float32)
BIAS = np.array([0.1, -0.2, 0.0], np.float32)
COARSE = RNG.normal(size=(250, 2, 2, 1)).repeat(2, 1).repeat(2, 2)
IMAGES = (COARSE + 0.3 * RNG.normal(size=(250, SIDE, SIDE, 1))).astype(np.float32)


def _model(apply, name="linear", shape=(SIDE, SIDE, 1)):
    return Model(lambda key: None, apply, None, name, CLASSES, shape)


def _turned(variables, images, *, train, key=None, real=None):
    features = images.reshape(len(images), -1) @ variables.params["turn"]
    return Outputs(features @ HEAD, features), variables


def _dense(variables, images, *, train, key=None, real=None):
    flat = images.reshape(len(images), -1)
    return Outputs(flat @ variables.params["kernel"] + variables.params["bias"], flat), variables


ROTATION = _model(_turned), Variables({"turn": jnp.asarray(TURN)}, {})
DENSE = _model(_dense), Variables({"kernel": jnp.asarray(HEAD), "bias": jnp.asarray(BIAS)}, {})


def odd(side=6):
    """A rotation's model for images that no attack can make."""
    return ROTATION[0]._replace(input_shape=(side, side, 1))


def features(images):
    """Of the rotation, in NumPy."""
    return np.asarray(images).reshape(len(images), -1) @ TURN


def probabilities(images):
    """Of the dense layer, in NumPy."""
    logits = np.float64(images).reshape(len(images), -1) @ HEAD + BIAS
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def gradients(images, labels):
    """Of the dense layer's cross-entropy with class probabilities `[M, C]`, for each image, in NumPy."""
    error = probabilities(images) - labels
    return {"kernel": np.float64(images).reshape(len(images), -1)[:, :, None] * error[:, None], "bias": error}


def error(images, truth):
    """Mean squared error of each image."""
    return ((np.asarray(images) - np.asarray(truth)) ** 2).mean((1, 2, 3))


def same(left, right):
    """Whether two trees are equal to the bit."""
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True))
