"""Class probabilities that favour the classes a client holds least of."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num


@jax.jit
def inverse_class_probs(class_counts: Num[Array, "*batch C"]) -> Float[Array, "*batch C"]:
    r"""Sampling probabilities that decrease linearly with a client's class shares.

    $\tilde P_c = (1 - P_c) / (C - 1)$ with $P_c = n_c / n$: a client's only class has probability 0, an absent one
    $1 / (C - 1)$, the maximum.

    Args:
        class_counts: `[..., C]`, 0 or more, of at least two classes.

    Returns:
        Probabilities `[..., C]`; uniform for an empty client.

    Raises:
        ValueError: fewer than two classes.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(float(p), 4) for p in inverse_class_probs(jnp.array([90, 10, 0, 0]))]
        [0.0333, 0.3, 0.3333, 0.3333]

    References:
        CBFL (Li et al., 2023), eq. 3 to 5; the sum in eq. 5 is C - 1 whatever the counts are.
    """
    counts = jnp.asarray(class_counts, float)
    classes = counts.shape[-1]
    if classes < 2:
        raise ValueError(
            f"class_counts: received shape {counts.shape}, must have at least 2 classes along its last axis: with one "
            "class there is nothing to balance"
        )
    total = counts.sum(-1, keepdims=True)
    # n - n_c is exact for whole numbers; 1 - n_c / n would lose the digits of a small difference.
    shares = (total - counts) / jnp.where(total > 0, total * (classes - 1), 1.0)
    return jnp.where(total > 0, shares, 1.0 / classes)
