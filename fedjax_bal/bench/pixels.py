"""The images of the workloads: real ones from files, or random ones of the same shapes."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

TURNED_CLASSES, TURNED_PER_CLASS = 47, 2400
"""The classes and images per class of EMNIST's balanced split."""
_TURNS = 3


class Source(NamedTuple):
    """A source of images.

    Attributes:
        text: description.
        read: `read(data_dir) -> (images UInt8[D, H, W, K], labels Int[D])`.
        examples: D.
        num_classes: C.
        input_shape: `(H, W, K)`.
        mean: of the pixels scaled to [0, 1], for each channel.
        std: on the same scale.
    """

    text: str
    read: Callable[[str], tuple[np.ndarray, np.ndarray]]
    examples: int
    num_classes: int
    input_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def pixels(source: Source, data_dir: str | None, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Images `UInt8[D, H, W, K]` and labels `Int32[D]` of a source; random ones without `data_dir`.

    Example:
        >>> images, labels = pixels(FASHION_MNIST, None, np.random.default_rng(0))
        >>> images.shape, images.dtype, labels[:12].tolist()
        ((60000, 28, 28, 1), dtype('uint8'), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1])
    """
    if data_dir is not None:
        images, labels = source.read(data_dir)
        return images, labels.astype(np.int32)
    images = rng.integers(0, 256, (source.examples, *source.input_shape), np.uint8)
    return images, np.arange(source.examples, dtype=np.int32) % source.num_classes


def _read(name: str) -> Callable[[str], tuple[np.ndarray, np.ndarray]]:
    def read(data_dir: str) -> tuple[np.ndarray, np.ndarray]:
        from fedjax_bal.data import load

        dataset = load(name, data_dir)
        return dataset.train_images, dataset.train_labels

    return read


def _read_turned(data_dir: str) -> tuple[np.ndarray, np.ndarray]:
    """MNIST, then Fashion-MNIST, each turned by 0, 90 and 180 degrees: the first 47 of sixty classes."""
    stocks = [_read(name)(data_dir) for name in ("mnist", "fashion_mnist")]
    pieces = []
    for number in range(TURNED_CLASSES):
        turn, label = divmod(number, 10)
        images, labels = stocks[turn // _TURNS]
        mine = images[np.flatnonzero(labels == label)[:TURNED_PER_CLASS]]
        pieces.append(np.rot90(mine, turn % _TURNS, axes=(1, 2)))
    return np.concatenate(pieces), np.repeat(np.arange(TURNED_CLASSES), [len(piece) for piece in pieces])


_GREY = {"input_shape": (28, 28, 1), "mean": (0.1307,), "std": (0.3081,)}
_COLOUR = {"input_shape": (32, 32, 3), "mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)}

FASHION_MNIST = Source("Fashion-MNIST", _read("fashion_mnist"), 60_000, 10, **_GREY)
CIFAR10 = Source("CIFAR-10", _read("cifar10"), 50_000, 10, **_COLOUR)
TURNED = Source(
    "MNIST and Fashion-MNIST, turned", _read_turned, TURNED_CLASSES * TURNED_PER_CLASS, TURNED_CLASSES, **_GREY
)
