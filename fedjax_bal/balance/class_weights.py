"""Weights and sampling probabilities that favour rare classes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from fedjax_bal.balance.arrays import Counts, Number, as_counts


@jax.jit
def inverse_class_probs(class_counts: Counts) -> Float[Array, "*batch C"]:
    r"""Computes sampling probabilities that decrease linearly with a client's class shares.

    $\tilde P_c = (1 - P_c) / (C - 1)$ with $P_c = n_c / n$: a client's only class has probability 0, an absent class
    $1 / (C - 1)$, the maximum.

    Args:
        class_counts: `[..., C]`, 0 or more, of at least two classes.

    Returns:
        Probabilities `[..., C]`; uniform for an empty client.

    Raises:
        ValueError: there are fewer than two classes.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(float(p), 4) for p in inverse_class_probs(jnp.array([90, 10, 0, 0]))]
        [0.0333, 0.3, 0.3333, 0.3333]

    References:
        CBFL (Li et al., 2023), eq. 3 to 5; the sum in eq. 5 is always C - 1.
    """
    counts = as_counts(class_counts)
    classes = counts.shape[-1]
    if classes < 2:
        raise ValueError(
            f"class_counts: received shape {counts.shape}, must have at least 2 classes along its last axis: with one "
            "class there is nothing to balance"
        )
    total = counts.sum(-1, keepdims=True)
    # n - n_c is exact for integers; 1 - n_c / n would lose the precision of a small difference.
    shares = (total - counts) / jnp.where(total == 0, 1.0, total * (classes - 1))
    return jnp.where(total == 0, 1.0 / classes, shares)


@jax.jit
def effective_number_weights(class_counts: Counts, beta: Number) -> Float[Array, "*batch C"]:
    r"""Computes the weight of a sample of each class: one over the class's effective number of samples.

    $w_c = (1 - \beta) / (1 - \beta^{n_c})$. At $\beta = 0$ all samples have equal weights, so that classes keep their
    frequencies; at $\beta = 1$ the weight is $1 / n_c$, so that all classes have equal weights. In between, a class
    gains little from further samples once it has about $1 / (1 - \beta)$ of them.

    Args:
        class_counts: `[..., C]`, 0 or more.
        beta: in [0, 1]; the larger, the more samples it takes until further ones add little.

    Returns:
        `[..., C]`, not normalised; 0 for a class without samples. A constant: no gradient passes, to beta neither.

    Example:
        >>> import jax.numpy as jnp
        >>> effective_number_weights(jnp.array([1, 2, 4, 0]), 1.0).tolist()
        [1.0, 0.5, 0.25, 0.0]
        >>> effective_number_weights(jnp.array([1, 2, 4, 0]), 0.0).tolist()
        [1.0, 1.0, 1.0, 0.0]

    References:
        IWDS (Tang et al.), the sampling weight above eq. 1; Cui et al., "Class-Balanced Loss Based on Effective Number
        of Samples", CVPR 2019, eq. 2. GossipFL's sampler counts an absent class as one sample; as nothing can be drawn
        from it, the other weights are the same.
    """
    counts = as_counts(class_counts)
    beta = jnp.asarray(beta, float)
    absent = counts == 0
    held = jnp.where(absent, 1.0, counts)
    remainder = 1.0 - beta
    # 1 - beta^n is computed by expm1 and log1p: directly, it would cancel to 0 in 32 bits for a beta near 1.
    gained = -jnp.expm1(held * jnp.log1p(-remainder))
    weights = jnp.where(remainder == 0, 1.0 / held, remainder / jnp.where(remainder == 0, 1.0, gained))
    return jax.lax.stop_gradient(jnp.where(absent, 0.0, weights))


@jax.jit
def decayed_beta(
    round: Num[Array, ""] | int,
    beta_0: Number,
    beta_m: Number,
    rho: Number,
) -> Float[Array, ""]:
    r"""Computes beta of a round: class-balanced sampling in early rounds, the classes' own frequencies later.

    $\beta_t = \beta_m + (\beta_0 - \beta_m) \rho^t$.

    Args:
        round: t, from 0.
        beta_0: beta of round 0, in [0, 1].
        beta_m: the limit, in [0, 1].
        rho: factor on the distance to `beta_m` per round, in [0, 1].

    Returns:
        `[]`.

    Example:
        >>> [round(float(decayed_beta(t, 0.9999, 0.8, 0.992)), 4) for t in (0, 10, 200)]
        [0.9999, 0.9845, 0.8401]

    References:
        IWDS (Tang et al.), eq. 1, which states no values; those of the example are the defaults of GossipFL.
    """
    left = jnp.asarray(rho, float) ** round
    # In this form round 0 gives exactly beta_0: near 1, a rounding error would be a large part of 1 - beta.
    return jnp.asarray(beta_m, float) * (1.0 - left) + jnp.asarray(beta_0, float) * left
