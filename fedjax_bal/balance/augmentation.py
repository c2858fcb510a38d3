"""Numbers of synthetic copies that compensate for rare classes."""

from typing import Literal, get_args

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray

from fedjax_bal.balance.arrays import Counts, Number, check_choice

Mode = Literal["floor", "round", "stochastic", "target"]
# The largest number of copies: the largest 32-bit float that fits into a 32-bit integer.
_LARGEST = 2**31 - 128


@jax.jit(static_argnames="mode")
def augmentation_counts(
    class_counts: Counts,
    alpha: Number,
    mode: Mode = "floor",
    key: PRNGKeyArray | None = None,
    max_copies: Int[Array, ""] | int | None = None,
) -> Int[Array, "*batch C"]:
    r"""Computes the number of extra copies of each sample, by class; rarer classes get more.

    With $r_c = (\bar n / n_c)^\alpha$ and the mean $\bar n$ over all C classes, a class with $0 < n_c < \bar n$ gets

    - `"floor"`: $\lfloor r_c \rfloor$, hence at least one copy.
    - `"round"`: $r_c$ rounded to the nearest integer, halves to the even one.
    - `"stochastic"`: $\lfloor r_c \rfloor$, plus one with the probability of the fraction; $r_c$ on average.
    - `"target"`: `"stochastic"` for $r_c - 1$, so that a class grows to $r_c n_c$ samples: to the mean at alpha 1, not
      at all at alpha 0.

    Args:
        class_counts: samples of each class over all clients, `[..., C]`.
        alpha: degree of augmentation, at least 0; above 1 a rare class overtakes the mean.
        mode: `"floor"`, `"round"`, `"stochastic"` or `"target"`.
        key: a JAX random key, for the last two modes. There is one draw per class. Leading axes share a key and draw
            independently; under `vmap` pass one key each, `vmap(lambda n, key: augmentation_counts(n, 1.0, "target",
            key))(counts, keys)`.
        max_copies: the maximum number of copies of one sample, at least 0; None for no limit below 2 147 483 520.

    Returns:
        `[..., C]`; 0 for classes at or above the mean, and for empty ones.

    Raises:
        ValueError: the mode is unknown, or a random mode has no key.

    Example:
        >>> import jax.numpy as jnp
        >>> augmentation_counts(jnp.array([10, 4, 6, 0]), 1.0).tolist()
        [0, 1, 0, 0]
        >>> augmentation_counts(jnp.array([100, 10, 3, 7]), 0.67).tolist()
        [0, 2, 4, 2]
        >>> augmentation_counts(jnp.array([100, 10, 3, 7]), 0.67, max_copies=3).tolist()
        [0, 2, 3, 2]

    References:
        Astraea (Duan et al., 2019), Algorithm 2, where $r_c$ is the number of augmentations. The paper doesn't state
        how fractions are rounded and whether the original counts; `"floor"` is closest to the storage that it reports.

        Ratios within a millionth of an integer count as that integer, so that neither 32-bit rounding nor an alpha like
        0.7 removes a copy; a class within a millionth of the mean is at the mean. At alpha 1 this changes nothing up to
        900,000 samples.
    """
    return _round_ratios(_ratio(class_counts, alpha), mode, key, max_copies)


@jax.jit(static_argnames="mode")
def augmentation_copies(
    labels: Int[Array, " D"],
    class_counts: Num[Array, " C"],
    alpha: Number,
    mode: Mode = "floor",
    key: PRNGKeyArray | None = None,
    max_copies: Int[Array, ""] | int | None = None,
) -> Int[Array, " D"]:
    """Computes the number of extra copies of each sample, drawn independently for each sample.

    The distribution is that of `augmentation_counts` for the sample's class. That function draws once per class, so
    that all samples of a class get the same number; here the random modes draw once per sample, so that a class's size
    hardly varies.

    Args:
        labels: `[D]`, from 0 to C - 1.
        class_counts: samples of each class over all clients, `[C]`; usually, but not necessarily, those of `labels`.
        alpha: as in `augmentation_counts`.
        mode: as in `augmentation_counts`.
        key: a JAX random key, needed by `"stochastic"` and `"target"`. The draw of row i depends on the key and i.
        max_copies: the maximum number of copies of one sample; None for no limit.

    Returns:
        `[D]`.

    Raises:
        ValueError: the mode is unknown, or a random mode has no key.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> labels = jnp.repeat(jnp.arange(2), jnp.array([700, 300]), total_repeat_length=1000)
        >>> copies = augmentation_copies(labels, jnp.array([700, 300]), 1.0, "target", jax.random.key(0))
        >>> int(copies[:700].sum()), 150 < int(copies[700:].sum()) < 250
        (0, True)

    References:
        Astraea, Algorithm 2.
    """
    chex.assert_rank([labels, class_counts], 1)
    return _round_ratios(_ratio(class_counts, alpha)[labels], mode, key, max_copies)


def _ratio(class_counts: Num[Array, "*batch C"], alpha: Num[Array, ""] | float) -> Float[Array, "*batch C"]:
    """Returns (mean / count)^alpha for classes below the mean, 0 for all others."""
    counts = jnp.asarray(class_counts, float)
    present = counts > 0
    # A single division of sums, instead of the mean by the count, is exact if the ratio is an integer.
    below = _snap_to_integers(counts.sum(-1, keepdims=True) / jnp.where(present, counts.shape[-1] * counts, 1.0))
    rare = present & (below > 1)
    return jnp.where(rare, _snap_to_integers(jnp.where(rare, below, 1.0) ** jnp.asarray(alpha, float)), 0.0)


def _snap_to_integers(ratio: Float[Array, "..."]) -> Float[Array, "..."]:
    """Rounds ratios that are within rounding error of an integer to that integer."""
    whole = jnp.round(ratio)
    return jnp.where(jnp.abs(ratio - whole) <= 8 * jnp.finfo(ratio.dtype).eps * whole, whole, ratio)


def _round_ratios(
    ratio: Float[Array, "*shape"], mode: str, key: PRNGKeyArray | None, max_copies: Int[Array, ""] | int | None
) -> Int[Array, "*shape"]:
    """Converts ratios to integer numbers of copies."""
    check_choice("mode", mode, get_args(Mode))
    if mode in ("stochastic", "target"):
        if key is None:
            raise ValueError(f"key: received None, must be a JAX random key for mode {mode!r}, as in jax.random.key(0)")
        wanted = jnp.maximum(ratio - 1.0, 0.0) if mode == "target" else ratio
        certain = jnp.floor(wanted)
        wanted = certain + (jax.random.uniform(key, ratio.shape, ratio.dtype) < wanted - certain)
    else:
        wanted = jnp.floor(ratio) if mode == "floor" else jnp.round(ratio)
    copies = jnp.minimum(wanted, _LARGEST).astype(int)
    return copies if max_copies is None else jnp.minimum(copies, max_copies)
