"""The benchmark workloads: images, clients, model and local training; and their simulations.

Only shapes, counts and sizes matter, not accuracy. `Workload` holds everything that other programs need;
`benchmarks/export.py` writes it to a file for them.
"""

from collections.abc import Callable
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal import data, models, recipes
from fedjax_bal.engine.host import Simulation, build_simulation
from fedjax_bal.optim import optimizer
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.types import Federation, Model

HORIZON = 2**30
"""More rounds than a measurement takes, so that no measured round is the last."""
# Classes and images per class of EMNIST's balanced split.
TURNED_CLASSES = 47
TURNED_PER_CLASS = 2400
_TURNS = 3


class Source(NamedTuple):
    """A source of images; `mean` and `std` are per channel, of pixels scaled to [0, 1]."""

    read: Callable[[str], tuple[np.ndarray, np.ndarray]]  # read(data_dir) -> (images UInt8[D, H, W, K], labels Int[D])
    examples: int
    num_classes: int
    input_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def pixels(source: Source, data_dir: str | None, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns images `UInt8[D, H, W, K]` and labels `Int32[D]` of a source; random pixels without `data_dir`."""
    if data_dir is not None:
        images, labels = source.read(data_dir)
        return images, labels.astype(np.int32)
    images = rng.integers(0, 256, (source.examples, *source.input_shape), np.uint8)
    return images, np.arange(source.examples, dtype=np.int32) % source.num_classes


def _read(name: str) -> Callable[[str], tuple[np.ndarray, np.ndarray]]:
    def read(data_dir: str) -> tuple[np.ndarray, np.ndarray]:
        dataset = data.load(name, data_dir)
        return dataset.train_images, dataset.train_labels

    return read


def _read_turned(data_dir: str) -> tuple[np.ndarray, np.ndarray]:
    """MNIST, then Fashion-MNIST, each rotated by 0, 90 and 180 degrees: the first 47 of these 60 classes."""
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

FASHION_MNIST = Source(_read("fashion_mnist"), 60_000, 10, **_GREY)
CIFAR10 = Source(_read("cifar10"), 50_000, 10, **_COLOUR)
TURNED = Source(_read_turned, TURNED_CLASSES * TURNED_PER_CLASS, TURNED_CLASSES, **_GREY)


class Workload(NamedTuple):
    """A benchmark task: federated averaging on given data, with uniform selection and without evaluation.

    Attributes:
        name: the short name.
        source: the source of the images.
        deal: `deal(rng, labels) -> N arrays of row numbers`; clients may share rows.
        clients_per_round: the cohort size.
        batch_size: B.
        optimizer: `name` and hyperparameters of the clients' optimizer, as for `fedjax_bal.optimizer`.
        model: a name in `fedjax_bal.models`.
        options: the model's options.
        local_epochs: E.
    """

    name: str
    source: Source
    deal: Callable[[np.random.Generator, np.ndarray], list[np.ndarray]]
    clients_per_round: int
    batch_size: int
    optimizer: dict[str, Any]
    model: str
    options: dict[str, Any]
    local_epochs: int = 1


class Material(NamedTuple):
    """A workload's images and labels, and their assignment to clients."""

    images: np.ndarray  # UInt8[D, H, W, K]
    labels: np.ndarray  # Int32[D]
    rows_per_client: list[np.ndarray]  # N arrays of row numbers


def material(workload: Workload, data_dir: str | None = None, seed: int = 0) -> Material:
    """Builds the data of a workload, deterministically for a seed; with random pixels without `data_dir`."""
    rng = np.random.default_rng(seed)
    images, labels = pixels(workload.source, data_dir, rng)
    return Material(images, labels, workload.deal(rng, labels))


def spans(order: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Assigns rows to consecutive clients of given sizes; starts again at the first row when the rows run out.

    A client with at most `len(order)` rows never holds a row twice.

    Example:
        >>> [rows.tolist() for rows in spans(np.array([7, 8, 9]), np.array([2, 3]))]
        [[7, 8], [9, 7, 8]]
    """
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    return [order[np.arange(first, last) % len(order)] for first, last in pairwise(bounds)]


def spans_by_class(rng: np.random.Generator, labels: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Assigns each class's rows to clients as `spans` does, `counts[i, c]` rows of class c to client i.

    Example:
        >>> labels = np.array([0, 1, 0, 1])
        >>> rows = spans_by_class(np.random.default_rng(0), labels, np.array([[2, 0], [1, 1]]))
        >>> [labels[mine].tolist() for mine in rows]
        [[0, 0], [0, 1]]
    """
    columns = [spans(rng.permutation(np.flatnonzero(labels == k)), counts[:, k]) for k in range(counts.shape[1])]
    return [np.concatenate(pieces) for pieces in zip(*columns, strict=True)]


def lognormal_sizes(rng: np.random.Generator, clients: int) -> np.ndarray:
    """Draws client sizes `Int[N]`: lognormal with mean 235, sigma 1.2, and a minimum of 10."""
    sigma = 1.2
    return np.maximum(10, np.rint(rng.lognormal(np.log(235) - sigma**2 / 2, sigma, clients))).astype(np.int64)


def uniform_sizes(rng: np.random.Generator, clients: int) -> np.ndarray:
    """Draws client sizes `Int[N]`: uniform from 131 to 336."""
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
    # The second class follows the first by 1 to 5 classes, so that every class has the same number of clients.
    for classes in (client % 10, (client + 1 + client // 10) % 10):
        counts[client, classes] = 500
    return spans_by_class(rng, labels, counts)


def _two_shards(rng: np.random.Generator, labels: np.ndarray) -> list[np.ndarray]:
    # 200 shards of the rows sorted by class, two for each of 100 clients.
    shards = np.argsort(labels, kind="stable").reshape(200, -1)
    return list(shards[rng.permutation(200)].reshape(100, -1))


def _dirichlet(rng: np.random.Generator, labels: np.ndarray) -> list[np.ndarray]:
    return spans_by_class(rng, labels, rng.multinomial(500, rng.dirichlet(np.full(10, 0.1), 100)))


_ADAM = {"name": "adam", "learning_rate": 1e-3}
_LIST = (
    # CIFAR-10, 1000 clients x 50, pfl-research's network
    Workload("W1", CIFAR10, _equal(1000, 50), 50, 10, {"name": "sgd", "learning_rate": 0.1}, "conv2_pfl", {}),
    # Fashion-MNIST, 50 clients x 1000 of two classes, a LeNet-like network
    Workload("W2", FASHION_MNIST, _two_classes, 10, 50, {"name": "sgd", "learning_rate": 0.01}, "conv2_lenet", {}),
    # Fashion-MNIST, 1000 clients x 60, 784-64-10
    Workload(
        "W3", FASHION_MNIST, _equal(1000, 60), 100, 10, {"name": "sgd", "learning_rate": 0.05}, "mlp", {"hidden": (64,)}
    ),
    # 47 classes, 500 clients of 131 to 336, Astraea's network without dropout
    Workload("W4", TURNED, _of_sizes(uniform_sizes, 500), 25, 20, _ADAM, "astraea_cnn", {"dropout": 0.0}),
    # 47 classes, 5000 clients of lognormal sizes around 235, Astraea's network without dropout
    Workload("W4b", TURNED, _of_sizes(lognormal_sizes, 5000), 250, 20, _ADAM, "astraea_cnn", {"dropout": 0.0}),
    # CIFAR-10, 100 clients x 500 with Dirichlet(0.1) labels, a residual network with batch normalisation
    Workload("W5", CIFAR10, _dirichlet, 10, 50, {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}, "resnet20", {}),
    # BlazeFL's own benchmark: CIFAR-10, 100 clients x 500 of few classes, all of them in every round
    Workload("W6", CIFAR10, _two_shards, 100, 50, {"name": "sgd", "learning_rate": 0.1}, "simple_cnn", {}, 5),
    # PFLlib's defaults, on Fashion-MNIST: 20 clients x 3000, all of them in every round
    Workload("W7", FASHION_MNIST, _equal(20, 3000), 20, 10, {"name": "sgd", "learning_rate": 0.005}, "pfllib_cnn", {}),
)

WORKLOADS = MappingProxyType({workload.name: workload for workload in _LIST})
"""Workloads by name."""

USUAL = ("W1", "W2", "W3", "W4", "W4b", "W5")
"""The workloads that are measured if none is named; a single round of the others takes long on a CPU."""


def workload_federation(workload: Workload, data_dir: str | None = None, seed: int = 0) -> Federation:
    """Builds the workload's federation, on the host; arguments as in `material`."""
    images, labels, rows_per_client = material(workload, data_dir, seed)
    source = workload.source
    return data.federate(images, labels, rows_per_client, source.num_classes, mean=source.mean, std=source.std)


def model_of(workload: Workload, convolution: str = "auto") -> Model:
    """Builds the workload's model."""
    source = workload.source
    return models.build(
        workload.model, source.num_classes, source.input_shape, convolution=convolution, **workload.options
    )


def simulation_of(
    workload: Workload,
    federation: Federation,
    clients_per_round: int | None = None,
    execution: Execution = Execution(rounds_per_dispatch=1),
    convolution: str = "auto",
    method: str = "fedavg",
) -> Simulation:
    """Builds the simulation of a workload, by default with federated averaging; evaluated on a single image."""
    cohort = workload.clients_per_round if clients_per_round is None else clients_per_round
    return build_simulation(
        recipes.RECIPES[method](),
        model_of(workload, convolution),
        federation,
        (federation.images[:1], federation.labels[:1]),
        rounds=HORIZON,
        local=LocalTraining(
            epochs=workload.local_epochs,
            batch_size=workload.batch_size,
            optimizer=optimizer(**workload.optimizer),
        ),
        participation=Participation(clients_per_round=cohort),
        evaluation=Evaluation(every=HORIZON),
        execution=execution,
    )
