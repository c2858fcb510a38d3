"""The networks without residual units: a body from images to features, and a head from features to logits.

Every network keeps its classifier under `params["head"]` and everything else under `params["body"]`, so that a method
that treats the two differently needs no layer names.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import flax.linen as nn
from jaxtyping import Array, Float

from fedjax_bal.models.layers import Conv, Convolution, Linear, PooledConv, Real, flatten, uniform_kernel
from fedjax_bal.models.normalization import XLA_REDUCTIONS, BatchNorm, Reductions
from fedjax_bal.models.pooling import max_pool


class Network(nn.Module):
    """A body, from images to features, and a classifier, from features to logits."""

    body: nn.Module
    head: nn.Module

    def __call__(self, images: Float[Array, "B ..."], real: Real, *, train: bool) -> tuple[Array, Array]:
        """Logits `[B, C]` and features `[B, F]` of normalised images; `real` marks the rows of batch statistics."""
        features = self.body(images, real, train=train)
        return self.classify(features), features

    def classify(self, features: Float[Array, "B F"]) -> Float[Array, "B C"]:
        """Logits of features, by the head alone."""
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


class Layer(NamedTuple):
    """A convolution of a `PlainCnn`: `channels` of its output, side of the kernel, padding, and what follows it."""

    channels: int
    size: int
    padding: int | Literal["SAME"]
    pooled: bool = True


class PlainCnn(nn.Module):
    """Convolutions, some with 2x2 max pooling, and dense layers, mostly one: most of the small networks.

    Attributes:
        convolve: the convolution.
        layers: the convolutions.
        features: units of the last dense layer.
        activation: of the convolutions, and of the dense layers before the last.
        last: of the last dense layer.
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
            kind = PooledConv if pooled else Conv
            maps = self.activation(kind(channels, size, padding, self.convolve, name=f"conv_{number}")(maps))
        hidden = flatten(maps)
        for number, units in enumerate(self.hidden):
            hidden = self.activation(Linear(units, name=f"dense_{number}")(hidden))
        return self.last(Linear(self.features, name="dense")(hidden))


def fedavg_cnn(convolve: Convolution, conv_relu: bool = True) -> nn.Module:
    """Builds the convolutional network of the paper that introduced federated averaging.

    References:
        McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
        section 3, which names ReLU for the dense layer only. Two networks of these sizes are in use: FedML's
        `CNN_OriginalFedAvg`, which GossipFL has too, without an activation after its convolutions, `conv_relu=False`
        here; and one with ReLU there, such as GossipFL's `mnistflnet.py`, the default here.
    """
    layers = Layer(32, 5, "SAME"), Layer(64, 5, "SAME")
    return PlainCnn(convolve, layers, 512, nn.relu if conv_relu else lambda maps: maps)


class TinyBn(nn.Module):
    """One convolution with batch normalisation: the smallest network that has batch statistics.

    The feature maps before and after pooling are recorded in the collection "taps".
    """

    convolve: Convolution
    reductions: Reductions = XLA_REDUCTIONS

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        maps = nn.Conv(
            4, (3, 3), use_bias=False, kernel_init=uniform_kernel, conv_general_dilated=self.convolve, name="conv"
        )(images)
        maps = nn.relu(BatchNorm(reductions=self.reductions, name="norm")(maps, real, train=train))
        pooled = max_pool(maps)
        for tap in (maps, pooled):
            self.sow("taps", "maps", tap)
        return flatten(pooled)


class AstraeaCnn(nn.Module):
    """Astraea's network for 28x28 characters: three convolutions without padding, dropout, a dense layer.

    The paper does not state the activation of the convolutions; here it is ReLU. `dropout` is one share, of the values
    between the second and the third convolution.

    References:
        Duan et al., "Astraea: Self-balancing Federated Learning for Improving Classification Accuracy of Mobile Deep
        Learning Applications", ICCD 2019, section IV-A.
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

    `dropout` holds the shares dropped in training: of the second block's channels, each as a whole; of the third
    block's values; of the features.

    References:
        Wang et al., "Federated Learning with Matched Averaging", ICLR 2020; layers as "ModerateCNN" in its code, which
        GossipFL, the code of IWDS, takes over.
    """

    convolve: Convolution
    dropout: tuple[float, ...] = (0.05, 0.1, 0.1)

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B 512"]:
        del real
        channels, values, features = self.dropout
        maps = nn.relu(Conv(32, 3, 1, self.convolve, name="conv_0")(images))
        maps = nn.relu(PooledConv(64, 3, 1, self.convolve, name="conv_1")(maps))
        maps = nn.relu(Conv(128, 3, 1, self.convolve, name="conv_2")(maps))
        maps = nn.relu(PooledConv(128, 3, 1, self.convolve, name="conv_3")(maps))
        maps = nn.Dropout(channels, broadcast_dims=(1, 2), deterministic=not train, name="dropout_0")(maps)
        maps = nn.relu(Conv(256, 3, 1, self.convolve, name="conv_4")(maps))
        maps = nn.relu(PooledConv(256, 3, 1, self.convolve, name="conv_5")(maps))
        hidden = nn.Dropout(values, deterministic=not train, name="dropout_1")(flatten(maps))
        hidden = nn.relu(Linear(512, name="dense_0")(hidden))
        hidden = nn.relu(Linear(512, name="dense_1")(hidden))
        return nn.Dropout(features, deterministic=not train, name="dropout_2")(hidden)


class KerasCifar10(nn.Module):
    """The CIFAR-10 network of Keras's examples: four 3x3 convolutions in two blocks and a dense layer.

    `dropout` holds the shares of values dropped in training: after the first block, after the second, of the features.

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
            maps = nn.relu(PooledConv(channels, 3, 0, self.convolve, name=f"conv_{2 * block + 1}")(maps))
            maps = nn.Dropout(self.dropout[block], deterministic=not train, name=f"dropout_{block}")(maps)
        hidden = nn.relu(Linear(512, name="dense")(flatten(maps)))
        return nn.Dropout(self.dropout[2], deterministic=not train, name="dropout_2")(hidden)
