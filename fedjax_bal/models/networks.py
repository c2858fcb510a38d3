"""The networks: a body from images to features, and a head from features to logits.

Every network keeps its classifier under `params["head"]` and everything else under `params["body"]`, so that a method
that treats the two differently needs to know no layer names. Weights and biases start as PyTorch starts them, uniform
within 1 / sqrt(fan in), because the papers' repositories do.
"""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Bool, Float

from fedjax_bal.models.normalization import BatchNorm
from fedjax_bal.models.pooling import max_pool

Convolution = Callable[..., Array]
Real = Bool[Array, " B"] | None

uniform_kernel = initializers.variance_scaling(1 / 3, "fan_in", "uniform")
"""Uniform within 1 / sqrt(fan in): its variance is a third of 1 / fan in."""


class Network(nn.Module):
    """A body and a classifier.

    Attributes:
        body: images `[B, H, W, K]` to features `[B, F]`.
        head: features `[B, F]` to logits `[B, C]`.
    """

    body: nn.Module
    head: nn.Module

    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> tuple[Array, Array]:
        """Classify images.

        Args:
            images: `[B, H, W, K]`, normalised.
            real: `Bool[B]`, the rows that enter batch statistics; None for all.
            train: whether batch statistics are those of this batch.

        Returns:
            Logits `[B, C]` and features `[B, F]`.

        Example:
            >>> network = Network(Mlp((4,)), Linear(3))
            >>> variables = network.init(jax.random.key(0), jnp.zeros((1, 2, 2, 1)), None, train=False)
            >>> logits, features = network.apply(variables, jnp.zeros((5, 2, 2, 1)), None, train=False)
            >>> logits.shape, features.shape
            ((5, 3), (5, 4))
        """
        features = self.features(images, real, train=train)
        return self.classify(features), features

    def features(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        """The body alone: what the classifier sees of images; arguments as in `__call__`."""
        return self.body(images, real, train=train)

    def classify(self, features: Float[Array, "B F"]) -> Float[Array, "B C"]:
        """The head alone: logits of features."""
        return self.head(features)


class Linear(nn.Module):
    """A dense layer.

    Attributes:
        outputs: number of units.
        use_bias: whether a bias is added.
    """

    outputs: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, inputs: Float[Array, "B F"]) -> Float[Array, "B O"]:
        """Map `[B, F]` to `[B, outputs]`."""
        return nn.Dense(
            self.outputs,
            use_bias=self.use_bias,
            kernel_init=uniform_kernel,
            bias_init=_uniform_bias(inputs.shape[-1]),
            name="dense",
        )(inputs)


class PooledConv(nn.Module):
    """A convolution, then 2x2 max pooling, then the bias.

    The bias comes last because it does not change which pixel is largest: the sum is the same, and there is a quarter
    as much of it to compute. For the same reason a network applies its activation, which is monotone, after this.

    Attributes:
        outputs: number of channels.
        size: side of the kernel, in pixels.
        padding: zeros on each side in pixels, or "SAME".
        convolve: the convolution, with the signature of `jax.lax.conv_general_dilated`.
    """

    outputs: int
    size: int
    padding: int | str
    convolve: Convolution

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"]) -> Float[Array, "B H2 W2 O"]:
        """Map `[B, H, W, K]` to `[B, H', W', outputs]`, of half the height and width that the convolution leaves."""

        def pooled(*operands: Array, **settings: object) -> Array:
            return max_pool(self.convolve(*operands, **settings))

        return nn.Conv(
            self.outputs,
            (self.size, self.size),
            padding=self.padding,
            kernel_init=uniform_kernel,
            bias_init=_uniform_bias(self.size**2 * images.shape[-1]),
            conv_general_dilated=pooled,
            name="conv",
        )(images)


class Mlp(nn.Module):
    """Dense layers with ReLU on flattened images.

    Attributes:
        hidden: units of each layer.
    """

    hidden: Sequence[int]

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        """Features `[B, hidden[-1]]` of images `[B, H, W, K]`."""
        del real, train
        hidden = flatten(images)
        for layer, units in enumerate(self.hidden):
            hidden = nn.relu(Linear(units, name=f"dense_{layer}")(hidden))
        return hidden


class RebaflFmnist(nn.Module):
    """ReBaFL's network for Fashion-MNIST, without the projection that only other methods' features use.

    Attributes:
        convolve: the convolution.

    References:
        github.com/JianXu95/ReBaFL; layers read in its code.
    """

    convolve: Convolution

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        """Features `[B, 128]` of images `[B, H, W, K]`, 12 pixels or more a side."""
        del real, train
        maps = nn.leaky_relu(PooledConv(16, 5, 0, self.convolve, name="conv_0")(images))
        maps = nn.leaky_relu(PooledConv(32, 5, 1, self.convolve, name="conv_1")(maps))
        return nn.leaky_relu(Linear(128, name="dense")(flatten(maps)))


class RebaflCifar(nn.Module):
    """ReBaFL's network for CIFAR-10, without the projection that only other methods' features use.

    Its features have no activation.

    Attributes:
        convolve: the convolution.

    References:
        github.com/JianXu95/ReBaFL; layers read in its code.
    """

    convolve: Convolution

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        """Features `[B, 128]` of images `[B, H, W, K]`, 16 pixels or more a side."""
        del real, train
        maps = nn.leaky_relu(PooledConv(16, 5, 0, self.convolve, name="conv_0")(images))
        maps = nn.leaky_relu(PooledConv(32, 5, 1, self.convolve, name="conv_1")(maps))
        maps = nn.leaky_relu(PooledConv(64, 3, 1, self.convolve, name="conv_2")(maps))
        return Linear(128, name="dense")(flatten(maps))


class FedavgCnn(nn.Module):
    """The convolutional network of the paper that introduced federated averaging.

    Attributes:
        convolve: the convolution.

    References:
        McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
        section 3.
    """

    convolve: Convolution

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        """Features `[B, 512]` of images `[B, H, W, K]`, 4 pixels or more a side."""
        del real, train
        maps = nn.relu(PooledConv(32, 5, "SAME", self.convolve, name="conv_0")(images))
        maps = nn.relu(PooledConv(64, 5, "SAME", self.convolve, name="conv_1")(maps))
        return nn.relu(Linear(512, name="dense")(flatten(maps)))


class TinyBn(nn.Module):
    """One convolution with batch normalisation: the smallest network that has batch statistics.

    Attributes:
        convolve: the convolution.
    """

    convolve: Convolution

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        """Features `[B, 4 (H // 2) (W // 2)]` of images `[B, H, W, K]`, 2 pixels or more a side."""
        maps = nn.Conv(
            4, (3, 3), use_bias=False, kernel_init=uniform_kernel, conv_general_dilated=self.convolve, name="conv"
        )(images)
        maps = nn.relu(BatchNorm(name="norm")(maps, real, train=train))
        return flatten(max_pool(maps))


def flatten(maps: Float[Array, "B H W K"]) -> Float[Array, "B F"]:
    """Flatten each row of a batch.

    Args:
        maps: `[B, H, W, K]`.

    Returns:
        `[B, H * W * K]`.

    Example:
        >>> flatten(jnp.zeros((2, 3, 4, 5))).shape
        (2, 60)
    """
    return maps.reshape(maps.shape[0], -1)


def _uniform_bias(fan_in: int) -> Callable[..., Array]:
    """An initialiser, uniform within 1 / sqrt(fan in)."""
    bound = fan_in**-0.5

    def initialise(key: Array, shape: Sequence[int], dtype: jnp.dtype = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return initialise
