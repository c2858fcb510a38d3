"""Losses that pull a student towards a teacher, in its logits or in its attention maps."""

from collections.abc import Sequence
from typing import Literal

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_bal.balance.arrays import Number, check_choice

# Added to the length of an attention map before dividing by it.
_EPSILON = 1e-6


@jax.jit(static_argnames="direction")
def distillation_loss(
    student_logits: Float[Array, "B C"],
    teacher_logits: Float[Array, "B C"],
    temperature: Number,
    direction: Literal["teacher_student", "student_teacher"] = "teacher_student",
    real: Bool[Array, " B"] | None = None,
) -> Float[Array, ""]:
    r"""Computes the divergence between a student's and its teacher's class probabilities, softened by a temperature.

    With $p_t$ and $p_s$ the softmax of the logits over T, the mean over the rows of

    - `"teacher_student"`: $T^2 KL(p_t \| p_s)$;
    - `"student_teacher"`: $T^2 KL(p_s \| p_t)$.

    The factor $T^2$ keeps the size of the gradient about the same at every temperature.

    Args:
        student_logits: `[B, C]`; minus infinity excludes a class.
        teacher_logits: `[B, C]`; a constant, no gradient reaches it.
        temperature: T, above 0.
        direction: `"teacher_student"` or `"student_teacher"`.
        real: `[B]`; False excludes a row, even if it isn't finite. None for all rows.

    Returns:
        Nats, `[]`; 0 if no row is real.

    Raises:
        ValueError: the direction is unknown.
        AssertionError: the shapes differ.

    Example:
        >>> import jax.numpy as jnp
        >>> student, teacher = jnp.array([[0.0, 0.0]]), jnp.array([[0.0, jnp.log(3.0)]])
        >>> round(float(distillation_loss(student, teacher, 1.0)), 4)
        0.1308
        >>> round(float(distillation_loss(student, teacher, 1.0, "student_teacher")), 4)
        0.1438

    References:
        CBFL (Li et al., 2023), eq. 11, is `"student_teacher"` without a temperature, i.e. T = 1. The authors' code uses
        `"teacher_student"`, the default here, at T = 5, as in Hinton et al., "Distilling the Knowledge in a Neural
        Network", 2015.
    """
    check_choice("direction", direction, ("teacher_student", "student_teacher"))
    chex.assert_rank([student_logits, teacher_logits], 2)
    chex.assert_equal_shape([student_logits, teacher_logits])
    teacher = jax.lax.stop_gradient(_mask_rows(teacher_logits, real))
    student_log, teacher_log = (
        jax.nn.log_softmax(jnp.asarray(logits, float) / temperature)
        for logits in (_mask_rows(student_logits, real), teacher)
    )
    pair = (teacher_log, student_log) if direction == "teacher_student" else (student_log, teacher_log)
    return jnp.asarray(temperature, float) ** 2 * _mean(_divergence(*pair), real)


@jax.jit
def attention_transfer_loss(
    student_features: Sequence[Float[Array, "B _ _ _"]],
    teacher_features: Sequence[Float[Array, "B _ _ _"]],
    real: Bool[Array, " B"] | None = None,
) -> Float[Array, ""]:
    r"""Computes the squared difference between a student's and its teacher's attention maps.

    The attention map of a feature map F is $A(F) = \sum_k F_k^2$ over its channels, divided by its length over all
    pixels, $\|A(F)\|_2 + 10^{-6}$. The loss is the sum over layers of the mean over rows and pixels of the squared
    difference of the two maps. It doesn't depend on the sign or the scale of the features, up to the $10^{-6}$.

    Args:
        student_features: feature maps, each `[B, H, W, K]`; H, W and K may differ between maps.
        teacher_features: the teacher's feature maps, each with the same B, H and W as the student's; K may differ.
            Constants, no gradient reaches them.
        real: `[B]`; False excludes a row, even if it isn't finite. None for all rows.

    Returns:
        `[]`; 0 without real rows or without layers. The gradient of a map of zeros is 0.

    Raises:
        ValueError: the numbers of maps differ.
        AssertionError: a pair of maps differs in rows, height or width.

    Example:
        >>> import jax.numpy as jnp
        >>> left, right = jnp.array([1.0, 0.0]).reshape(1, 1, 2, 1), jnp.array([0.0, 2.0]).reshape(1, 1, 2, 1)
        >>> round(float(attention_transfer_loss([left, left], [right, 3 * left])), 4)
        1.0

    References:
        CBFL (Li et al., 2023), eq. 12, after Zagoruyko and Komodakis, "Paying More Attention to Attention", ICLR 2017.
        As printed, eq. 12 divides the features, not the maps, by the length of the map and has a length in place of
        the mean of squares; this is the form of the authors' code, whose weight of 400 is for the mean.
    """
    loss = jnp.zeros(())
    for student, teacher in zip(student_features, teacher_features, strict=True):
        chex.assert_rank([student, teacher], 4)
        chex.assert_equal_shape_prefix([student, teacher], 3)
        difference = _attention_maps(_mask_rows(student, real)) - jax.lax.stop_gradient(
            _attention_maps(_mask_rows(teacher, real))
        )
        loss += _mean((difference**2).mean((1, 2)), real)
    return loss


def _divergence(p: Float[Array, "B C"], q: Float[Array, "B C"]) -> Float[Array, " B"]:
    """Computes the divergence of q from p, both log-probabilities; 0 log 0 = 0, also in the gradient."""
    shares = jnp.exp(p)
    present = shares > 0
    ratio = jnp.where(present, p, 0.0) - jnp.where(present, q, 0.0)
    return (shares * ratio).sum(-1)


def _attention_maps(features: Float[Array, "B H W K"]) -> Float[Array, "B H W"]:
    """Computes attention maps of length 1; shorter if the map's length is close to the added 1e-6."""
    maps = (jnp.asarray(features, float) ** 2).sum(-1)
    # Maps are scaled by their largest pixel, so that squares of squares don't overflow.
    unit = jax.lax.stop_gradient(jnp.maximum(maps.max((1, 2), keepdims=True), _EPSILON))
    scaled = maps / unit
    squares = (scaled**2).sum((1, 2), keepdims=True)
    length = jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1.0)), 0.0)
    return scaled / (length + _EPSILON / unit)


def _mask_rows(rows: Float[Array, "B ..."], real: Array | None) -> Float[Array, "B ..."]:
    """Sets excluded rows to 0, so that they affect neither value nor gradient."""
    if real is None:
        return rows
    chex.assert_shape(real, rows.shape[:1])
    chex.assert_type(real, bool)
    return jnp.where(real.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0)


def _mean(values: Float[Array, " B"], real: Bool[Array, " B"] | None) -> Float[Array, ""]:
    """Returns the mean over the real rows; 0 if there are none."""
    counted = jnp.ones(values.shape, bool) if real is None else real
    return jnp.where(counted, values, 0.0).sum() / jnp.maximum(counted.sum(), 1)
