"""Estimates of a client's class composition from its model, and the reward of selecting a balanced client."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_bal.balance.arrays import Counts, Number, as_counts, check_choice
from fedjax_bal.balance.imbalance import kl_to_uniform

# Norm of a class whose gradient is 0, unless another class has a smaller one.
_SMALLEST_NORM = 1e-12
# Added to shares to keep their logarithm finite.
_SMALLEST_SHARE = 1e-15
_LEAST_DIVERGENCE = 1e-6


@jax.jit(static_argnames="mode")
def composition_from_gradients(
    squared_norms: Counts, mode: Literal["inverse", "softmax_inv", "softmax_rel"] = "inverse", beta: Number = 1.0
) -> Float[Array, "*batch C"]:
    r"""Estimates a client's class shares from its model's gradients on a few balanced images.

    The model has learned the classes that the client trained on, so that $g_c$, the squared gradient of the loss of
    class c, is small for them.

    - `"inverse"`: $R_c \propto 1 / g_c$.
    - `"softmax_inv"`: $R_c \propto \exp(\beta / g_c)$; for gradients well below 1 it is close to one-hot.
    - `"softmax_rel"`: $R_c \propto \exp(\beta \min g / g_c)$, which does not depend on the scale of the gradients.

    Args:
        squared_norms: g, `[..., C]`, 0 or more: sums or means over parameters, the same for all classes.
        mode: `"inverse"`, `"softmax_inv"` or `"softmax_rel"`.
        beta: sharpness of the softmaxes, 0 or more.

    Returns:
        Shares `[..., C]` that sum to 1. Finite unless a norm is NaN, which means that the model has diverged.

    Raises:
        ValueError: the mode is unknown.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(float(share), 4) for share in composition_from_gradients(jnp.array([0.01, 0.01, 0.02, 0.04]))]
        [0.3636, 0.3636, 0.1818, 0.0909]

    References:
        FL-CIR (Yang et al., 2021), eq. 7, is `"softmax_inv"` of the gradient of each output neuron's weights. The
        authors' code replaces it by `"inverse"` of the whole network's gradient, with `"softmax_rel"` commented out.
    """
    check_choice("mode", mode, ("inverse", "softmax_inv", "softmax_rel"))
    norms = _clamp_norms(as_counts(squared_norms))
    least = norms.min(-1, keepdims=True)
    if mode == "inverse":
        shares = least / norms
        return shares / shares.sum(-1, keepdims=True)
    # The exponent minus its largest value: min g / g - 1, which is divided by min g for 1 / g. It is never above 0, so
    # exp() can underflow but not overflow.
    exponent = beta * ((least - norms) / norms)
    return jax.nn.softmax(exponent / least if mode == "softmax_inv" else exponent)


def _clamp_norms(norms: Float[Array, "*batch C"]) -> Float[Array, "*batch C"]:
    """Clamps norms to the normal numbers; zeros become at most the smallest other norm."""
    limits = jnp.finfo(norms.dtype)
    none = norms < limits.tiny
    smallest = jnp.where(none, jnp.inf, norms).min(-1, keepdims=True)
    return jnp.minimum(jnp.where(none, jnp.minimum(smallest, _SMALLEST_NORM), norms), limits.max)


@jax.jit(static_argnames="mode")
def composition_reward(composition: Counts, mode: Literal["bounded", "literal"] = "bounded") -> Float[Array, "*batch"]:
    r"""Computes the reward for selecting a client of this composition; it is larger for balanced ones.

    - `"bounded"`: $1 / (\log C + KL(U \| R))$, between 0 and $1 / \log C$.
    - `"literal"`: $1 / KL(R \| U)$ with a divergence of at least $10^{-6}$, so at most a million.

    Args:
        composition: R, `[..., C]`; normalised inside. Zeros are allowed; a row of zeros counts as uniform.
        mode: `"bounded"` or `"literal"`.

    Returns:
        One over nats, `[...]`; NaN for a composition with NaN.

    Raises:
        ValueError: the mode is unknown.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(float(r), 4) for r in composition_reward(jnp.array([[0.1] * 10, [1.0] + [0.0] * 9]))]
        [0.4343, 0.0322]
        >>> round(float(composition_reward(jnp.array([1.0, 0.0]), "literal")), 4)
        1.4427

    References:
        FL-CIR, eq. 9, is `"literal"`. The authors' code uses the cross-entropy of the uniform distribution against the
        composition, which is `"bounded"`: an unbounded reward would dwarf the exploration bonus.
    """
    check_choice("mode", mode, ("bounded", "literal"))
    shares = as_counts(composition)
    total = shares.sum(-1, keepdims=True)
    shares = jnp.where(total == 0, 1.0 / shares.shape[-1], shares / jnp.where(total == 0, 1.0, total))
    divergence = -jnp.log(shares + _SMALLEST_SHARE).mean(-1) if mode == "bounded" else kl_to_uniform(shares)
    return 1.0 / jnp.maximum(divergence, _LEAST_DIVERGENCE)
