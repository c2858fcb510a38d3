"""A data set, a partition, a model, a selector and a metric."""

import numpy as np

from fedjax_bal import models, register, selection
from fedjax_bal.types import Dataset


@register("dataset", "stripes")
def stripes(classes: int = 4, per_class: int = 30) -> Dataset:
    """Images of one bright row, the class."""
    labels = np.repeat(np.arange(classes, dtype=np.int32), per_class)
    images = np.random.default_rng(0).integers(0, 99, (len(labels), classes, 5, 1), np.uint8)
    images[np.arange(len(labels)), labels] += 100
    return Dataset(images, labels, images[::3], labels[::3], tuple(f"row {label}" for label in range(classes)))


@register("partitioner", "blocks")
def blocks(rng, labels, num_clients, mixed: float = 0.0):
    """Cuts the label-sorted rows into equal blocks, after mixing some of them."""
    order = np.argsort(labels, kind="stable")
    some = rng.permutation(len(order))[: int(mixed * len(order))]
    order[np.sort(some)] = order[some]
    return np.array_split(order, num_clients)


@register("model", "wide_mlp")
def wide_mlp(num_classes, input_shape, width: int = 32, layers: int = 1):
    """Hidden layers of one width."""
    return models.build("mlp", num_classes, input_shape, hidden=(width,) * layers)


@register("selector", "first_available")
def first_available(clients_per_round, *, sizes, largest: bool = False):
    """The clients with the lowest numbers, or the largest ones."""
    order = np.argsort(-sizes, kind="stable") if largest else np.arange(len(sizes))

    def select(state, seed, round, available):
        clients = np.full((clients_per_round, 1), len(available), np.int32)
        chosen = order[available[order]][:clients_per_round]
        clients[: len(chosen), 0] = chosen
        return clients, state

    return selection.uniform(clients_per_round)._replace(select=select)


@register("metric", "geometric_mean")
def geometric_mean(result):
    """The geometric mean of the classes' recalls."""
    recalls = np.diag(result.confusion) / result.confusion.sum(1)
    return float(np.prod(recalls) ** (1 / len(recalls)))
