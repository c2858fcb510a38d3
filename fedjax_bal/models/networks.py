"""The networks: a body from images to features, and a head from features to logits.

Every network keeps its classifier under `params["head"]` and everything else under `params["body"]`, so that a method
that treats the two differently needs no layer names.
"""

from collections.abc import Sequence

import flax.linen as nn
from jaxtyping import Array, Float

from fedjax_bal.models.layers import Conv, Convolution, Linear, PooledConv, Real, flatten, uniform_kernel
from fedjax_bal.models.normalization import BatchNorm
from fedjax_bal.models.pooling import max_pool


class Network(nn.Module):
    """A body and a classifier.

    Attributes:
        body: images `[B, H, W, K]` to features `[B, F]`.
        head: features `[B, F]` to logits `[B, C]`.
    """

    body: nn.Module
    head: nn.Module

    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> tuple[Array, Array]:
        """Logits `[B, C]` and features `[B, F]` of normalised images; `real` marks the rows of batch statistics.

        Example:
            >>> import jax
            >>> import jax.numpy as jnp
            >>> network = Network(Mlp((4,)), Linear(3))
            >>> variables = network.init(jax.random.key(0), jnp.zeros((1, 2, 2, 1)), None, train=False)
            >>> logits, features = network.apply(variables, jnp.zeros((5, 2, 2, 1)), None, train=False)
            >>> logits.shape, features.shape
            ((5, 3), (5, 4))
        """
        features = self.features(images, real, train=train)
        return self.classify(features), features

    def features(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        """Features of images, by the body alone."""
        return self.body(images, real, train=train)

    def classify(self, features: Float[Array, "B F"]) -> Float[Array, "B C"]:
        """Logits of features, by the head alone."""
        return self.head(features)


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
    """ReBaFL's network for Fashion-MNIST, without the projection, which only other methods use.

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
    """ReBaFL's network for CIFAR-10, without the projection, which only other methods use.

    Its features have no activation.

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
        conv_relu: whether ReLU follows both convolutions; it always follows the dense layer.

    References:
        McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
        section 3, which names ReLU for the dense layer only. Two networks of these sizes are in use: FedML's
        `CNN_OriginalFedAvg`, which GossipFL has too, without an activation after its convolutions, `conv_relu=False`
        here; and one with ReLU there, such as GossipFL's `mnistflnet.py`, the default here.
    """

    convolve: Convolution
    conv_relu: bool = True

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        """Features `[B, 512]` of images `[B, H, W, K]`, 4 pixels or more a side."""
        del real, train
        activated = nn.relu if self.conv_relu else lambda maps: maps
        maps = activated(PooledConv(32, 5, "SAME", self.convolve, name="conv_0")(images))
        maps = activated(PooledConv(64, 5, "SAME", self.convolve, name="conv_1")(maps))
        return nn.relu(Linear(512, name="dense")(flatten(maps)))


class TinyBn(nn.Module):
    """One convolution with batch normalisation: the smallest network that has batch statistics.

    The feature maps before and after pooling are recorded in the collection "taps".
    """

    convolve: Convolution

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        """Features `[B, 4 (H // 2) (W // 2)]` of images `[B, H, W, K]`, 2 pixels or more a side."""
        maps = nn.Conv(
            4, (3, 3), use_bias=False, kernel_init=uniform_kernel, conv_general_dilated=self.convolve, name="conv"
        )(images)
        maps = nn.relu(BatchNorm(name="norm")(maps, real, train=train))
        pooled = max_pool(maps)
        for tap in (maps, pooled):
            self.sow("taps", "maps", tap)
        return flatten(pooled)


class Conv2Lenet(nn.Module):
    """Two 5x5 convolutions with pooling and a dense layer: a network of LeNet's kind."""

    convolve: Convolution

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        """Features `[B, 128]` of images `[B, H, W, K]`, 4 pixels or more a side."""
        del real, train
        maps = nn.relu(PooledConv(16, 5, "SAME", self.convolve, name="conv_0")(images))
        maps = nn.relu(PooledConv(32, 5, "SAME", self.convolve, name="conv_1")(maps))
        return nn.relu(Linear(128, name="dense")(flatten(maps)))


class Conv2Pfl(nn.Module):
    """Two 3x3 convolutions, one pooling and a dense layer: the CIFAR-10 benchmark network of pfl-research.

    References:
        Granqvist et al., "pfl-research: simulation framework for accelerating research in Private Federated Learning",
        NeurIPS 2024 Datasets and Benchmarks; layers as in its CIFAR-10 benchmark.
    """

    convolve: Convolution

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        """Features `[B, 128]` of images `[B, H, W, K]`, 4 pixels or more a side."""
        del real, train
        maps = nn.relu(Conv(32, 3, "SAME", self.convolve, name="conv_0")(images))
        maps = nn.relu(PooledConv(64, 3, 0, self.convolve, name="conv_1")(maps))
        return nn.relu(Linear(128, name="dense")(flatten(maps)))


class AstraeaCnn(nn.Module):
    """Astraea's network for 28x28 characters: three convolutions without padding, dropout, a dense layer.

    The paper does not state the activation of the convolutions; here it is ReLU.

    Attributes:
        convolve: the convolution.
        dropout: one number, the share of values dropped in training between the second and the third convolution.

    References:
        Duan et al., "Astraea: Self-balancing Federated Learning for Improving Classification Accuracy of Mobile Deep
        Learning Applications", ICCD 2019, section IV-A.
    """

    convolve: Convolution
    dropout: tuple[float, ...] = (0.5,)

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        """Features `[B, 150]` of images `[B, H, W, K]`, 13 pixels or more a side."""
        del real
        maps = nn.relu(Conv(12, 5, 0, self.convolve, 2, name="conv_0")(images))
        maps = nn.relu(Conv(18, 3, 0, self.convolve, 2, name="conv_1")(maps))
        maps = nn.Dropout(self.dropout[0], deterministic=not train, name="dropout")(maps)
        maps = nn.relu(Conv(24, 2, 0, self.convolve, name="conv_2")(maps))
        return nn.relu(Linear(150, name="dense")(flatten(maps)))
