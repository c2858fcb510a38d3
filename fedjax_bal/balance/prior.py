"""Cross-entropy corrected for a client's class distribution."""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_bal.balance.arrays import Counts, Number, as_counts

# A logit whose exp() is exactly 0, while its sums and products stay finite.
EXCLUDED = -1e9


@jax.jit
def smoothed_prior(class_counts: Counts, epsilon: Number) -> Float[Array, "*batch C"]:
    r"""Mixes a client's class distribution with the uniform one.

    $\hat p_c = (1 - \epsilon) n_c / n + \epsilon / C$. At $\epsilon = 0$ it is the empirical prior of balanced softmax,
    at 1 the uniform prior of plain cross-entropy.

    Args:
        class_counts: `[..., C]`, 0 or more.
        epsilon: share of the uniform distribution, in [0, 1].

    Returns:
        Probabilities `[..., C]`; uniform for an empty client.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(float(p), 4) for p in smoothed_prior(jnp.array([500, 500, 0, 0]), 0.02)]
        [0.495, 0.495, 0.005, 0.005]

    References:
        ReBaFL (Xu et al., 2023), eq. 10.
    """
    counts = as_counts(class_counts)
    classes = counts.shape[-1]
    total = counts.sum(-1, keepdims=True)
    empirical = jnp.where(total == 0, 1.0 / classes, counts / jnp.where(total == 0, 1.0, total))
    return (1.0 - epsilon) * empirical + epsilon / classes


@jax.jit
def prior_calibrated_logits(
    logits: Float[Array, "*batch C"], prior: Float[Array, "*#batch C"], tau: Number = 1.0
) -> Float[Array, "*batch C"]:
    r"""Shifts logits so that their softmax weights every class by its prior, or by a power of it.

    $z_c + \tau \log p_c$. A class of prior 0 is excluded exactly, regardless of the power: its probability is 0 and no
    gradient reaches its logit.

    Args:
        logits: `[..., C]`.
        prior: `[C]`, or one per row, 0 or more; need not sum to one.
        tau: the power, 0 or more.

    Returns:
        `[..., C]`, finite for a prior without NaN or negative numbers.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> calibrated = prior_calibrated_logits(jnp.zeros((1, 3)), jnp.array([0.75, 0.25, 0.0]))
        >>> [round(float(p), 4) for p in jax.nn.softmax(calibrated)[0]]
        [0.75, 0.25, 0.0]

    References:
        ReBaFL, eq. 8 and 9; balanced softmax (Ren et al., 2020), eq. 4; with tau, the logit-adjusted loss of Menon et
        al., "Long-Tail Learning via Logit Adjustment", ICLR 2021, eq. 10.
    """
    chex.assert_equal_shape_suffix([logits, prior], 1)
    excluded = prior == 0
    return jnp.where(excluded, EXCLUDED, logits + tau * jnp.log(jnp.where(excluded, 1.0, prior)))


@jax.jit
def prior_calibrated_cross_entropy(
    logits: Float[Array, "B C"],
    labels: Int[Array, " B"],
    prior: Float[Array, " C"],
) -> Float[Array, " B"]:
    r"""Computes the balanced softmax cross-entropy of each sample.

    $-\log \frac{p_y e^{z_y}}{\sum_c p_c e^{z_c}}$.

    Args:
        logits: `[B, C]`; for a single row add an axis.
        labels: `[B]`, from 0 to C - 1: leave out or mask rows without a class.
        prior: `[C]`, 0 or more; 0 excludes the class.

    Returns:
        Nats, `[B]`; exactly 0, with no gradient, for a label whose own prior is 0. NaN for a prior with NaN or
        negative numbers, and for a label out of range.

    Raises:
        AssertionError: shapes don't fit.

    Example:
        >>> import jax.numpy as jnp
        >>> loss = prior_calibrated_cross_entropy(jnp.zeros((2, 3)), jnp.array([0, 2]), jnp.array([0.5, 0.5, 0.0]))
        >>> [round(float(v), 4) for v in loss]
        [0.6931, 0.0]

    References:
        ReBaFL, eq. 8 (empirical prior) and 9 (smoothed prior). Computed with a log-softmax; the authors' code adds
        1e-8 to a ratio of exponentials instead.
    """
    chex.assert_rank([logits, labels, prior], [2, 1, 1])
    chex.assert_shape(logits, (len(labels), len(prior)))
    log_probabilities = jax.nn.log_softmax(prior_calibrated_logits(logits, prior))
    # A label that is out of range gives NaN; a negative one would count from the last class.
    labels = jnp.where(labels < 0, prior.shape[0], labels)
    chosen = jnp.take_along_axis(log_probabilities, labels[:, None], axis=-1)[:, 0]
    return jnp.where(jnp.take(prior, labels, mode="fill") == 0, 0.0, -chosen)
