"""A federation and a network that cover all needs of parts, and are so small that most time is compilation."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal.data import federate
from fedjax_bal.optim import optimizer
from fedjax_bal.options import LocalTraining, Participation
from fedjax_bal.recipes import Recipe
from fedjax_bal.selection import bernoulli
from fedjax_bal.types import Array, Federation, Key, Model, Outputs, PyTree, Variables

CLASSES = 3
WIDTH = 4
FEATURES = 4
SIZES = (7, 1, 10, 0, 5, 12, 3, 9)
"""Number of rows of each client: one has a single row, one has none."""

_SPARE = 9  # rows of the auxiliary set
_MOMENTUM = 0.9


@cache
def federation() -> Federation:
    """Builds eight clients with skewed labels, some with a single class, and an auxiliary set `balanced`."""
    rng = np.random.default_rng(0)
    owned = np.repeat(np.arange(CLASSES), sum(SIZES) // CLASSES + 1)[: sum(SIZES)]
    labels = np.concatenate([owned, np.arange(_SPARE) % CLASSES])
    images = rng.normal(size=(len(labels), WIDTH)) + 1.5 * np.eye(CLASSES, WIDTH)[labels]
    spans = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    spare = {"balanced": np.arange(sum(SIZES), len(labels))}
    return federate(images.astype(np.float32).reshape(-1, 1, WIDTH, 1), labels, spans, CLASSES, spare)


def test_set() -> tuple[np.ndarray, np.ndarray]:
    """Returns the nine rows of the auxiliary set and three rows of clients, `[12, 1, 4, 1]` and `[12]`."""
    data = federation()
    rows = np.concatenate([data.auxiliary["balanced"], np.arange(0, sum(SIZES), 16)])[:12]
    return data.images[rows], data.labels[rows]


@cache
def network() -> Model:
    """Builds two dense layers; the first is centred by its batch as in batch normalisation, with a running mean.

    It doesn't divide by the deviation, which would amplify rounding differences in batches of one row.
    """
    return Model(_init, _apply, _head, "toy", CLASSES, (1, WIDTH, 1))


def local_training(model: Model) -> LocalTraining:
    """Returns batches of 4 rows and SGD; the toy network trains on single rows, too, other models as they allow."""
    lone_rows = "keep" if model is network() else "auto"
    return LocalTraining(batch_size=4, optimizer=optimizer("sgd", 0.1), lone_rows=lone_rows)


def participation(recipe: Recipe) -> Participation:
    """Returns five or six clients per round, of which some are unavailable and some don't deliver."""
    size = 5 if recipe.selector is None else 6
    return Participation(clients_per_round=size, availability=bernoulli(0.8), delivery=bernoulli(0.7))


def _init(key: Key) -> Variables:
    body, head = jax.random.split(key)
    params = {
        "body": {"kernel": 0.5 * jax.random.normal(body, (WIDTH, FEATURES))},
        "head": {"dense": {"kernel": 0.5 * jax.random.normal(head, (FEATURES, CLASSES)), "bias": jnp.zeros(CLASSES)}},
    }
    return Variables(params, {"mean": jnp.zeros(FEATURES)})


def _apply(
    variables: Variables, images: Array, *, train: bool, key: Key | None = None, real: Array | None = None
) -> tuple[Outputs, Variables]:
    hidden = images.reshape(len(images), -1) @ variables.params["body"]["kernel"]
    share = jnp.ones(len(images)) if real is None else real.astype(hidden.dtype)
    share = (share / jnp.maximum(share.sum(), 1.0))[:, None]
    mean = (share * hidden).sum(0)
    variance = (share * (hidden - mean) ** 2).sum(0)
    running = variables.stats["mean"]
    features = jnp.tanh(hidden - (mean if train else running))
    taps = features.reshape(len(images), 1, 2, FEATURES // 2)
    outputs = Outputs(_head(variables.params, features), features, (taps,), ((mean, variance),))
    if not train:
        return outputs, variables
    return outputs, variables._replace(stats={"mean": _MOMENTUM * running + (1 - _MOMENTUM) * mean})


def _head(params: PyTree, features: Array) -> Array:
    dense = params["head"]["dense"]
    return features @ dense["kernel"] + dense["bias"]
