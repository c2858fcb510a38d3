"""How many synthetic copies the samples of rare classes get, so that the classes come out more even."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray

_MODES = ("floor", "round", "stochastic", "target")
# The largest number of copies: the largest float of 32 bits that is still an integer of 32 bits.
_MOST = 2**31 - 128


@partial(jax.jit, static_argnames="mode")
def augmentation_counts(
    class_counts: Num[Array, "*batch C"],
    alpha: Num[Array, ""] | float,
    mode: str = "floor",
    key: PRNGKeyArray | None = None,
    max_copies: Int[Array, ""] | int | None = None,
) -> Int[Array, "*batch C"]:
    r"""Extra copies of each sample, by its class: the more, the rarer the class.

    From $r_c = (\bar n / n_c)^\alpha$ with the mean $\bar n$ over all C classes, for classes with $0 < n_c < \bar n$:

    - `"floor"`: $\lfloor r_c \rfloor$, so at least one copy.
    - `"round"`: $r_c$ to the nearest integer, halves to the even one.
    - `"stochastic"`: $\lfloor r_c \rfloor$, and one more with the probability of what is left; $r_c$ on average.
    - `"target"`: the same for $r_c - 1$, so that a class grows to $r_c n_c$ samples: to the mean at alpha 1, by
      nothing at alpha 0.

    Args:
        class_counts: samples of each class over all clients, `[..., C]`.
        alpha: degree of augmentation, 0 or more, of which 0 to 1 is recommended; beyond it a rare class overtakes.
        mode: `"floor"`, `"round"`, `"stochastic"` or `"target"`.
        key: a JAX random key, needed by the last two modes. One draw a class, from its own place in `class_counts`.
            Under `vmap` give each its own, `vmap(lambda n, key: augmentation_counts(n, 1.0, "target", key))(counts,
            keys)`; leading axes share one, and draw apart.
        max_copies: the most copies of one sample; None for no limit short of 2 147 483 520.

    Returns:
        `[..., C]`; 0 for classes at or above the mean, and for empty ones.

    Raises:
        ValueError: another mode, or no key for a mode that draws.

    Example:
        >>> import jax.numpy as jnp
        >>> augmentation_counts(jnp.array([10, 4, 6, 0]), 1.0).tolist()
        [0, 1, 0, 0]
        >>> augmentation_counts(jnp.array([100, 10, 3, 7]), 0.67).tolist()
        [0, 2, 4, 2]
        >>> augmentation_counts(jnp.array([100, 10, 3, 7]), 0.67, max_copies=3).tolist()
        [0, 2, 3, 2]

    References:
        Astraea (Duan et al., 2019), Algorithm 2, where $r_c$ is the number of augmentations. It leaves open what
        becomes of fractions and whether the original counts; `"floor"` comes nearest to the storage that it reports.

        Ratios within a millionth of an integer count as that integer, so that neither the rounding of 32 bits nor an
        alpha like 0.7 takes a copy away; and a class within a millionth of the mean is at the mean. At alpha 1 this
        changes nothing up to 900,000 samples.
    """
    return _copies(_ratio(class_counts, alpha), mode, key, max_copies)


@partial(jax.jit, static_argnames="mode")
def augmentation_copies(
    labels: Int[Array, " D"],
    class_counts: Num[Array, " C"],
    alpha: Num[Array, ""] | float,
    mode: str = "floor",
    key: PRNGKeyArray | None = None,
    max_copies: Int[Array, ""] | int | None = None,
) -> Int[Array, " D"]:
    """Extra copies of each sample, with a draw of its own for every one.

    What `augmentation_counts` gives for the sample's class; but where that draws once a class, so that all its samples
    get the same number, here the random modes draw once a sample, which leaves little chance in the size of a class.

    Args:
        labels: `[D]`.
        class_counts: samples of each class over all clients, `[C]`; usually, but not necessarily, those of `labels`.
        alpha: as in `augmentation_counts`.
        mode: as in `augmentation_counts`.
        key: a JAX random key, needed by `"stochastic"` and `"target"`. The draw of row i follows from the key and i.
        max_copies: the most copies of one sample; None for no limit.

    Returns:
        `[D]`.

    Raises:
        ValueError: another mode, or no key for a mode that draws.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> labels = jnp.repeat(jnp.arange(2), jnp.array([700, 300]), total_repeat_length=1000)
        >>> copies = augmentation_copies(labels, jnp.array([700, 300]), 1.0, "target", jax.random.key(0))
        >>> int(copies[:700].sum()), 150 < int(copies[700:].sum()) < 250
        (0, True)

    References:
        Astraea, Algorithm 2.
    """
    return _copies(_ratio(class_counts, alpha)[labels], mode, key, max_copies)


def _ratio(class_counts: Num[Array, "*batch C"], alpha: Num[Array, ""] | float) -> Float[Array, "*batch C"]:
    """(mean / count)^alpha of the classes below the mean, 0 for all others."""
    counts = jnp.asarray(class_counts, float)
    present = counts > 0
    # One division of sums, not the mean by the count: exact where the ratio is an integer.
    below = _settled(counts.sum(-1, keepdims=True) / jnp.where(present, counts.shape[-1] * counts, 1.0))
    rare = present & (below > 1)
    return jnp.where(rare, _settled(jnp.where(rare, below, 1.0) ** jnp.asarray(alpha, float)), 0.0)


def _settled(ratio: Float[Array, "..."]) -> Float[Array, "..."]:
    """What rounding may have moved off an integer, put back onto it."""
    whole = jnp.round(ratio)
    return jnp.where(jnp.abs(ratio - whole) <= 8 * jnp.finfo(ratio.dtype).eps * whole, whole, ratio)


def _copies(
    ratio: Float[Array, "*shape"], mode: str, key: PRNGKeyArray | None, max_copies: Int[Array, ""] | int | None
) -> Int[Array, "*shape"]:
    """Whole numbers of copies from ratios."""
    if mode not in _MODES:
        raise ValueError(f"mode: received {mode!r}, must be 'floor', 'round', 'stochastic' or 'target'")
    if mode in ("stochastic", "target"):
        if key is None:
            raise ValueError(f"key: received None, must be a JAX random key for mode {mode!r}, as in jax.random.key(0)")
        wanted = jnp.maximum(ratio - 1.0, 0.0) if mode == "target" else ratio
        certain = jnp.floor(wanted)
        wanted = certain + (jax.random.uniform(key, ratio.shape, ratio.dtype) < wanted - certain)
    else:
        wanted = jnp.floor(ratio) if mode == "floor" else jnp.round(ratio)
    copies = jnp.minimum(wanted, _MOST).astype(int)
    return copies if max_copies is None else jnp.minimum(copies, max_copies)
