"""Divergence of a batch's statistics from the running statistics of batch normalisation."""

from collections.abc import Sequence
from typing import Literal

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_bal.balance.arrays import check_choice

_EPSILON = 1e-6


@jax.jit(static_argnames="mode")
def batch_norm_statistics_loss(
    means: Sequence[Float[Array, " _"]],
    variances: Sequence[Float[Array, " _"]],
    running_means: Sequence[Float[Array, " _"]],
    running_variances: Sequence[Float[Array, " _"]],
    mode: Literal["mean", "sum"] = "mean",
) -> Float[Array, ""]:
    r"""Computes the divergence of batch normalisation's running statistics from the observed ones, as normal laws.

    With $\hat\mu, \hat v$ the mean and biased variance of a channel of a layer's input and $\mu, v$ the running ones,
    each channel adds

    $$KL(N(\hat\mu, \hat v) \| N(\mu, v)) = \frac12 \log \frac{v + \epsilon}{\hat v + \epsilon} +
    \frac{\hat v + (\hat\mu - \mu)^2}{2 v + \epsilon} - \frac12, \qquad \epsilon = 10^{-6}.$$

    It is summed over the channels of a layer, then

    - `"mean"`: averaged over layers;
    - `"sum"`: summed over layers.

    Args:
        means: observed means, `[channels]` for each layer; layers may differ in their number of channels.
        variances: observed biased variances, shaped like `means`.
        running_means: shaped like `means`; constants, no gradient reaches them.
        running_variances: shaped like `means`; constants, no gradient reaches them.
        mode: `"mean"` or `"sum"`.

    Returns:
        Nats, `[]`; 0 without layers. Finite for constant channels; for equal statistics slightly below 0, by
        $\epsilon / 4v$ per channel.

    Raises:
        ValueError: the mode is unknown.
        AssertionError: the sequences differ in length or shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> one, two = [jnp.ones(3), jnp.ones(5)], [jnp.full(3, 2.0), jnp.ones(5)]
        >>> round(float(batch_norm_statistics_loss(two, one, one, one)), 4)
        0.75
        >>> round(float(batch_norm_statistics_loss(two, one, one, one, "sum")), 4)
        1.5

    References:
        CBFL (Li et al., 2023), eq. 8, is `"sum"`. The authors' code is `"mean"`, to which the weights of this loss (10
        in the paper, 3 in the code for CIFAR-10) belong. The code has no $\epsilon$ in the logarithm, which is infinite
        for a constant channel.
    """
    check_choice("mode", mode, ("mean", "sum"))
    chex.assert_trees_all_equal_shapes(*map(list, (means, variances, running_means, running_variances)))
    layers = zip(means, variances, running_means, running_variances, strict=True)
    total = sum((_divergence(*layer).sum() for layer in layers), jnp.zeros(()))
    return total / max(len(means), 1) if mode == "mean" else total


def _divergence(
    mean: Float[Array, " K"],
    variance: Float[Array, " K"],
    stored_mean: Float[Array, " K"],
    stored: Float[Array, " K"],
) -> Float[Array, " K"]:
    """Computes the divergence of each channel of a layer, in nats."""
    stored_mean, stored = jax.lax.stop_gradient((stored_mean, stored))
    spread = 0.5 * jnp.log((stored + _EPSILON) / (variance + _EPSILON))
    return spread + (variance + (mean - stored_mean) ** 2) / (2.0 * stored + _EPSILON) - 0.5
