"""The smallest federation and networks on which everything can be tried."""

from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal.selection import Selector
from fedjax_bal.types import Federation, Model, Outputs, Variables

CLASSES, WIDTH, FEATURES = 4, 5, 6
SIZES = (9, 1, 16, 5, 12, 8, 3, 20, 7, 11)


@cache
def federation(classes: int = CLASSES) -> Federation:
    """Ten clients of 1 to 20 rows, skewed labels, float images of shape (1, 5, 1)."""
    rng = np.random.default_rng(7)
    total = sum(SIZES) + 13
    labels = rng.integers(0, classes, total).astype(np.int32)
    images = rng.normal(size=(total, WIDTH)) + 1.5 * np.eye(classes, WIDTH)[labels]
    offsets = np.concatenate([[0], np.cumsum(SIZES)]).astype(np.int32)
    pool = np.argsort(labels + rng.normal(0, 0.8, total), kind="stable")
    spans = [pool[a:b] for a, b in pairwise(offsets)]
    rows = [span[np.argsort(labels[span], kind="stable")] for span in spans]
    counts = np.stack([np.bincount(labels[span], minlength=classes) for span in rows]).astype(np.int32)
    return Federation(
        images=images.astype(np.float32).reshape(total, 1, WIDTH, 1),
        labels=labels,
        rows=np.concatenate(rows).astype(np.int32),
        offsets=offsets,
        class_counts=counts,
        copy=np.zeros(offsets[-1], np.int32),
        auxiliary={},
        mean=np.zeros(1, np.float32),
        std=np.ones(1, np.float32),
    )


def test_set() -> tuple[np.ndarray, np.ndarray]:
    """All rows of the toy federation's pool."""
    return federation().images, federation().labels


@cache
def network() -> Model:
    """tanh(x W1) W2, without biases."""

    def init(key: jax.Array) -> Variables:
        first, second = jax.random.split(key)
        params = {
            "w1": jax.random.normal(first, (WIDTH, FEATURES)) * 0.4,
            "w2": jax.random.normal(second, (FEATURES, CLASSES)) * 0.4,
        }
        return Variables(params, {})

    def apply(variables, images, *, train, key=None, real=None):
        features = jnp.tanh(images.reshape(images.shape[0], -1) @ variables.params["w1"])
        return Outputs(features @ variables.params["w2"], features), variables

    return Model(init, apply, lambda params, features: features @ params["w2"], "toy", CLASSES, (1, WIDTH, 1))


def chosen(*rounds, passes: int = 1) -> Selector:
    """Selects given chains of clients `[G, L]`, round after round, and from the first ones again after the last."""
    plans = [np.array(clients, np.int32) for clients in rounds]
    select = lambda state, seed, round, available: (plans[round % len(plans)], state)
    return Selector(lambda seed, n: (), select, lambda state, plan, probes: state, *plans[0].shape, passes, False)


def largest_difference(a, b) -> float:
    """The largest absolute difference between the leaves of two trees."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x, float) - np.asarray(y, float)).max(initial=0)) for x, y in pairs)
