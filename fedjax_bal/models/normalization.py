"""Batch normalisation with PyTorch's conventions, which ignores padded rows, and group normalisation."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_bal.models.derivatives import fast_derivative
from fedjax_bal.models.layers import channel_sums, sums_in_one_pass
from fedjax_bal.target import target_platform
from fedjax_bal.types import Model

MOMENTUM = 0.9
EPSILON = 1e-5
GROUPS = 2


class Normalisation(NamedTuple):
    """The kind of normalisation in a network.

    Attributes:
        layers: whether it has layers that `normalises` knows.
        statistics: whether it has running batch statistics.
    """

    layers: bool
    statistics: bool


def normalisation_of(model: Model) -> Normalisation:
    """Returns the kind of normalisation of a network, from its variables."""
    params, stats = jax.eval_shape(model.init, jax.random.key(0))
    paths = jax.tree_util.tree_leaves_with_path(params)
    return Normalisation(any(normalises(key) for path, _ in paths for key in path), bool(jax.tree.leaves(stats)))


def normalises(key: Any) -> bool:
    """Tells whether a key of a parameter's path (a `jax.tree_util` key) names a normalisation layer."""
    name = jax.tree_util.keystr((key,), simple=True).lower()
    return "norm" in name or name.startswith("bn")


def moments(images: Array, real: Bool[Array, " B"] | None, near: Array | None = None) -> tuple[Array, Array, Array]:
    """Computes mean and biased variance `[K]` over real rows and pixels, and their number; all 0 without real rows.

    With values `near` the means, `[K]`, GPUs read the images once instead of twice; the variance loses digits if the
    mean is many standard deviations away from these values.
    """
    rows, height, width, _ = images.shape
    weights = jnp.ones(rows, bool) if real is None else real
    counted = weights[:, None, None, None]
    count = weights.sum() * (height * width)
    share = 1 / jnp.maximum(count, 1)
    if near is not None and target_platform() == "gpu":
        distance = jnp.where(counted, images - near, 0)
        shift, square = (share * total for total in sums_in_one_pass(distance, distance**2))
        return jnp.where(count > 0, near + shift, 0), jnp.maximum(square - shift**2, 0), count
    # Two passes: the difference of the mean square and the squared mean would lose digits.
    mean = channel_sums(jnp.where(counted, images, 0) * share)
    centred = jnp.where(counted, images - mean, 0)
    var = channel_sums(centred * (centred * share))
    return mean, var, count


def normalise(
    kind: str,
    maps: Float[Array, "B H W K"],
    real: Bool[Array, " B"] | None,
    *,
    train: bool,
) -> Array:
    """Adds a layer of the kind "batch" or "group", with the name "norm", to the network that is being defined.

    "group" normalises each image separately, in two groups of channels, so there are no running statistics that differ
    between clients with different classes.

    References:
        Wu and He, "Group Normalization", ECCV 2018. Two groups as in github.com/woodenchild95/FL-Simulator.
    """
    if kind == "group":
        # Two passes: the fast variance is a difference of large numbers, which loses digits in 32 bits.
        return nn.GroupNorm(GROUPS, epsilon=EPSILON, use_fast_variance=False, name="norm")(maps)
    return BatchNorm(name="norm")(maps, real, train=train)


Norm = Callable[..., Array]
batch_norm: Norm = functools.partial(normalise, "batch")
"""The default normalisation of networks."""


class BatchNorm(nn.Module):
    """Normalises each channel over the batch, then scales and shifts it.

    y = scale (x - mean) / sqrt(var + epsilon) + shift. Training uses mean and biased variance of the batch, and updates
    the running ones: running <- 0.9 running + 0.1 batch, with the unbiased batch variance. Evaluation uses the running
    ones.

    Padded rows never enter the statistics. A batch without any real row leaves the running statistics unchanged and is
    normalised with them. The unbiased variance of a single value counts as 0.

    Mean and biased variance of the input are recorded in the collection "norm_inputs", in training and in evaluation.
    Running statistics live in the collection "stats".

    Attributes:
        epsilon: added to a variance before its root is taken.
        affine: whether there are a trainable scale and shift; without them they are 1 and 0.

    References:
        Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate
        Shift", ICML 2015, Algorithms 1 and 2.
    """

    epsilon: float = EPSILON
    affine: bool = True

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Bool[Array, " B"] | None, *, train: bool) -> Array:
        """Normalises images; `real` marks the rows that count, and `train` selects the statistics of this batch."""
        channels = images.shape[-1:]
        running_mean = self.variable("stats", "mean", jnp.zeros, channels)
        running_var = self.variable("stats", "var", jnp.ones, channels)
        scale = self.param("scale", initializers.ones, channels) if self.affine else jnp.ones(channels)
        shift = self.param("bias", initializers.zeros, channels) if self.affine else jnp.zeros(channels)
        running = running_mean.value, running_var.value
        if not train or self.is_initializing():
            self.sow("norm_inputs", "moments", moments(images, real)[:2])
            return affine(images, *running, scale, shift, self.epsilon)
        results: Any = normalise_batch(images, scale, shift, real, running, self.epsilon)
        normalised, mean, var, count = results
        self.sow("norm_inputs", "moments", (mean, var))
        running_mean.value, running_var.value = move_running(running, mean, var, count, 1 - MOMENTUM)
        return normalised


def _forward(
    images: Array, scale: Array, shift: Array, real: Array | None, fallback: tuple[Array, Array], epsilon: float
) -> PyTree:
    results: Any = normalise_batch(images, scale, shift, real, fallback, epsilon)
    return results, (images, scale, real, fallback, results[1:])


def _backward(epsilon: float, saved: PyTree, cotangents: PyTree) -> PyTree:
    """Computes the gradients.

    With d = x - mean and r = 1 / sqrt(var + epsilon), dx = scale r (g - (sum g + d r^2 sum g d) / n), plus the
    gradients through the returned moments.
    """
    images, scale, real, fallback, (mean, var, count) = saved
    of_result, of_mean, of_var, _ = cotangents
    centre, spread = _choose_moments(mean, var, count, fallback)
    rate = 1 / jnp.sqrt(spread + epsilon)
    slope, total = sums_in_one_pass(of_result * (images - centre), of_result)
    divisor = jnp.maximum(count, 1)
    constant = (of_mean - scale * rate * total) / divisor
    linear = (2 * of_var - scale * rate**3 * slope) / divisor
    counted = True if real is None else real[:, None, None, None]
    of_images = of_result * (scale * rate) + jnp.where(counted, constant + (images - centre) * linear, 0)
    of_scale = (slope * rate).astype(scale.dtype)
    # The mask has no derivative, and the fallback, which is running statistics in training, is not trained.
    return of_images.astype(images.dtype), of_scale, total.astype(scale.dtype), None, None


# JAX's own derivative, through mean and variance, would read the images more often.
@fast_derivative(_forward, _backward, nondiff_argnums=(5,))
def normalise_batch(
    images: Float[Array, "B H W K"],
    scale: Float[Array, " K"],
    shift: Float[Array, " K"],
    real: Bool[Array, " B"] | None,
    fallback: tuple[Array, Array],
    epsilon: float,
) -> tuple[Array, Array, Array, Array]:
    """Normalises a batch by its own moments, or by `fallback` if no row is real, then scales and shifts it.

    Returns the normalised images, mean and biased variance `[K]` as `moments` computes them, and the number of values.
    Its derivative reads the images twice: once for two sums over each channel, once for the result.
    """
    # The fallback, in training the running mean, is near the batch's mean.
    mean, var, count = moments(images, real, fallback[0])
    normalised = affine(images, *_choose_moments(mean, var, count, fallback), scale, shift, epsilon)
    return normalised, mean, var, count


def _choose_moments(mean: Array, var: Array, count: Array, fallback: tuple[Array, Array]) -> tuple[Array, Array]:
    """Chooses the moments to normalise by: the batch's own, or the fallback if no row is real."""
    return jnp.where(count > 0, mean, fallback[0]), jnp.where(count > 0, var, fallback[1])


def move_running(
    running: tuple[Array, Array], mean: Array, var: Array, count: Array, rate: float
) -> tuple[Array, Array]:
    """Moves running mean and variance towards those of a batch, `var` biased, of `count` values; 0 moves nothing."""
    # Selected rather than branched on, as `vmap` over clients computes both branches anyway.
    step = jnp.where(count > 0, rate, 0.0)
    # As in PyTorch: the batch is normalised with its biased variance, the running one is unbiased.
    unbiased = var * count / jnp.maximum(count - 1, 1)
    return running[0] + step * (mean - running[0]), running[1] + step * (unbiased - running[1])


def affine(images: Array, mean: Array, var: Array, scale: Array, shift: Array, epsilon: float) -> Array:
    """Shifts and scales each channel to the mean 0 and the deviation 1, then to `shift` and `scale`."""
    return ((images - mean) * (scale / jnp.sqrt(var + epsilon)) + shift).astype(images.dtype)
