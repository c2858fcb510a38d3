"""Batch normalisation in PyTorch's conventions that knows which rows are real."""

import flax.linen as nn
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Bool, Float

MOMENTUM = 0.9
EPSILON = 1e-5


class BatchNorm(nn.Module):
    """Normalise each channel over the batch, then scale and shift it.

    y = scale (x - mean) / sqrt(var + 1e-5) + shift. In training, mean and biased variance of the batch are used, and
    the running ones move: running <- 0.9 running + 0.1 batch, where the running variance takes the unbiased batch
    variance. In evaluation the running ones are used and stay.

    Rows that only fill up a batch never enter the statistics. A batch without any real row leaves the running
    statistics as they are and is normalised with them. A batch of a single value has no unbiased variance; 0 is taken.

    Mean and biased variance of the input are recorded in the collection "norm_inputs", in training and in evaluation.
    Running statistics live in the collection "stats".

    References:
        Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate
        Shift", ICML 2015, Algorithms 1 and 2.
    """

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Bool[Array, " B"] | None, *, train: bool) -> Array:
        """Normalise images.

        Args:
            images: `[B, H, W, K]`.
            real: `Bool[B]`, the rows that count; None for all.
            train: whether to use, and learn from, the statistics of this batch.

        Returns:
            `[B, H, W, K]`.

        Example:
            >>> import jax
            >>> images = jnp.array([1.0, 3.0, 100.0]).reshape(3, 1, 1, 1)
            >>> real = jnp.array([True, True, False])
            >>> variables = BatchNorm().init(jax.random.key(0), images, real, train=False)
            >>> normalised, updated = BatchNorm().apply(variables, images, real, train=True, mutable=["stats"])
            >>> [round(float(value), 3) for value in normalised[:2].ravel()]
            [-1.0, 1.0]
            >>> [round(float(updated["stats"][name][0]), 3) for name in ("mean", "var")]
            [0.2, 1.1]
        """
        channels = images.shape[-1:]
        running_mean = self.variable("stats", "mean", jnp.zeros, channels)
        running_var = self.variable("stats", "var", jnp.ones, channels)
        scale = self.param("scale", initializers.ones, channels)
        shift = self.param("bias", initializers.zeros, channels)
        mean, var, count = moments(images, real)
        self.sow("norm_inputs", "moments", (mean, var))
        if train and not self.is_initializing():
            step = jnp.where(count > 0, 1 - MOMENTUM, 0.0)
            unbiased = var * count / jnp.maximum(count - 1, 1)
            mean = jnp.where(count > 0, mean, running_mean.value)
            var = jnp.where(count > 0, var, running_var.value)
            running_mean.value += step * (mean - running_mean.value)
            running_var.value += step * (unbiased - running_var.value)
        else:
            mean, var = running_mean.value, running_var.value
        return (images - mean) * (scale / jnp.sqrt(var + EPSILON)) + shift


def moments(images: Array, real: Bool[Array, " B"] | None) -> tuple[Array, Array, Array]:
    """Mean and biased variance of each channel over real rows and pixels.

    Args:
        images: `[B, H, W, K]`.
        real: `Bool[B]`, the rows that count; None for all.

    Returns:
        Mean `[K]`, biased variance `[K]`, and the number of values `[]` that they are taken over. Both are 0 where
        there is no real row.

    Example:
        >>> mean, var, count = moments(jnp.array([1.0, 3.0, 9.0]).reshape(3, 1, 1, 1), jnp.array([True, True, False]))
        >>> float(mean[0]), float(var[0]), int(count)
        (2.0, 1.0, 2)
    """
    rows, height, width, _ = images.shape
    weights = jnp.ones(rows, bool) if real is None else real
    counted = weights[:, None, None, None]
    count = weights.sum() * (height * width)
    divisor = jnp.maximum(count, 1)
    mean = jnp.where(counted, images, 0).sum((0, 1, 2)) / divisor
    var = (jnp.where(counted, images - mean, 0) ** 2).sum((0, 1, 2)) / divisor
    return mean, var, count
