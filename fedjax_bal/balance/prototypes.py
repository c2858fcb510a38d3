"""Class prototypes: mean features by class, and features moved from one class to another."""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num


@jax.jit(static_argnames="num_classes")
def class_sums(
    features: Float[Array, "B F"],
    labels: Int[Array, " B"],
    mask: Num[Array, " B"] | Bool[Array, " B"],
    num_classes: int,
) -> tuple[Float[Array, "C F"], Float[Array, " C"]]:
    """Computes sums of features and numbers of samples, by class.

    Add sums and counts over many batches to compute the mean over all of them.

    Args:
        features: `[B, F]`.
        labels: `[B]`; a row whose label isn't from 0 to C - 1 belongs to no class.
        mask: `[B]`; 0 or False excludes a row.
        num_classes: C.

    Returns:
        Sums `[C, F]` and counts `[C]`.

    Example:
        >>> import jax.numpy as jnp
        >>> sums, counts = class_sums(jnp.array([[1.0], [3.0]]), jnp.array([1, 1]), jnp.array([True, True]), 2)
        >>> sums.tolist(), counts.tolist()
        ([[0.0], [4.0]], [0.0, 2.0])
    """
    chex.assert_rank(features, 2)
    chex.assert_shape([labels, mask], (len(features),))
    chex.assert_type(labels, int)
    members = jax.nn.one_hot(labels, num_classes) * mask.astype(float)[:, None]
    masked = jnp.where(mask.astype(bool)[:, None], features, 0.0)
    return members.T @ masked, members.sum(0)


@jax.jit(static_argnames="num_classes")
def class_prototypes(
    features: Float[Array, "B F"],
    labels: Int[Array, " B"],
    mask: Num[Array, " B"] | Bool[Array, " B"],
    num_classes: int,
) -> tuple[Float[Array, "C F"], Float[Array, " C"]]:
    """Computes the mean feature of each class.

    Args:
        features: `[B, F]`.
        labels: `[B]`; a row whose label isn't from 0 to C - 1 belongs to no class.
        mask: `[B]`; 0 or False excludes a row.
        num_classes: C.

    Returns:
        Means `[C, F]`, zeros for a class without samples, and counts `[C]`.

    Example:
        >>> import jax.numpy as jnp
        >>> means, _ = class_prototypes(jnp.array([[1.0], [3.0]]), jnp.array([1, 1]), jnp.array([True, True]), 2)
        >>> means.tolist()
        [[0.0], [2.0]]

    References:
        ReBaFL (Xu et al., 2023), eq. 21.
    """
    sums, counts = class_sums(features, labels, mask, num_classes)
    return sums / jnp.where(counts > 0, counts, 1.0)[:, None], counts


@jax.jit
def transfer_features(
    features: Float[Array, "B F"],
    labels: Int[Array, " B"],
    prototypes: Float[Array, "C F"],
    present: Bool[Array, " C"],
    scale: Float[Array, ""] | float = 1.0,
) -> tuple[Float[Array, "B F"], Int[Array, " B"]]:
    r"""Moves each feature from its own class to another one, keeping its offset from the prototype.

    Row j moves to class $t = j \bmod C$ and becomes $p_t + \lambda (h_j - p_{y_j})$, so that a batch covers all
    classes evenly.

    Args:
        features: `[B, F]`.
        labels: `[B]`, from 0 to C - 1.
        prototypes: `[C, F]`.
        present: `[C]`, whether a prototype is known.
        scale: lambda, the factor on the offset.

    Returns:
        Features `[B, F]` and their new labels `[B]`; a row is unchanged if its own or its target's prototype is
        missing.

    Example:
        >>> import jax.numpy as jnp
        >>> prototypes = jnp.array([[0.0], [10.0]])
        >>> moved, labels = transfer_features(
        ...     jnp.array([[9.0], [11.0]]), jnp.array([1, 1]), prototypes, jnp.array([True, True])
        ... )
        >>> moved.tolist(), labels.tolist()
        ([[-1.0], [11.0]], [0, 1])

    References:
        ReBaFL, eq. 15 and the cyclic enumeration below it. As in the authors' code, a row whose prototypes are missing
        is kept, not excluded.
    """
    chex.assert_shape([features, prototypes], (None, features.shape[-1]))
    chex.assert_shape(labels, (len(features),))
    chex.assert_shape(present, (len(prototypes),))
    chex.assert_type(present, bool)  # integers would be combined bit by bit, and select rows
    targets = jnp.arange(features.shape[0]) % prototypes.shape[0]
    moves = present[targets] & present[labels]
    # This form returns the feature exactly if the scale is 1 and the target is its own class.
    moved = scale * features + (prototypes[targets] - scale * prototypes[labels])
    return jnp.where(moves[:, None], moved, features), jnp.where(moves, targets, labels)
