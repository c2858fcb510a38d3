"""The networks that attacks train, and their optimizer."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float

from fedjax_bal.models import Conv, Linear, doubled_twice, enlarging, flatten
from fedjax_bal.models import convolution as convolutions
from fedjax_bal.types import PyTree

SLOPE = 0.2


class Upwards(nn.Module):
    """A dense layer to maps of a quarter of the side, two doublings with a convolution each, a last convolution.

    Activations are leaky rectifiers, except for the last layer: normalised pixels have no fixed bounds. Batch
    normalisation is left out, because it would make an image depend on the others of its batch.

    Attributes:
        image_shape: `(H, W, K)`, H and W multiples of 4.
        width: channels of the first two stages; the third has half as many.
    """

    image_shape: tuple[int, ...]
    width: int

    @nn.compact
    def __call__(self, vectors: Float[Array, "B Z"]) -> Float[Array, "B H W K"]:
        """Images of vectors."""
        height, width, channels = self.image_shape
        convolve = convolutions.of_name("fast")
        doubled = enlarging(convolve)
        maps = nn.leaky_relu(Linear(self.width * (height // 4) * (width // 4), name="dense")(vectors), SLOPE)
        maps = maps.reshape(-1, height // 4, width // 4, self.width)
        for stage, outputs in enumerate((self.width, self.width // 2)):
            maps = nn.leaky_relu(Conv(outputs, 3, 1, doubled, name=f"conv_{stage}")(maps), SLOPE)
        return Conv(channels, 3, 1, convolve, name="conv_2")(maps)


class Encoder(nn.Module):
    """Two convolutions that halve the side, then a dense layer to mean and log variance of a normal law.

    Attributes:
        latent: Z.
        width: channels of the second convolution; the first has half as many.
    """

    latent: int
    width: int

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"]) -> tuple[Float[Array, "B Z"], Float[Array, "B Z"]]:
        """Mean and log variance of each image."""
        maps, convolve = images, convolutions.of_name("fast")
        for stage, outputs in enumerate((self.width // 2, self.width)):
            maps = nn.leaky_relu(Conv(outputs, 3, 1, convolve, stride=2, name=f"conv_{stage}")(maps), SLOPE)
        mean, log_var = jnp.split(Linear(2 * self.latent, name="dense")(flatten(maps)), 2, axis=-1)
        return mean, log_var


def check_sides(image_shape: tuple[int, ...]) -> None:
    """Raises unless height and width of `(H, W, K)` are multiples of 4, so that two doublings can make them."""
    doubled_twice(image_shape, "an attack's network")


def minimise(
    loss: Callable[[PyTree, Array], tuple[Array, Array]], params: PyTree, iterations: int, rate: float | Array
) -> tuple[PyTree, Array]:
    """Minimises `loss(params, index) -> (value, report)` by Adam, at a rate that falls to 0 along half a cosine.

    Returns the last parameters, and the report before each step, `[iterations, ...]`.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, iterations))

    def step(carry: tuple[PyTree, PyTree], index: Array) -> tuple[tuple[PyTree, PyTree], Array]:
        params, state = carry
        grads, report = jax.grad(loss, has_aux=True)(params, index)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), report

    (params, _), reports = lax.scan(step, (params, optimizer.init(params)), jnp.arange(iterations))
    return params, reports
