"""Needs of a method, found by asking: a run that lacks one is refused with a message before anything is compiled."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import optax

from fedjax_bal import LocalTraining, data, make_round, models, optimizer
from fedjax_bal.recipes import Recipe
from fedjax_bal.types import Federation

_SHAPE, _CLASSES = (8, 8, 1), 10
_NETWORKS = ("mlp", "tiny_bn")
_PLENTY = {"network": "mlp", "balanced": True, "optimizer": optimizer("sgd", 0.1)}
_LACKING = {
    "a network with batch normalisation": {"network": "mlp"},
    "a network without batch normalisation": {"network": "tiny_bn"},
    "balanced images on the server": {"balanced": False},
    "no local momentum": {"optimizer": optimizer("sgd", 0.1, momentum=0.9)},
    "SGD on the clients": {"optimizer": optimizer("adam", 0.1)},
    "a local optimizer by name": {"optimizer": optax.sgd(0.1)},
}
"""Need -> how a run that lacks it differs from one that has plenty."""


def needs(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yields each need of a recipe with the message of a run that lacks it."""
    network = next(name for name in _NETWORKS if _refusal(recipe, network=name) is None)
    for need, lacking in _LACKING.items():
        refused = _refusal(recipe, **{"network": network} | lacking)
        if refused is not None:
            yield need, refused


def _refusal(recipe: Recipe, **changes: Any) -> str | None:
    """The message with which a run is refused; None for one that would train."""
    given = _PLENTY | changes
    model, local = models.build(given["network"], _CLASSES, _SHAPE), LocalTraining(optimizer=given["optimizer"])
    try:
        make_round(recipe, model, _federation(given["balanced"]), local=local)
    except ValueError as error:
        return str(error)
    return None


@cache
def _federation(balanced: bool) -> Federation:
    """Four clients with images of all classes; whether the server has some, too."""
    labels = np.arange(100) % _CLASSES
    images = np.zeros((len(labels), *_SHAPE), np.uint8)
    images += np.arange(len(labels), dtype=np.uint8)[:, None, None, None]
    own = {"balanced": np.arange(80, 100)} if balanced else {}
    return data.federate(images, labels, np.split(np.arange(80), 4), _CLASSES, own)
