"""The networks: a body from images to features, and a head from features to logits.

Every network keeps its classifier under `params["head"]` and everything else under `params["body"]`, so that a method
that treats the two differently needs no layer names.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax.nn import initializers
from jax.nn.initializers import Initializer
from jaxtyping import Array, Float, Int

from fedjax_bal.models.layers import (
    Conv,
    Convolution,
    Linear,
    Real,
    flatten,
    max_pool,
    overlapping_max_pool,
    relu,
    uniform_kernel,
)
from fedjax_bal.models.normalization import BatchNorm, Norm, batch_norm


class Network(nn.Module):
    """A body, from images to features, and a classifier, from features to logits."""

    body: nn.Module
    head: nn.Module

    def __call__(self, images: Float[Array, "B ..."], real: Real, *, train: bool) -> tuple[Array, Array]:
        """Maps images to logits `[B, C]` and features `[B, F]`; `real` marks the rows of batch statistics."""
        features = self.body(images, real, train=train)
        return self.classify(features), features

    def classify(self, features: Float[Array, "B F"]) -> Float[Array, "B C"]:
        """Computes logits of features, by the head alone."""
        return self.head(features)


class Mlp(nn.Module):
    """Dense layers with ReLU on flattened images, or other inputs."""

    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, images: Float[Array, "B ..."], real: Real, *, train: bool) -> Float[Array, "B F"]:
        del real, train
        hidden = flatten(images)
        for layer, units in enumerate(self.hidden):
            hidden = nn.relu(Linear(units, name=f"dense_{layer}")(hidden))
        return hidden


class TextMean(nn.Module):
    """The mean of the tokens' embeddings, and perhaps a hidden dense layer with ReLU.

    Token 0 is padding: it counts neither in the sum nor in the number of tokens, so that the length to which texts are
    padded doesn't matter; a text of padding alone has a mean of zeros. Embeddings are drawn from N(0, 1), as in
    PyTorch. An id beyond the vocabulary gives NaN.

    Attributes:
        vocabulary: V; ids are 0 to V - 1.
        embedding: length of a token's vector, E.
        hidden: units of the hidden layer; 0 for none.

    References:
        Joulin, Grave, Bojanowski, Mikolov, "Bag of Tricks for Efficient Text Classification" (fastText), EACL 2017,
        which has no hidden layer, and also averages vectors of n-grams.
    """

    vocabulary: int
    embedding: int
    hidden: int

    @nn.compact
    def __call__(self, ids: Int[Array, "B ..."], real: Real, *, train: bool) -> Float[Array, "B F"]:
        del real, train
        tokens = flatten(ids)
        present = tokens != 0
        vectors = nn.Embed(self.vocabulary, self.embedding, embedding_init=initializers.normal(1.0), name="embedding")(
            tokens
        )
        total = jnp.where(present[..., None], vectors, 0).sum(1)
        mean = total / jnp.maximum(present.sum(1, keepdims=True), 1)
        return nn.relu(Linear(self.hidden, name="dense")(mean)) if self.hidden else mean


class Layer(NamedTuple):
    """A convolution of a `PlainCnn`: its output channels, the kernel's side, the padding, and whether it is pooled."""

    channels: int
    size: int
    padding: int | Literal["SAME"]
    pooled: bool = True


class PlainCnn(nn.Module):
    """Convolutions, some followed by 2x2 max pooling, then one or more dense layers: most of the small networks.

    Attributes:
        convolve: the function that convolves.
        layers: the convolutions.
        features: units of the last dense layer.
        activation: activation of the convolutions and of the dense layers before the last.
        last: activation of the last dense layer.
        hidden: units of the dense layers before the last.
    """

    convolve: Convolution
    layers: tuple[Layer, ...]
    features: int
    activation: Callable[[Array], Array] = nn.relu
    last: Callable[[Array], Array] = nn.relu
    hidden: tuple[int, ...] = ()

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        del real, train
        maps = images
        for number, (channels, size, padding, pooled) in enumerate(self.layers):
            layer = Conv(channels, size, padding, self.convolve, pooled=pooled, name=f"conv_{number}")
            maps = self.activation(layer(maps))
        hidden = flatten(maps)
        for number, units in enumerate(self.hidden):
            hidden = self.activation(Linear(units, name=f"dense_{number}")(hidden))
        return self.last(Linear(self.features, name="dense")(hidden))


def fedavg_cnn(convolve: Convolution, conv_relu: bool = True) -> nn.Module:
    """Builds the convolutional network of the paper that introduced federated averaging.

    Args:
        convolve: computes convolutions.
        conv_relu: whether ReLU follows the convolutions.

    References:
        McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
        section 3, which mentions ReLU only for the dense layer. Two networks of these sizes are in use: FedML's
        `CNN_OriginalFedAvg`, also in GossipFL, has no activation after its convolutions (`conv_relu=False` here); the
        other has ReLU there, as GossipFL's `mnistflnet.py` does (the default here).
    """
    layers = Layer(32, 5, "SAME"), Layer(64, 5, "SAME")
    return PlainCnn(convolve, layers, 512, nn.relu if conv_relu else lambda maps: maps)


class TinyBn(nn.Module):
    """One convolution with batch normalisation: the smallest network with batch statistics.

    The feature maps before and after pooling are recorded in the collection "taps".
    """

    convolve: Convolution

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        maps = nn.Conv(
            4, (3, 3), use_bias=False, kernel_init=uniform_kernel, conv_general_dilated=self.convolve, name="conv"
        )(images)
        maps = nn.relu(BatchNorm(name="norm")(maps, real, train=train))
        pooled = max_pool(maps)
        for tap in (maps, pooled):
            self.sow("taps", "maps", tap)
        return flatten(pooled)


class AstraeaCnn(nn.Module):
    """Astraea's network for 28x28 characters: three convolutions without padding, dropout, a dense layer.

    The paper does not state the activation of the convolutions; here it is ReLU. `dropout` has one entry, the fraction
    of values dropped between the second and the third convolution.

    References:
        Duan et al., "Astraea: Self-balancing Federated Learning for Improving Classification Accuracy of Mobile Deep
        Learning Applications", ICCD 2019, section II-B.
    """

    convolve: Convolution
    dropout: tuple[float, ...] = (0.5,)

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B 150"]:
        del real
        maps = nn.relu(Conv(12, 5, 0, self.convolve, 2, name="conv_0")(images))
        maps = nn.relu(Conv(18, 3, 0, self.convolve, 2, name="conv_1")(maps))
        maps = nn.Dropout(self.dropout[0], deterministic=not train, name="dropout")(maps)
        maps = nn.relu(Conv(24, 2, 0, self.convolve, name="conv_2")(maps))
        return nn.relu(Linear(150, name="dense")(flatten(maps)))


class Vgg9(nn.Module):
    """Six 3x3 convolutions in three blocks, then two dense layers: the network of matched averaging, and of IWDS.

    `dropout` holds the fractions dropped in training: of the second block's channels, each as a whole; of the third
    block's values; of the features.

    References:
        Wang et al., "Federated Learning with Matched Averaging", ICLR 2020; layers as "ModerateCNN" in its code, which
        GossipFL, the code of IWDS, adopted.
    """

    convolve: Convolution
    dropout: tuple[float, ...] = (0.05, 0.1, 0.1)

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B 512"]:
        del real
        # Among maps whole channels are dropped, as the neighbours of a dropped pixel would give it away.
        channels, values, features = self.dropout
        maps = nn.relu(Conv(32, 3, 1, self.convolve, name="conv_0")(images))
        maps = nn.relu(Conv(64, 3, 1, self.convolve, pooled=True, name="conv_1")(maps))
        maps = nn.relu(Conv(128, 3, 1, self.convolve, name="conv_2")(maps))
        maps = nn.relu(Conv(128, 3, 1, self.convolve, pooled=True, name="conv_3")(maps))
        maps = nn.Dropout(channels, broadcast_dims=(1, 2), deterministic=not train, name="dropout_0")(maps)
        maps = nn.relu(Conv(256, 3, 1, self.convolve, name="conv_4")(maps))
        maps = nn.relu(Conv(256, 3, 1, self.convolve, pooled=True, name="conv_5")(maps))
        hidden = nn.Dropout(values, deterministic=not train, name="dropout_1")(flatten(maps))
        hidden = nn.relu(Linear(512, name="dense_0")(hidden))
        hidden = nn.relu(Linear(512, name="dense_1")(hidden))
        return nn.Dropout(features, deterministic=not train, name="dropout_2")(hidden)


class KerasCifar10(nn.Module):
    """The CIFAR-10 network of Keras's examples: four 3x3 convolutions in two blocks and a dense layer.

    `dropout` holds the fractions dropped in training: of the values after the first and the second block, and of the
    features.

    References:
        Astraea (Duan et al., 2019), section IV-A, names it for CINIC-10.
    """

    convolve: Convolution
    dropout: tuple[float, ...] = (0.25, 0.25, 0.5)

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B 512"]:
        del real
        maps = images
        for block, channels in enumerate((32, 64)):
            maps = nn.relu(Conv(channels, 3, "SAME", self.convolve, name=f"conv_{2 * block}")(maps))
            maps = nn.relu(Conv(channels, 3, 0, self.convolve, pooled=True, name=f"conv_{2 * block + 1}")(maps))
            maps = nn.Dropout(self.dropout[block], deterministic=not train, name=f"dropout_{block}")(maps)
        hidden = nn.relu(Linear(512, name="dense")(flatten(maps)))
        return nn.Dropout(self.dropout[2], deterministic=not train, name="dropout_2")(hidden)


he_uniform = initializers.variance_scaling(2.0, "fan_in", "uniform")
"""Uniform of variance 2 / fan in."""

he_normal_of_outputs = initializers.variance_scaling(2.0, "fan_out", "normal")
"""Normal of variance 2 / fan out."""


class ResNet(nn.Module):
    """A convolution, stages of residual units of two convolutions each, and the mean over all pixels.

    Every stage but the first halves the image. The units that do so have a 1x1 convolution with normalisation as their
    shortcut, as in CBFL's code. Trainable parameters, for colour images:

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
    collection "taps"; those of the first layer and of each stage, before their activation, in the collection "levels".

    Attributes:
        convolve: the function that convolves.
        channels: channels of each stage.
        units: residual units of each stage.
        large: whether images are large: the first convolution is then 7x7 with stride 2, followed by 3x3 max pooling
            that halves the image again; otherwise it is 3x3 and keeps the size.
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
        maps = stem(images, real, train=train)
        self.sow("levels", "stages", maps)
        maps = relu(maps)
        if self.large:
            maps = overlapping_max_pool(maps)
        for stage, channels in enumerate(self.channels):
            for unit in range(self.units):
                stride = 2 if stage > 0 and unit == 0 else 1
                name = f"unit_{self.units * stage + unit}"
                layers = ResidualUnit(channels, stride, self.convolve, self.start, self.norm, name=name)
                maps = layers(maps, real, train=train)
                if unit == self.units - 1:
                    self.sow("levels", "stages", maps)
                maps = relu(maps)
                # Attention transfer compares the maps of a teacher and a student here.
                self.sow("taps", "units", maps)
        # A mean instead of pooling with a fixed window, so that images of any size have equally many features.
        return maps.mean((1, 2))


class ResidualUnit(nn.Module):
    """Two 3x3 convolutions, added to a shortcut, which is a 1x1 convolution if the first has a stride above 1.

    The sum has no activation yet.
    """

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
        return layer(size=3, stride=1, name="conv_1")(inner, real, train=train) + shortcut


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


MOBILE_STAGES = (
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

    It halves the image three times; the paper's network, for larger images, halves it five times. Other departures from
    the paper, as in CBFL's code: ReLU is not cut off at 6; a block of stride 1 that changes the number of channels also
    has a shortcut, a 1x1 convolution; and a block that does not expand still has its first 1x1 convolution.

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
            for expansion, channels, count, stride in MOBILE_STAGES
            for block in range(count)
        ]
        for number, shape in enumerate(blocks):
            block = InvertedResidual(*shape, self.convolve, self.norm, name=f"block_{number}")
            maps = block(maps, real, train=train)
            # For attention transfer, as in `ResNet`.
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
