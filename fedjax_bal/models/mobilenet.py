"""MobileNetV2 for small images."""

import flax.linen as nn
from jaxtyping import Array, Float

from fedjax_bal.models.layers import Convolution, Real, uniform_kernel
from fedjax_bal.models.normalization import Norm, batch_norm
from fedjax_bal.models.resnet import NormedConv

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, number of blocks and stride of the first block, for each stage."""


class MobileNetV2(nn.Module):
    """MobileNetV2 for 32x32 images, as in CBFL: 17 inverted residual blocks, and the mean over all pixels.

    It halves the image three times, the paper's network for larger images five times. Other departures from the paper,
    as in CBFL's code: ReLU is not cut off at 6; a block of stride 1 that changes the number of channels has a shortcut
    too, a 1x1 convolution; and a block that does not expand has a 1x1 convolution all the same.

    Trainable parameters, for colour images: 2,296,922 with 10 classes, 2,412,212 with 100, 3,577,922 with 1010.

    The blocks' outputs, which have no activation, are recorded in the collection "taps". For images of 32x32 the mean
    over all pixels is the code's pooling, over 4x4.

    References:
        Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018, Table 2; layers read in
        github.com/lizhipengcs/CBFL.
    """

    convolve: Convolution
    norm: Norm = batch_norm

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        stem = NormedConv(32, 3, 1, self.convolve, uniform_kernel, norm=self.norm, name="stem")
        maps = nn.relu(stem(images, real, train=train))
        blocks = [
            (expansion, channels, stride if block == 0 else 1)
            for expansion, channels, count, stride in STAGES
            for block in range(count)
        ]
        for number, shape in enumerate(blocks):
            block = InvertedResidual(*shape, self.convolve, self.norm, name=f"block_{number}")
            maps = block(maps, real, train=train)
            self.sow("taps", "blocks", maps)
        last = NormedConv(1280, 1, 1, self.convolve, uniform_kernel, norm=self.norm, name="last")
        return nn.relu(last(maps, real, train=train)).mean((1, 2))


class InvertedResidual(nn.Module):
    """A 1x1 convolution to more channels, a depthwise 3x3 one, and a 1x1 one back, with a shortcut.

    The sum has no activation. With a stride above 1 there is no shortcut; if the number of channels changes, the
    shortcut is a 1x1 convolution.
    """

    expansion: int  # ratio of inner to input channels
    channels: int
    stride: int
    convolve: Convolution
    norm: Norm = batch_norm

    @nn.compact
    def __call__(self, maps: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B H2 W2 O"]:

        def layer(name: str, images: Array, channels: int, size: int = 1, stride: int = 1, groups: int = 1) -> Array:
            normed = NormedConv(channels, size, stride, self.convolve, uniform_kernel, groups, self.norm, name=name)
            return normed(images, real, train=train)

        inside = self.expansion * maps.shape[-1]
        inner = nn.relu(layer("expand", maps, inside))
        inner = nn.relu(layer("depthwise", inner, inside, 3, self.stride, inside))
        result = layer("project", inner, self.channels)
        if self.stride > 1:
            return result
        return result + (maps if maps.shape[-1] == self.channels else layer("shortcut", maps, self.channels))
