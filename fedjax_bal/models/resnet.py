"""Residual networks with batch or group normalisation."""

import functools

import flax.linen as nn
from jax.nn import initializers
from jax.nn.initializers import Initializer
from jaxtyping import Array, Float

from fedjax_bal.models.layers import Convolution, Real, relu
from fedjax_bal.models.normalization import Norm, batch_norm
from fedjax_bal.models.pooling import overlapping_max_pool

he_uniform = initializers.variance_scaling(2.0, "fan_in", "uniform")
"""Uniform of variance 2 / fan in."""

he_normal_of_outputs = initializers.variance_scaling(2.0, "fan_out", "normal")
"""Normal of variance 2 / fan out."""


class ResNet(nn.Module):
    """A convolution, stages of residual units of two convolutions each, and the mean over all pixels.

    Every stage but the first halves the image. The shortcut of the units that do so is a 1x1 convolution with
    normalisation, as in CBFL's code. Trainable parameters, for colour images:

    | network | channels | units a stage | classes | parameters |
    |---|---|---|---|---|
    | ResNet-8 | 16, 32, 64 | 1 | 10 | 78,042 = 464 + 4,672 + 14,528 + 57,728 + 650 |
    | ResNet-20 | 16, 32, 64 | 3 | 10, 100 | 272,474; 278,324 |
    | CReFF's ResNet-8 | 64, 128, 256 | 1 | 10 | 1,227,594 |
    | ResNet-18, large | 64, 128, 256, 512 | 2 | 1010 | 11,694,642 |
    | ResNet-18, small | 64, 128, 256, 512 | 2 | 10, 100 | 11,173,962; 11,220,132 |

    (ResNet-8: stem, three units, classifier. ResNet-20 would have 269,722 with the paper's own shortcut, which has no
    parameters.) ResNet-8 is the shortest network of ResNet-20's scheme, for machines with few cores; CReFF's has four
    times the channels. ResNet-18 divides the sides of a large image by 32. The units' outputs are recorded in the
    collection "taps".

    Attributes:
        convolve: the convolution.
        channels: of each stage.
        units: number per stage.
        large: whether images are large: the first convolution is then 7x7 of stride 2, followed by 3x3 max pooling that
            halves the image again; otherwise it is 3x3 and keeps the size.
        start: initializer of the convolutions.
        norm: the normalisation.

    References:
        He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2 for the small networks and
        Table 1 for ResNet-18, which has the layers and the start of PyTorch's model of that name.
    """

    convolve: Convolution
    channels: tuple[int, ...] = (16, 32, 64)
    units: int = 3
    large: bool = False
    start: Initializer = he_uniform
    norm: Norm = batch_norm

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        size, stride = (7, 2) if self.large else (3, 1)
        stem = NormedConv(self.channels[0], size, stride, self.convolve, self.start, norm=self.norm, name="stem")
        maps = relu(stem(images, real, train=train))
        if self.large:
            maps = overlapping_max_pool(maps)
        for stage, channels in enumerate(self.channels):
            for unit in range(self.units):
                stride = 2 if stage > 0 and unit == 0 else 1
                name = f"unit_{self.units * stage + unit}"
                layers = ResidualUnit(channels, stride, self.convolve, self.start, self.norm, name=name)
                maps = layers(maps, real, train=train)
                self.sow("taps", "units", maps)
        return maps.mean((1, 2))


class ResidualUnit(nn.Module):
    """Two 3x3 convolutions, added to a shortcut, which is a 1x1 convolution if the first has a stride above 1."""

    channels: int
    stride: int
    convolve: Convolution
    start: Initializer = he_uniform
    norm: Norm = batch_norm

    @nn.compact
    def __call__(self, maps: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B H2 W2 O"]:
        layer = functools.partial(NormedConv, self.channels, convolve=self.convolve, start=self.start, norm=self.norm)
        shortcut = maps
        if self.stride > 1:
            shortcut = layer(size=1, stride=self.stride, name="shortcut")(maps, real, train=train)
        inner = relu(layer(size=3, stride=self.stride, name="conv_0")(maps, real, train=train))
        return relu(layer(size=3, stride=1, name="conv_1")(inner, real, train=train) + shortcut)


class NormedConv(nn.Module):
    """A convolution without bias, padded by half its kernel on each side, then normalisation."""

    channels: int
    size: int
    stride: int
    convolve: Convolution
    start: Initializer = he_uniform
    groups: int = 1
    norm: Norm = batch_norm

    @nn.compact
    def __call__(self, maps: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B H2 W2 O"]:
        convolved = nn.Conv(
            self.channels,
            (self.size, self.size),
            strides=(self.stride, self.stride),
            padding=self.size // 2,
            feature_group_count=self.groups,
            use_bias=False,
            kernel_init=self.start,
            conv_general_dilated=self.convolve,
            name="conv",
        )(maps)
        return self.norm(convolved, real, train=train)
