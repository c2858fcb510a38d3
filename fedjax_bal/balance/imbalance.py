"""Measures of class imbalance: of a class distribution, of the whole federation, and of its clients."""

import chex
import jax
import jax.numpy as jnp
from jax.scipy.special import rel_entr
from jaxtyping import Array, Float, Num

from fedjax_bal.balance.arrays import Counts, as_counts

Probabilities = Num[Array, "*#batch C"]


@jax.jit
def kl_divergence(p: Probabilities, q: Probabilities) -> Float[Array, "*batch"]:
    r"""Computes the Kullback-Leibler divergence of q from p.

    $KL(p \| q) = \sum_c p_c \log(p_c / q_c)$, with 0 log 0 = 0.

    Args:
        p: probabilities along the last axis.
        q: probabilities along the last axis; the divergence is infinite if q is 0 for a class for which p isn't.

    Returns:
        Divergence in nats, `[...]`.

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(kl_divergence(jnp.array([1.0, 0.0]), jnp.array([0.5, 0.5]))), 4)
        0.6931
    """
    chex.assert_equal_shape_suffix([p, q], 1)
    p = as_counts(p)
    q = as_counts(q)
    # `rel_entr` of a NaN is infinite.
    return jnp.where(jnp.isnan(p) | jnp.isnan(q), jnp.nan, rel_entr(p, q)).sum(-1)


@jax.jit
def hellinger_distance(p: Probabilities, q: Probabilities) -> Float[Array, "*batch"]:
    r"""Computes the Hellinger distance of two class distributions.

    $H(p, q) = \sqrt{\frac{1}{2} \sum_c (\sqrt{p_c} - \sqrt{q_c})^2}$, symmetric, and a metric.

    Args:
        p: probabilities along the last axis.
        q: probabilities along the last axis.

    Returns:
        `[...]`, between 0 for equal distributions and 1 for those that have no class in common. The gradient is 0 where
        the distance is.

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(hellinger_distance(jnp.array([1.0, 0.0]), jnp.array([0.5, 0.5]))), 4)
        0.5412
    """
    chex.assert_equal_shape_suffix([p, q], 1)
    difference = _root(as_counts(p)) - _root(as_counts(q))
    return _root((difference**2).sum(-1) / 2)


@jax.jit
def jensen_shannon_distance(p: Probabilities, q: Probabilities) -> Float[Array, "*batch"]:
    r"""Computes the Jensen-Shannon distance of two class distributions, with logarithms to base 2.

    $JS(p, q) = \sqrt{\frac{1}{2} KL_2(p \| m) + \frac{1}{2} KL_2(q \| m)}$ with $m = \frac{1}{2} (p + q)$ and $KL_2$ in
    bits, symmetric, and a metric. Its square is the Jensen-Shannon divergence.

    Args:
        p: probabilities along the last axis.
        q: probabilities along the last axis.

    Returns:
        `[...]`, between 0 for equal distributions and 1 for those that have no class in common. The gradient is 0 where
        the distance is.

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(jensen_shannon_distance(jnp.array([1.0, 0.0]), jnp.array([0.5, 0.5]))), 4)
        0.5579

    References:
        Endres, Schindelin: A New Metric for Probability Distributions, 2003.
    """
    chex.assert_equal_shape_suffix([p, q], 1)
    p = as_counts(p)
    q = as_counts(q)
    middle = (p + q) / 2
    divergence = (kl_divergence(p, middle) + kl_divergence(q, middle)) / 2
    return _root(jnp.maximum(divergence, 0.0) / jnp.log(2.0))  # below 0 only by a rounding error


def _root(values: Array) -> Array:
    """Computes square roots with the gradient 0, not infinity, at 0: that of a distance of equal distributions."""
    zero = values == 0
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, values)))


@jax.jit
def kl_to_uniform(counts: Counts) -> Float[Array, "*batch"]:
    r"""Computes the divergence of a class distribution from the uniform one.

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
    counts = as_counts(counts)
    total = counts.sum(-1, keepdims=True)
    uniform = jnp.full_like(counts, 1.0 / counts.shape[-1])
    return kl_divergence(jnp.where(total == 0, uniform, counts / jnp.where(total == 0, 1.0, total)), uniform)


@jax.jit
def multiclass_imbalance_degree(counts: Counts) -> Float[Array, "*batch"]:
    r"""Computes global class imbalance (MID): divergence from the uniform distribution, relative to the maximum.

    $MID = \sum_c \frac{n_c}{n} \log_C \frac{C n_c}{n} = KL(P \| U) / \log C$, with 0 log 0 = 0.

    Args:
        counts: class counts of the whole federation, or probabilities, `[..., C]`; normalised inside.

    Returns:
        `[...]`, between 0 for equal classes and 1 for a single one; 0 for a row of zeros, and if C is 1.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(float(v), 4) for v in multiclass_imbalance_degree(jnp.array([[5, 5], [3, 1], [9, 0]]))]
        [0.0, 0.1887, 1.0]

    References:
        Xiao, Wang: An Experimental Study of Class Imbalance in Federated Learning, 2021.
    """
    classes = jnp.asarray(counts).shape[-1]
    return kl_to_uniform(counts) / jnp.log(float(max(classes, 2)))


@jax.jit
def weighted_cosine_similarity(class_counts: Num[Array, "*batch N C"]) -> Float[Array, "*batch"]:
    r"""Computes the similarity of clients' class counts to those of all clients together (WCS).

    $WCS = \sum_k \frac{n_k}{n} \cos(l_k, L)$, where l_k are the class counts of client k, n_k their sum, L the class
    counts of all clients and n the sum of those.

    Args:
        class_counts: `[..., N, C]`.

    Returns:
        `[...]`, in (0, 1]: 1 if all clients have the same class proportions, 1 / sqrt(C) if each client has a single
        class and all C classes are equally large; 1 for counts of zero.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(float(weighted_cosine_similarity(jnp.array(v))), 4) for v in ([[4, 4], [1, 1]], [[3, 0], [0, 3]])]
        [1.0, 0.7071]

    References:
        Xiao, Wang: An Experimental Study of Class Imbalance in Federated Learning, 2021.
    """
    counts = as_counts(class_counts)
    whole = counts.sum(-2)
    squares, whole_square = (counts**2).sum(-1), (whole**2).sum(-1)
    # 1 takes the place of 0, where a root has no gradient.
    aligned = (counts * whole[..., None, :]).sum(-1) / jnp.sqrt(jnp.where(squares == 0, 1.0, squares))
    weighted = (counts.sum(-1) * aligned).sum(-1)
    scale = whole.sum(-1) * jnp.sqrt(jnp.where(whole_square == 0, 1.0, whole_square))
    return jnp.where(whole_square == 0, 1.0, weighted / jnp.where(whole_square == 0, 1.0, scale))
