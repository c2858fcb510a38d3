"""How much a sample of each class should count, from the effective number of samples of its class."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num


@jax.jit
def effective_number_weights(
    class_counts: Num[Array, "*batch C"], beta: Num[Array, ""] | float
) -> Float[Array, "*batch C"]:
    r"""Weight of one sample of each class: one over the effective number of samples of its class.

    $w_c = (1 - \beta) / (1 - \beta^{n_c})$. At $\beta = 0$ all samples weigh the same, so that classes count as they
    occur; at $\beta = 1$ it is $1 / n_c$, so that all classes count the same. Between the two, a class stops gaining
    from further samples once it has about $1 / (1 - \beta)$ of them.

    Args:
        class_counts: `[..., C]`.
        beta: how slowly further samples lose their value, in [0, 1].

    Returns:
        `[..., C]`, not normalised; 0 for a class without samples. A constant: no gradient passes.

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
    counts, beta = jnp.asarray(class_counts, float), jnp.asarray(beta, float)
    present = counts > 0
    held = jnp.where(present, counts, 1.0)
    remainder = 1.0 - beta
    # 1 - beta^n without the cancellation that would leave nothing of it in 32 bits.
    gained = -jnp.expm1(held * jnp.log1p(-remainder))
    weights = jnp.where(remainder > 0, remainder / jnp.where(remainder > 0, gained, 1.0), 1.0 / held)
    return jax.lax.stop_gradient(jnp.where(present, weights, 0.0))


@jax.jit
def decayed_beta(
    round: Num[Array, ""] | int,
    beta_0: Num[Array, ""] | float,
    beta_m: Num[Array, ""] | float,
    rho: Num[Array, ""] | float,
) -> Float[Array, ""]:
    r"""The beta of a round: balanced classes early, classes as they occur later.

    $\beta_t = \beta_m + (\beta_0 - \beta_m) \rho^t$.

    Args:
        round: t, from 0.
        beta_0: of round 0, in [0, 1].
        beta_m: what it decays to, in [0, 1].
        rho: the share of the distance to `beta_m` that is left after a round, in [0, 1].

    Returns:
        `[]`.

    Example:
        >>> [round(float(decayed_beta(t, 0.9999, 0.8, 0.992)), 4) for t in (0, 10, 200)]
        [0.9999, 0.9845, 0.8401]

    References:
        IWDS (Tang et al.), eq. 1. It gives no values; those of the example are the defaults of GossipFL.
    """
    left = jnp.asarray(rho, float) ** round
    # Exactly beta_0 in round 0: of a beta near 1, a rounding error would be a large part of what it leaves to 1.
    return jnp.asarray(beta_m, float) * (1.0 - left) + jnp.asarray(beta_0, float) * left
