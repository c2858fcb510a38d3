"""What tests of CBFL share: a small network with two batch normalisations, and NumPy's view of it and of the generator.

All that is NumPy here takes complex numbers too, so that derivatives come from a step along the imaginary axis, exact
to the last digits, and owe nothing to automatic differentiation.
"""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import toys
from methods import float64

from fedjax_bal.models.generator import Generator, build_generator
from fedjax_bal.types import Model, Outputs, Variables

SHAPE, FEATURES, HIDDEN = (4, 4, 1), 6, 4
LATENT, WIDTH = 3, 2
MOMENTUM, EPSILON, STEP = 0.8, 1e-3, 1e-30
SIZES = {"width": WIDTH, "latent": LATENT}


@cache
def federation():
    """The toy federation with images of 4x4 pixels, in which a class brightens a row."""
    plain, number = toys.federation(), len(toys.federation().labels)
    images = np.random.default_rng(3).normal(size=(number, *SHAPE)).astype(np.float32)
    images[np.arange(number), plain.labels] += 2
    return plain._replace(images=images, auxiliary={"balanced": balanced(plain)})


def balanced(federation):
    """The first three rows of each class."""
    return np.concatenate([np.flatnonzero(federation.labels == c)[:3] for c in range(toys.CLASSES)])


def test_set():
    """All rows of the pool."""
    return federation().images, federation().labels


def simulation(recipe, **changes):
    """A simulation of them, in which nobody loses a row."""
    local = replace(float64.LOCAL, lone_rows="keep")
    settings = {"model": network(), "federation": federation(), "test": test_set(), "local": local}
    return float64.simulation(recipe, **(settings | changes))


@cache
def generator():
    """The smallest generator of such images, in JAX's default precision throughout."""
    net = build_generator(toys.CLASSES, SHAPE, WIDTH, LATENT)
    return net._replace(init=lambda key: jax.tree.map(lambda leaf: leaf.astype(float), net.init(key)))


def simplest(classes, shape, width, latent, note=lambda what, value: None):
    """One product, centred by a running mean, in place of a generator: it compiles at once, and says what it does.

    Args:
        classes: C.
        shape: of the images.
        width: of no meaning here.
        latent: Z.
        note: is told `("made", key words)`, `("trained", labels)` or `("shown", labels)` while a program is traced.
    """
    pixels = shape[0] * shape[1] * shape[2]

    def init(key):
        note("made", jax.random.key_data(key))
        return Variables({"w": jax.random.normal(key, (latent + classes, pixels))}, {"centre": jnp.zeros(pixels)})

    def apply(variables, latents, labels, *, train):
        note("trained" if train else "shown", labels)
        images, mean = _simple(jnp, variables, latents, labels, train)
        after = {"centre": 0.9 * variables.stats["centre"] + 0.1 * mean} if train else variables.stats
        return images.reshape(-1, *shape), variables._replace(stats=after)

    return Generator(init, apply, classes, latent, tuple(shape))


def _simple(np, variables, latents, labels, train):
    weights = variables.params["w"]
    classes = np.eye(len(weights) - latents.shape[1])
    images = np.tanh(np.concatenate([latents, classes[labels]], axis=1) @ weights)
    mean = images.mean(0)
    return images - (mean if train else variables.stats["centre"]), mean


def simply_generated(variables, latents, labels):
    """Images of `simplest` in NumPy, in evaluation."""
    return _simple(np, variables, latents, labels, False)[0].reshape(-1, *SHAPE)


def replace_generators(monkeypatch, new):
    """Has all parts build another network in place of the generator."""
    monkeypatch.setattr("fedjax_bal.methods.cbfl.build_generator", new)


@cache
def network():
    """Two dense layers with batch normalisation and tanh, both tapped, and a classifier; the statistics move fast."""

    def init(key):
        sizes = [("w1", 16, FEATURES), ("w2", FEATURES, HIDDEN), ("w3", HIDDEN, toys.CLASSES)]
        keys = jax.random.split(key, len(sizes))
        params = {name: jax.random.normal(own, (a, b)) / a**0.5 for own, (name, a, b) in zip(keys, sizes, strict=True)}
        fresh = lambda width: {"mean": jnp.zeros(width), "var": jnp.ones(width)}
        return Variables(params, {"first": fresh(FEATURES), "second": fresh(HIDDEN)})

    def apply(variables, images, *, train, key=None, real=None):
        share = jnp.ones(len(images)) if real is None else real.astype(float)
        share = (share / share.sum())[:, None]
        kept, moved, seen, taps = variables.stats, {}, [], []
        maps = images.reshape(len(images), -1)
        for weight, name, shape in (("w1", "first", (1, 2, 3)), ("w2", "second", (2, 2, 1))):
            maps = maps @ variables.params[weight]
            mean = (share * maps).sum(0)
            var = (share * (maps - mean) ** 2).sum(0)
            at = (mean, var) if train else (kept[name]["mean"], kept[name]["var"])
            maps = jnp.tanh((maps - at[0]) / jnp.sqrt(at[1] + EPSILON))
            seen.append((mean, var))
            taps.append(maps.reshape(len(images), *shape))
            new = zip(("mean", "var"), (mean, var), strict=True)
            moved[name] = {k: MOMENTUM * kept[name][k] + (1 - MOMENTUM) * v for k, v in new}
        outputs = Outputs(maps @ variables.params["w3"], maps, tuple(taps), tuple(seen))
        return outputs, variables._replace(stats=moved) if train else variables

    return Model(init, apply, lambda params, features: features @ params["w3"], "toy", toys.CLASSES, SHAPE)


def forward(params, images, stats=None):
    """Logits, taps, and each layer's mean and variance; `stats` for evaluation."""
    maps, seen, taps = images.reshape(len(images), -1), {}, []
    for weight, name, shape in (("w1", "first", (1, 2, 3)), ("w2", "second", (2, 2, 1))):
        maps = maps @ params[weight]
        seen[name] = {"mean": maps.mean(0), "var": ((maps - maps.mean(0)) ** 2).mean(0)}
        at = (stats or seen)[name]
        maps = np.tanh((maps - at["mean"]) / np.sqrt(at["var"] + EPSILON))
        taps.append(maps.reshape(len(images), *shape))
    return maps @ params["w3"], taps, seen


def generated(params, stats, latents, labels, train=False, shape=SHAPE):
    """Images of the generator, and its statistics after them."""
    moved = {}

    def normalise(maps, name, epsilon):
        flat = maps.reshape(-1, maps.shape[-1])
        mean = flat.mean(0)
        var = ((flat - mean) ** 2).mean(0)
        unbiased = var * len(flat) / (len(flat) - 1)
        old = stats[name]
        moved[name] = {"mean": 0.9 * old["mean"] + 0.1 * mean, "var": 0.9 * old["var"] + 0.1 * unbiased}
        centre, spread = (mean, var) if train else (old["mean"], old["var"])
        result = (maps - centre) / np.sqrt(spread + epsilon)
        return result * params[name]["scale"] + params[name]["bias"] if name in params else result

    def convolve(maps, name):
        layer, padded = params[name]["conv"], np.pad(maps, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
        return np.einsum("bhwkij,ijko->bhwo", windows, layer["kernel"]) + layer["bias"]

    dense, doubled = params["dense"]["dense"], lambda maps: maps.repeat(2, axis=1).repeat(2, axis=2)
    leaky = lambda maps: np.where(maps.real > 0, maps, 0.2 * maps)
    hidden = (params["embedding"][labels] * latents) @ dense["kernel"] + dense["bias"]
    maps = normalise(hidden.reshape(len(latents), shape[0] // 4, shape[1] // 4, -1), "norm_0", 1e-5)
    maps = leaky(normalise(convolve(doubled(maps), "conv_0"), "norm_1", 0.8))
    maps = leaky(normalise(convolve(doubled(maps), "conv_1"), "norm_2", 0.8))
    return normalise(np.tanh(convolve(maps, "conv_2")), "norm_3", 1e-5), moved if train else stats


def log_softmax(logits):
    """Row by row."""
    shifted = logits - logits.real.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def cross_entropy(logits, labels):
    """Its mean over rows."""
    return -log_softmax(logits)[np.arange(len(labels)), labels].mean()


def slopes(loss, tree):
    """The gradient of a function of a tree."""
    leaves, structure = jax.tree.flatten(tree)
    found = [np.zeros_like(leaf) for leaf in leaves]
    for place, leaf in enumerate(leaves):
        for at in np.ndindex(leaf.shape):
            moved = leaf.astype(complex)
            moved[at] += 1j * STEP
            found[place][at] = loss(structure.unflatten([*leaves[:place], moved, *leaves[place + 1 :]])).imag / STEP
    return structure.unflatten(found)


def double(tree):
    """On the host, in 64 bits; a tree that was not in 64 bits before would not do."""
    host = jax.device_get(tree)
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(host))
    return host


def assert_close(got, want, tolerance):
    """Compares the leaves of two trees, each relative to its largest value or 1."""

    def one(ours, theirs):
        assert np.abs(ours - theirs).max() < tolerance * max(1, np.abs(theirs).max())

    jax.tree.map(one, jax.device_get(got), want)
