"""With which constants the images of a data set are normalised."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_bal.data.readers import DATASETS
from fedjax_bal.validate import per_channel

OWN = "own"
"""In place of a constant: that of the training images."""

_BLOCK = 4096  # images that are counted at a time


def normalisation(
    name: str,
    images: np.ndarray,
    mean: float | Sequence[float] | str | None = None,
    std: float | Sequence[float] | str | None = None,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation with which a data set's pixels, scaled to [0, 1], are normalised.

    By default the constants that the reproduced papers' code uses, which are not always the data set's own: MNIST's
    (0.1307, 0.3081) for MNIST, Fashion-MNIST and EMNIST alike, as in ReBaFL's code, and CIFAR-10's for CIFAR-100 too.
    SVHN and CINIC-10 have their own published ones, iNaturalist has ImageNet's. FEMNIST and a user's own files are
    normalised with the mean and standard deviation of their training images, and any data set is where both are "own".

    Args:
        name: the data set.
        images: its training images, `[D, H, W, K]`, bytes or floats.
        mean: one number, K numbers, or "own" for that of the images; None for the default.
        std: the same for the standard deviation.

    Returns:
        K means and K standard deviations; 1 for the own standard deviation of a channel that is constant.

    Raises:
        ValueError: numbers that are not finite or not as many as there are channels, or a `std` that is not above 0.

    Example:
        >>> from fedjax_bal import data
        >>> images = data.load("fashion_mnist_small").train_images
        >>> normalisation("fashion_mnist_small", images)
        ((0.1307,), (0.3081,))
        >>> (mean,), (std,) = normalisation("fashion_mnist_small", images, "own", "own")
        >>> round(mean, 4), round(std, 4)
        (0.2854, 0.3526)
    """
    info = DATASETS[name]
    mean, std = (info.mean or OWN) if mean is None else mean, (info.std or OWN) if std is None else std
    if _is_own(mean) or _is_own(std):  # measured only where asked for, which reads all images
        own_mean, own_std = own_constants(images)
        mean, std = own_mean if _is_own(mean) else mean, own_std if _is_own(std) else std
    return _numbers(name, "mean", mean, images), _numbers(name, "std", std, images)


def own_constants(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of images, bytes scaled to [0, 1], floats as they are.

    Args:
        images: `[D, H, W, K]`.

    Returns:
        K means and K standard deviations; 1 for that of a channel that is constant.

    Example:
        >>> own_constants(np.array([0, 255], np.uint8).reshape(2, 1, 1, 1))
        ((0.5,), (0.5,))
    """
    channels = [_moments(images[..., channel]) for channel in range(images.shape[-1])]
    return tuple(mean for mean, _ in channels), tuple(std if std > 1e-6 else 1.0 for _, std in channels)


def _is_own(value: Any) -> bool:
    return isinstance(value, str) and value == OWN


def _numbers(name: str, key: str, value: Any, images: np.ndarray) -> tuple[float, ...]:
    """One number for each channel."""
    channels = images.shape[-1]
    per_channel(f"data set {name}: {key}", value, channels, positive=key == "std", also=f"{OWN!r}, or ")
    return tuple(np.broadcast_to(np.asarray(value, np.float64), (channels,)).tolist())


def _moments(pixels: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of one channel."""
    if pixels.dtype != np.uint8:
        return float(pixels.mean(dtype=np.float64)), float(pixels.std(dtype=np.float64))
    law, values = _histogram(pixels) / pixels.size, np.arange(256) / 255
    mean = float(law @ values)
    return mean, float(law @ (values - mean) ** 2) ** 0.5


def _histogram(images: np.ndarray) -> np.ndarray:
    """How often each value occurs, in blocks, since counting needs eight bytes a pixel."""
    counts = np.zeros(256, np.int64)
    for start in range(0, len(images), _BLOCK):
        counts += np.bincount(images[start : start + _BLOCK].ravel(), minlength=256)
    return counts
