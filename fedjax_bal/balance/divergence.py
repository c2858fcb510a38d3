"""Kullback-Leibler divergence of class distributions."""

import jax
import jax.numpy as jnp
from jax.scipy.special import rel_entr
from jaxtyping import Array, Float, Num


@jax.jit
def kl_divergence(p: Num[Array, "*#batch C"], q: Num[Array, "*#batch C"]) -> Float[Array, "*batch"]:
    r"""Kullback-Leibler divergence of q from p.

    $KL(p \| q) = \sum_c p_c \log(p_c / q_c)$, with 0 log 0 = 0.

    Args:
        p: probabilities along the last axis.
        q: probabilities along the last axis; infinite divergence where q is 0 and p is not.

    Returns:
        Divergence in nats, `[...]`.

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(kl_divergence(jnp.array([1.0, 0.0]), jnp.array([0.5, 0.5]))), 4)
        0.6931
    """
    return rel_entr(jnp.asarray(p, float), jnp.asarray(q, float)).sum(-1)


@jax.jit
def kl_to_uniform(counts: Num[Array, "*batch C"]) -> Float[Array, "*batch"]:
    r"""Divergence of a class distribution from the uniform one.

    $KL(P \| U) = \log C - H(P)$, the imbalance that Astraea's mediators and FL-CIR's selection reduce.

    Args:
        counts: class counts or probabilities, `[..., C]`; normalised inside.

    Returns:
        Divergence in nats, `[...]`, between 0 and log C; 0 for a row of zeros.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(float(v), 4) for v in kl_to_uniform(jnp.array([[3, 3], [4, 0], [0, 0]]))]
        [0.0, 0.6931, 0.0]

    References:
        Astraea (Duan et al., 2019), Algorithm 3; FL-CIR (Yang et al., 2021), eq. 8.
    """
    counts = jnp.asarray(counts, float)
    total = counts.sum(-1, keepdims=True)
    uniform = jnp.full_like(counts, 1.0 / counts.shape[-1])
    return kl_divergence(jnp.where(total > 0, counts / jnp.where(total > 0, total, 1.0), uniform), uniform)
