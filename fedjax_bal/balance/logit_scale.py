"""Offsets and factors on the logits that depend on a client's class counts."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_bal.balance.arrays import Counts, Number, as_counts, check_choice

# The count of a class without samples: its offset is 100 tau, finite but large enough to exclude the class.
_FEWEST = 1e-8


@jax.jit
def logit_calibration(class_counts: Counts, tau: Number) -> Float[Array, "*batch C"]:
    r"""Computes offsets to subtract from the training logits, so that rare classes must win by a larger margin.

    $\tau n_c^{-1/4}$, with $n_c$ at least $10^{-8}$. It depends on the counts themselves, not on their shares.

    Args:
        class_counts: `[..., C]`, 0 or more.
        tau: factor on the margin, 0 or more; 0 is plain cross-entropy.

    Returns:
        Offsets `[..., C]`; 100 tau for a class without samples. A constant: no gradient passes.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(float(offset), 4) for offset in logit_calibration(jnp.array([16, 1, 0]), 1.0)]
        [0.5, 1.0, 100.0]

    References:
        FedLC (Zhang et al., "Federated Learning with Label Distribution Skew via Logits Calibration", ICML 2022), the
        fine-grained calibrated cross-entropy. The paper doesn't define it for absent classes; ReBaFL's code adds 1e-9
        to all counts, so that their offset is 178 tau.
    """
    counts = jnp.maximum(as_counts(class_counts), _FEWEST)
    return jax.lax.stop_gradient(jnp.asarray(tau, float) * counts**-0.25)


@jax.jit(static_argnames="mode")
def restricted_scale(
    class_counts: Counts, alpha: Number, mode: Literal["hard", "soft"] = "hard"
) -> Float[Array, "*batch C"]:
    r"""Computes factors on the training logits that protect a client's absent classes from being pushed away.

    `"hard"`: 1 for a class that the client holds, $\alpha$ for an absent one. `"soft"`: $\alpha + (1 - \alpha) n_c /
    \max n$.

    Args:
        class_counts: `[..., C]`, 0 or more.
        alpha: factor of an absent class, in [0, 1]; 1 is the plain softmax.
        mode: `"hard"` or `"soft"`.

    Returns:
        `[..., C]`; alpha for all classes of an empty client. A constant: no gradient passes.

    Raises:
        ValueError: the mode is unknown.

    Example:
        >>> import jax.numpy as jnp
        >>> restricted_scale(jnp.array([4, 1, 0]), 0.5).tolist()
        [1.0, 1.0, 0.5]
        >>> restricted_scale(jnp.array([4, 1, 0]), 0.5, "soft").tolist()
        [1.0, 0.625, 0.5]

    References:
        FedRS (Li and Zhan, "FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data", KDD
        2021); the soft form is that of the authors' code. In the code's first revision each local step rescaled the
        factors of the last one, which reached 1 within a few steps; this was corrected later. Here they are constant.
    """
    check_choice("mode", mode, ("hard", "soft"))
    counts = as_counts(class_counts)
    alpha = jnp.asarray(alpha, float)
    most = counts.max(-1, keepdims=True)
    degree = counts / jnp.where(most == 0, 1.0, most) if mode == "soft" else jnp.sign(counts)
    # This form gives exactly 1 for a degree of 1 and exactly alpha for 0.
    return jax.lax.stop_gradient(degree + alpha * (1.0 - degree))
