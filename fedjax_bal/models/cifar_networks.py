"""The papers' networks for CIFAR-10, without batch normalisation: convolutions, pooling, dense layers, dropout."""

import flax.linen as nn
from jaxtyping import Array, Float

from fedjax_bal.models.layers import Conv, Convolution, Linear, PooledConv, Real, flatten


class Vgg9(nn.Module):
    """Six 3x3 convolutions in three blocks, then two dense layers: the network of matched averaging, and of IWDS.

    Attributes:
        convolve: the convolution.
        dropout: shares dropped in training: of the second block's channels, each as a whole; of the third block's
            values; of the features.

    References:
        Wang et al., "Federated Learning with Matched Averaging", ICLR 2020; layers as "ModerateCNN" in its code, which
        GossipFL, the code of IWDS, takes over.
    """

    convolve: Convolution
    dropout: tuple[float, ...] = (0.05, 0.1, 0.1)

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        """Features `[B, 512]` of images `[B, H, W, K]`, 8 pixels or more a side."""
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


class FlcirCnn(nn.Module):
    """FL-CIR's network for CIFAR-10: three 3x3 convolutions without padding and a dense layer.

    References:
        github.com/ym1231/fl-cir; layers as "ToyCifarNet" in its code.
    """

    convolve: Convolution

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        """Features `[B, 64]` of images `[B, H, W, K]`, 18 pixels or more a side."""
        del real, train
        maps = nn.relu(PooledConv(32, 3, 0, self.convolve, name="conv_0")(images))
        maps = nn.relu(PooledConv(64, 3, 0, self.convolve, name="conv_1")(maps))
        maps = nn.relu(Conv(64, 3, 0, self.convolve, name="conv_2")(maps))
        return nn.relu(Linear(64, name="dense")(flatten(maps)))


class KerasCifar10(nn.Module):
    """The CIFAR-10 network of Keras's examples: four 3x3 convolutions in two blocks and a dense layer.

    Attributes:
        convolve: the convolution.
        dropout: shares of values dropped in training: after the first block, after the second, of the features.

    References:
        Astraea (Duan et al., 2019), section IV-A, names it for CINIC-10.
    """

    convolve: Convolution
    dropout: tuple[float, ...] = (0.25, 0.25, 0.5)

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"], real: Real, *, train: bool) -> Float[Array, "B F"]:
        """Features `[B, 512]` of images `[B, H, W, K]`, 10 pixels or more a side."""
        del real
        maps = images
        for block, channels in enumerate((32, 64)):
            maps = nn.relu(Conv(channels, 3, "SAME", self.convolve, name=f"conv_{2 * block}")(maps))
            maps = nn.relu(PooledConv(channels, 3, 0, self.convolve, name=f"conv_{2 * block + 1}")(maps))
            maps = nn.Dropout(self.dropout[block], deterministic=not train, name=f"dropout_{block}")(maps)
        hidden = nn.relu(Linear(512, name="dense")(flatten(maps)))
        return nn.Dropout(self.dropout[2], deterministic=not train, name="dropout_2")(hidden)
