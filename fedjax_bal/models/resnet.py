"""Residual networks for small images."""

import functools

import flax.linen as nn
from jax.nn import initializers
from jaxtyping import Array, Float

from fedjax_bal.models.layers import Convolution, Real
from fedjax_bal.models.normalization import BatchNorm

he_uniform = initializers.variance_scaling(2.0, "fan_in", "uniform")
"""Uniform of variance 2 / fan in."""


class ResNet20(nn.Module):
    """ResNet-20: a 3x3 convolution, then nine residual units of two, in stages of 16, 32 and 64 channels.

    The shortcut of the two units that halve the image is a 1x1 convolution with batch normalisation, as in CBFL's
    code: 272,474 parameters with 10 classes. The paper's own shortcut without parameters would give 269,722.

    The nine units' outputs are recorded in the collection "taps".

    Attributes:
        convolve: the convolution.

    References:
        He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2.
    """

    convolve: Convolution

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        """Features `[B, 64]` of images `[B, H, W, K]`."""
        stem = NormedConv(16, 3, 1, self.convolve, name="stem")
        maps = nn.relu(stem(images, real, train=train))
        for stage, channels in enumerate((16, 32, 64)):
            for unit in range(3):
                stride = 2 if stage > 0 and unit == 0 else 1
                residual = ResidualUnit(channels, stride, self.convolve, name=f"unit_{3 * stage + unit}")
                maps = residual(maps, real, train=train)
                self.sow("taps", "units", maps)
        return maps.mean((1, 2))


class ResidualUnit(nn.Module):
    """Two 3x3 convolutions, added to a shortcut.

    Attributes:
        channels: of its output.
        stride: of the first convolution; with more than 1 the shortcut is a 1x1 convolution.
        convolve: the convolution.
    """

    channels: int
    stride: int
    convolve: Convolution

    @nn.compact
    def __call__(self, maps: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B H2 W2 O"]:
        """Map `[B, H, W, K]` to `[B, H', W', channels]`."""
        layer = functools.partial(NormedConv, self.channels, convolve=self.convolve)
        shortcut = maps
        if self.stride > 1:
            shortcut = layer(size=1, stride=self.stride, name="shortcut")(maps, real, train=train)
        inner = nn.relu(layer(size=3, stride=self.stride, name="conv_0")(maps, real, train=train))
        return nn.relu(layer(size=3, stride=1, name="conv_1")(inner, real, train=train) + shortcut)


class NormedConv(nn.Module):
    """A convolution without bias, then batch normalisation.

    Attributes:
        channels: of its output.
        size: side of the kernel, in pixels; half of it is padded on each side.
        stride: steps between outputs, in pixels.
        convolve: the convolution, with the signature of `jax.lax.conv_general_dilated`.
    """

    channels: int
    size: int
    stride: int
    convolve: Convolution

    @nn.compact
    def __call__(self, maps: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B H2 W2 O"]:
        """Map `[B, H, W, K]` to `[B, H', W', channels]`."""
        convolved = nn.Conv(
            self.channels,
            (self.size, self.size),
            strides=(self.stride, self.stride),
            padding=self.size // 2,
            use_bias=False,
            kernel_init=he_uniform,
            conv_general_dilated=self.convolve,
            name="conv",
        )(maps)
        return BatchNorm(name="norm")(convolved, real, train=train)
