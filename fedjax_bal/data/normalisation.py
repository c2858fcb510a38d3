"""The constants with which the images of a data set are normalised."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_bal.data.inputs import are_tokens, num_channels
from fedjax_bal.data.readers import find_reader
from fedjax_bal.validate import per_channel

OWN = "own"
"""Stands for the constant of the training images."""

_BLOCK = 4096  # images counted at a time


def normalisation(
    name: str,
    images: np.ndarray,
    mean: float | Sequence[float] | str | None = None,
    std: float | Sequence[float] | str | None = None,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the mean and standard deviation with which a data set's pixels, scaled to [0, 1], are normalised.

    The defaults are the constants of the reproduced papers' code, which are not always the data set's own: MNIST's
    (0.1307, 0.3081) for MNIST, Fashion-MNIST and EMNIST, as in ReBaFL's code, and CIFAR-10's for CIFAR-100 too. SVHN
    and CINIC-10 have their own published constants, iNaturalist has ImageNet's; FEMNIST and a user's own files have the
    mean and standard deviation of their training images, or of each of K features. Token ids have 0 and 1.

    Args:
        name: the data set.
        images: its training images, `[D, H, W, K]`, bytes or floats; or other inputs, `[D, ..., K]`.
        mean: one number, K numbers, or "own" for that of the images; None for the default.
        std: the standard deviation, likewise.

    Returns:
        K means and K standard deviations; 1 for the own standard deviation of a constant channel.

    Raises:
        ValueError: the name is unknown, or numbers are not finite, not one for each channel, or, for `std`, not above
            0.

    Example:
        >>> from fedjax_bal import data
        >>> images = data.load("fashion_mnist_small").train_images
        >>> normalisation("fashion_mnist_small", images)
        ((0.1307,), (0.3081,))
        >>> (mean,), (std,) = normalisation("fashion_mnist_small", images, "own", "own")
        >>> round(mean, 4), round(std, 4)
        (0.2854, 0.3526)
    """
    reader = find_reader(name)
    mean, std = (reader.mean or OWN) if mean is None else mean, (reader.std or OWN) if std is None else std
    if _is_own(mean) or _is_own(std):  # on demand, since it reads all images
        own_mean, own_std = own_constants(images)
        mean, std = own_mean if _is_own(mean) else mean, own_std if _is_own(std) else std
    return _numbers(name, "mean", mean, images), _numbers(name, "std", std, images)


def own_constants(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns K means and standard deviations of images, with bytes scaled to [0, 1]; 1 for a constant channel's."""
    if are_tokens(images):
        return (0.0,), (1.0,)
    channels = [_moments(images[..., channel]) for channel in range(images.shape[-1])]
    return tuple(mean for mean, _ in channels), tuple(std if std > 1e-6 else 1.0 for _, std in channels)


def _is_own(value: Any) -> bool:
    return isinstance(value, str) and value == OWN


def _numbers(name: str, key: str, value: Any, images: np.ndarray) -> tuple[float, ...]:
    """Returns one number for each channel, after checking them."""
    channels = num_channels(images)
    per_channel(f"data set {name}: {key}", value, channels, positive=key == "std", also=f"{OWN!r}, or ")
    return tuple(np.broadcast_to(np.asarray(value, np.float64), (channels,)).tolist())


def _moments(pixels: np.ndarray) -> tuple[float, float]:
    """Returns mean and standard deviation of one channel."""
    if pixels.dtype != np.uint8:
        return float(pixels.mean(dtype=np.float64)), float(pixels.std(dtype=np.float64))
    counts = np.zeros(256, np.int64)
    for start in range(0, len(pixels), _BLOCK):  # in blocks, since counting takes eight bytes a pixel
        counts += np.bincount(pixels[start : start + _BLOCK].ravel(), minlength=256)
    law, values = counts / pixels.size, np.arange(256) / 255
    mean = float(law @ values)
    return mean, float(law @ (values - mean) ** 2) ** 0.5
