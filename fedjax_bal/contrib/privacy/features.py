"""Features of many images under a frozen model."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_bal.types import Model, Variables
from fedjax_bal.validate import whole_number


@partial(jax.jit, static_argnames=("model", "chunk"))
def features_of(
    model: Model, variables: Variables, images: Float[Array, "A H W K"], *, chunk: int = 256
) -> Float[Array, "A F"]:
    """Features `[A, F]` of images under a model in evaluation mode, computed in chunks.

    With `fedjax_bal.balance.class_prototypes` they give what ReBaFL's clients send if they hold these images together.

    Args:
        model: the model.
        variables: the model's; they are not changed.
        images: `[A, H, W, K]`, normalised.
        chunk: images at a time.

    Raises:
        ValueError: images of another shape than the model's, or none; a chunk that is not a positive integer.

    Example:
        >>> from fedjax_bal.models import build
        >>> model = build("tiny_bn", 3, (8, 8, 1))
        >>> features_of(model, model.init(jax.random.key(0)), jnp.ones((5, 8, 8, 1)), chunk=2).shape
        (5, 64)
    """
    whole_number("chunk", chunk)
    check_images(model, images)
    count, chunk = len(images), min(chunk, len(images))
    padded = jnp.pad(images, ((0, -count % chunk), (0, 0), (0, 0), (0, 0)))
    parts = padded.reshape(-1, chunk, *model.input_shape)
    seen = lax.map(lambda part: model.apply(variables, part, train=False)[0].features, parts)
    return seen.reshape(-1, seen.shape[-1])[:count]


def check_images(model: Model, images: Array) -> None:
    """Raises unless images, at least one, have the model's shape."""
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[1:] != tuple(model.input_shape) or not shape[0]:
        raise ValueError(
            f"images: received shape {shape}, must be (A, {', '.join(map(str, model.input_shape))}) with A of at least "
            f"1, what the model {model.name} was built for"
        )
