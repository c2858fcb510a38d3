"""The workloads that are measured, as data: images, clients, model and local training.

Only shapes, counts and sizes matter here, not accuracy. `Workload` holds all that other programs need;
`fedjax_bal.bench.export` writes it to a file for them.
"""

from collections.abc import Callable
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.bench.pixels import CIFAR10, FASHION_MNIST, TURNED, Source, pixels


class Workload(NamedTuple):
    """Federated averaging with uniform selection and without evaluation, on given data.

    Attributes:
        name: its short name.
        text: one line about it.
        source: the source of its images.
        deal: `deal(rng, labels) -> N arrays of row numbers`; clients may share rows.
        clients_per_round: the cohort's size.
        batch_size: B.
        optimizer: `name` and numbers of the clients' optimizer, as `fedjax_bal.optimizer` takes them.
        model: a name of `fedjax_bal.models`.
        options: the model's options.
        local_epochs: E.
    """

    name: str
    text: str
    source: Source
    deal: Callable[[np.random.Generator, np.ndarray], list[np.ndarray]]
    clients_per_round: int
    batch_size: int
    optimizer: dict[str, Any]
    model: str
    options: dict[str, Any]
    local_epochs: int = 1


class Material(NamedTuple):
    """A workload's examples and their assignment to clients.

    Attributes:
        images: `UInt8[D, H, W, K]`.
        labels: `Int32[D]`.
        rows_per_client: N arrays of row numbers.
    """

    images: np.ndarray
    labels: np.ndarray
    rows_per_client: list[np.ndarray]


def material(workload: Workload, data_dir: str | None = None, seed: int = 0) -> Material:
    """Images, labels and clients of a workload, the same for the same seed; random pixels without `data_dir`.

    Example:
        >>> made = material(WORKLOADS["W3"])
        >>> made.images.shape, len(made.rows_per_client), len(made.rows_per_client[0])
        ((60000, 28, 28, 1), 1000, 60)
    """
    rng = np.random.default_rng(seed)
    images, labels = pixels(workload.source, data_dir, rng)
    return Material(images, labels, workload.deal(rng, labels))


def spans(order: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Cuts rows into consecutive clients of given sizes, starting again at the end of the rows.

    A client that is no larger than the list never holds a row twice.

    Example:
        >>> [rows.tolist() for rows in spans(np.array([7, 8, 9]), np.array([2, 3]))]
        [[7, 8], [9, 7, 8]]
    """
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    return [order[np.arange(first, last) % len(order)] for first, last in pairwise(bounds)]


def spans_by_class(rng: np.random.Generator, labels: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Cuts the rows of each class into clients as `spans` does, `counts[i, c]` rows of class c for client i.

    Example:
        >>> labels = np.array([0, 1, 0, 1])
        >>> rows = spans_by_class(np.random.default_rng(0), labels, np.array([[2, 0], [1, 1]]))
        >>> [labels[mine].tolist() for mine in rows]
        [[0, 0], [0, 1]]
    """
    columns = [spans(rng.permutation(np.flatnonzero(labels == k)), counts[:, k]) for k in range(counts.shape[1])]
    return [np.concatenate(pieces) for pieces in zip(*columns, strict=True)]


def lognormal_sizes(rng: np.random.Generator, clients: int) -> np.ndarray:
    """Client sizes `Int[N]`, lognormal with mean 235 and deviation 1.2 of the logarithm, at least 10."""
    sigma = 1.2
    return np.maximum(10, np.rint(rng.lognormal(np.log(235) - sigma**2 / 2, sigma, clients))).astype(np.int64)


def uniform_sizes(rng: np.random.Generator, clients: int) -> np.ndarray:
    """Client sizes `Int[N]`, uniform from 131 to 336."""
    return rng.integers(131, 337, clients)


def _equal(clients: int, size: int) -> Callable[[np.random.Generator, np.ndarray], list[np.ndarray]]:
    return lambda rng, labels: spans(rng.permutation(len(labels)), np.full(clients, size))


def _of_sizes(
    sizes: Callable[[np.random.Generator, int], np.ndarray], clients: int
) -> Callable[[np.random.Generator, np.ndarray], list[np.ndarray]]:
    return lambda rng, labels: spans(rng.permutation(len(labels)), sizes(rng, clients))


def _two_classes(rng: np.random.Generator, labels: np.ndarray) -> list[np.ndarray]:
    client = np.arange(50)
    counts = np.zeros((50, 10), int)
    # The second class is 1 to 5 classes after the first, so that every class has equally many clients.
    for classes in (client % 10, (client + 1 + client // 10) % 10):
        counts[client, classes] = 500
    return spans_by_class(rng, labels, counts)


def _dirichlet(rng: np.random.Generator, labels: np.ndarray) -> list[np.ndarray]:
    return spans_by_class(rng, labels, rng.multinomial(500, rng.dirichlet(np.full(10, 0.1), 100)))


_ADAM = {"name": "adam", "learning_rate": 1e-3}
_LIST = (
    Workload(
        "W1",
        "CIFAR-10, 1000 clients x 50, pfl-research's network",
        CIFAR10,
        _equal(1000, 50),
        50,
        10,
        {"name": "sgd", "learning_rate": 0.1},
        "conv2_pfl",
        {},
    ),
    Workload(
        "W2",
        "Fashion-MNIST, 50 clients x 1000 of two classes, a LeNet-like network",
        FASHION_MNIST,
        _two_classes,
        10,
        50,
        {"name": "sgd", "learning_rate": 0.01},
        "conv2_lenet",
        {},
    ),
    Workload(
        "W3",
        "Fashion-MNIST, 1000 clients x 60, 784-64-10",
        FASHION_MNIST,
        _equal(1000, 60),
        100,
        10,
        {"name": "sgd", "learning_rate": 0.05},
        "mlp",
        {"hidden": (64,)},
    ),
    Workload(
        "W4",
        "47 classes, 500 clients of 131 to 336, Astraea's network without dropout",
        TURNED,
        _of_sizes(uniform_sizes, 500),
        25,
        20,
        _ADAM,
        "astraea_cnn",
        {"dropout": 0.0},
    ),
    Workload(
        "W4b",
        "47 classes, 5000 clients of lognormal sizes around 235, Astraea's network without dropout",
        TURNED,
        _of_sizes(lognormal_sizes, 5000),
        250,
        20,
        _ADAM,
        "astraea_cnn",
        {"dropout": 0.0},
    ),
    Workload(
        "W5",
        "CIFAR-10, 100 clients x 500 with Dirichlet(0.1) labels, a residual network with batch normalisation",
        CIFAR10,
        _dirichlet,
        10,
        50,
        {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9},
        "resnet20",
        {},
    ),
)

WORKLOADS = MappingProxyType({workload.name: workload for workload in _LIST})
"""Workloads by name."""
