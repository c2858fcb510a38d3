"""With which constants the images of a data set are normalised."""

import numpy as np

from .catalogue import DATASETS

_BLOCK = 4096  # images that are counted at a time


def normalisation(name: str, images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the pixels, scaled to [0, 1].

    Args:
        name: the data set.
        images: its training images, `UInt8[D, H, W, K]`.

    Returns:
        K means and K standard deviations: the published ones where the data set has such, or else those of the images;
        1 for the standard deviation of a channel that is constant.

    Example:
        >>> normalisation("mnist", np.zeros((1, 28, 28, 1), np.uint8))
        ((0.1307,), (0.3081,))
        >>> normalisation("npz", np.array([0, 255], np.uint8).reshape(2, 1, 1, 1))
        ((0.5,), (0.5,))
    """
    info = DATASETS[name]
    if info.mean:
        return info.mean, info.std
    laws = [_histogram(images[..., channel]) / images[..., 0].size for channel in range(images.shape[-1])]
    values = np.arange(256) / 255
    means = [float(law @ values) for law in laws]
    spreads = [float(law @ (values - mean) ** 2) ** 0.5 for law, mean in zip(laws, means, strict=True)]
    return tuple(means), tuple(spread if spread > 1e-6 else 1.0 for spread in spreads)


def _histogram(images: np.ndarray) -> np.ndarray:
    """How often each value occurs, in blocks, since counting needs eight bytes a pixel."""
    counts = np.zeros(256, np.int64)
    for start in range(0, len(images), _BLOCK):
        counts += np.bincount(images[start : start + _BLOCK].ravel(), minlength=256)
    return counts
