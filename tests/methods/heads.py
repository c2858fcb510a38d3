"""What transcriptions of methods with a named classifier share: the network, its gradients, and clients' test rows."""

from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import reference
import toys

from fedjax_bal.types import ClientTests, Model, Outputs, Variables


@cache
def network():
    """tanh(x W) K + b, the classifier under its usual name."""

    def init(key):
        first, second, third = jax.random.split(key, 3)
        head = {
            "kernel": jax.random.normal(second, (toys.FEATURES, toys.CLASSES)) * 0.4,
            "bias": jax.random.normal(third, (toys.CLASSES,)) * 0.4,
        }
        return Variables({"body": jax.random.normal(first, (toys.WIDTH, toys.FEATURES)) * 0.4, "head": head}, {})

    def classify(params, features):
        return features @ params["head"]["kernel"] + params["head"]["bias"]

    def apply(variables, images, *, train, key=None, real=None):
        features = jnp.tanh(images.reshape(images.shape[0], -1) @ variables.params["body"])
        return Outputs(classify(variables.params, features), features), variables

    return Model(init, apply, classify, "headed", toys.CLASSES, (1, toys.WIDTH, 1))


@cache
def federation():
    """The toys', with one to three test rows of each client but the last."""
    data, sizes = toys.federation(), np.array([1, 2, 1, 3, 1, 1, 2, 1, 1, 0])
    rows = np.arange(len(data.labels) - sizes.sum(), len(data.labels)).astype(np.int32)
    return data._replace(tests=ClientTests(rows, np.append(0, np.cumsum(sizes)).astype(np.int32)))


def as_numpy(tree):
    """Its leaves on the host."""
    return jax.tree.map(np.asarray, jax.device_get(tree))


def flat(params):
    """The network's parameters in one dict, in float64."""
    return {k: np.asarray(v, np.float64) for k, v in {"body": params["body"], **params["head"]}.items()}


def flat_images():
    """Of all rows, in float64."""
    return toys.federation().images.reshape(len(toys.federation().images), -1).astype(float)


def head_gradient(features, labels, head, shift=0.0, weights=None):
    """Of the mean cross-entropy with respect to the classifier, and the error of the logits."""
    weights = np.full(len(labels), 1 / len(labels)) if weights is None else weights / weights.sum()
    wanted = np.eye(toys.CLASSES)[labels]
    error = weights[:, None] * (reference.softmax(features @ head["kernel"] + head["bias"] + shift) - wanted)
    return {"kernel": features.T @ error, "bias": error.sum(0)}, error


def gradient(weights, images, labels, shift=0.0):
    """Of the mean cross-entropy of the logits plus `shift`."""
    features = np.tanh(images @ weights["body"])
    of_head, error = head_gradient(features, labels, weights, shift)
    return of_head | {"body": images.T @ ((error @ weights["kernel"].T) * (1 - features**2))}


def descended(weights, gradients, rate):
    """After a step of SGD on the parameters that have a gradient."""
    return weights | {k: weights[k] - rate * slope for k, slope in gradients.items()}


def own_accuracies(body, heads):
    """Of the clients that have test rows, each with its classifier."""
    rows, offsets = federation().tests
    accuracies = []
    for client, (first, last) in enumerate(list(pairwise(offsets))[:-1]):
        own = rows[first:last]
        logits = np.tanh(flat_images()[own] @ body) @ heads[client]["kernel"] + heads[client]["bias"]
        accuracies.append((logits.argmax(1) == federation().labels[own]).mean())
    return np.array(accuracies)


def retrained(head, features, weights, key, epochs, size, rate):
    """SGD on the classifier, on features `[C, n, F]` whose classes have weights; only the order is the library's."""
    rows, labels = features.reshape(-1, features.shape[-1]), np.repeat(np.arange(len(features)), features.shape[1])
    for epoch in range(epochs):
        order = np.asarray(jax.random.permutation(jax.random.fold_in(key, epoch), len(rows)))
        for places in np.split(order, range(size, len(order), size)):
            slopes, _ = head_gradient(rows[places], labels[places], head, weights=weights[labels[places]])
            head = descended(head, slopes, rate)
    return head
