"""An independent transcription of the methods: NumPy, float64, plain loops, one client after another.

It shares with the library only which rows come in which order (the draws), never how anything is computed from them.
"""

from dataclasses import dataclass, field
from functools import partial

import jax
import numpy as np

from fedjax_bal.engine.device import purpose_key, shuffled, training_key
from fedjax_bal.types import Federation


@dataclass
class Options:
    """Everything that a run is made of."""

    rate: float = 0.1
    decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 8
    epochs: int = 2
    prox: float = 0.0
    prior_epsilon: float | None = None
    transfer: dict | None = None
    scaffold: bool = False
    scaffold_momentum: bool = False


@dataclass
class Server:
    """The server's state, and what clients remember."""

    weights: dict
    control: dict = field(default_factory=dict)
    controls: dict = field(default_factory=dict)
    prototypes: dict = field(default_factory=dict)


def softmax(logits):
    """Row-wise."""
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def forward(weights, images):
    """Features and logits of the toy network."""
    features = np.tanh(images @ weights["w1"])
    return features, features @ weights["w2"]


def draws(federation, seed, number, client, options, turn=0):
    """The batches of row numbers that the library draws for a client's local training."""
    sizes, place = np.diff(federation.offsets), np.array([number, client, turn], np.int32)
    for order in np.asarray(_orders(seed, place, sizes[client], options.epochs, int(sizes.max()))):
        for start in range(0, sizes[client], options.batch_size):
            chosen = order[: sizes[client]][start : start + options.batch_size]
            yield federation.rows[federation.offsets[client] + chosen]


@partial(jax.jit, static_argnames=("epochs", "longest"))
def _orders(seed, place, size, epochs, longest):
    """A client's orders, one an epoch, each with places beyond its rows behind them: so one program draws for all."""
    key = training_key(jax.random.key(seed), *place)
    draw = lambda epoch: shuffled(purpose_key(jax.random.fold_in(key, epoch), "draw"), size, longest)
    return jax.vmap(draw)(np.arange(epochs))


def smoothed(counts, epsilon):
    """(1 - eps) n_c / n + eps / C."""
    return (1 - epsilon) * counts / counts.sum() + epsilon / len(counts)


def class_means(weights, images, labels):
    """Mean feature of each class that is there."""
    features, _ = forward(weights, images)
    return {int(c): features[labels == c].mean(0) for c in np.unique(labels)}


def log_prior(prior):
    """Log with minus infinity for absent classes."""
    with np.errstate(divide="ignore"):
        return np.log(prior)


def gradient(weights, received, images, labels, counts, prototypes, server, options):
    """The gradient of the local objective on one batch."""
    features, logits = forward(weights, images)
    classes, size = logits.shape[1], len(labels)
    if options.prior_epsilon is not None:
        logits = logits + log_prior(smoothed(counts, options.prior_epsilon))
    error = (softmax(logits) - np.eye(classes)[labels]) / size
    grad = {"w2": features.T @ error}
    grad["w1"] = images.T @ ((error @ weights["w2"].T) * (1 - features**2))
    if options.transfer and server.prototypes and (counts > 0).sum() > 1:
        grad["w2"] = grad["w2"] + transfer_gradient(weights, features, labels, prototypes, classes, options.transfer)
    for name in grad:
        grad[name] = grad[name] + options.prox * (weights[name] - received[name])
    return grad


def transfer_gradient(weights, features, labels, prototypes, classes, knobs):
    """Gradient of mu times the calibrated cross-entropy of the moved features, with respect to the classifier."""
    moved, targets = [], []
    for j, (h, y) in enumerate(zip(features, labels, strict=True)):
        target = j % classes
        if target in prototypes and int(y) in prototypes:
            moved.append(prototypes[target] + knobs["scale"] * (h - prototypes[int(y)]))
            targets.append(target)
        else:
            moved.append(h)
            targets.append(int(y))
    moved, targets = np.array(moved), np.array(targets)
    prior = smoothed(np.bincount(targets, minlength=classes), knobs["epsilon"])
    error = softmax(moved @ weights["w2"] + log_prior(prior)) - np.eye(classes)[targets]
    return knobs["mu"] * moved.T @ error / len(targets)


def train(federation, seed, number, client, server, options):
    """One visit: new weights, and how many steps they took."""
    received, weights = server.weights, {k: v.copy() for k, v in server.weights.items()}
    flat = federation.images.reshape(len(federation.images), -1).astype(float)
    span = federation.rows[federation.offsets[client] : federation.offsets[client + 1]]
    counts = np.bincount(federation.labels[span], minlength=federation.num_classes)
    prototypes = {**server.prototypes, **class_means(received, flat[span], federation.labels[span])}
    rate, velocity, steps = options.rate * options.decay**number, None, 0
    for rows in draws(federation, seed, number, client, options):
        grad = gradient(weights, received, flat[rows], federation.labels[rows], counts, prototypes, server, options)
        for name in grad:
            if options.scaffold:
                grad[name] = grad[name] - server.controls[client][name] + server.control[name]
            grad[name] = grad[name] + options.weight_decay * weights[name]
        velocity = grad if velocity is None else {k: options.momentum * velocity[k] + grad[k] for k in grad}
        weights = {k: weights[k] - rate * velocity[k] for k in weights}
        steps += 1
    return weights, steps, rate


def new_control(server, client, received, trained, steps, rate, options):
    """SCAFFOLD's option II."""
    if options.scaffold_momentum:
        total, running = 0.0, 0.0
        for _ in range(steps):
            running = options.momentum * running + 1
            total += running
        steps = total
    return {
        k: server.controls[client][k] - server.control[k] + (received[k] - trained[k]) / (steps * rate)
        for k in received
    }


def run_round(federation: Federation, seed, number, cohort, server: Server, options: Options) -> Server:
    """One round over the clients that deliver."""
    results = {c: train(federation, seed, number, c, server, options) for c in cohort}
    sizes = {c: federation.offsets[c + 1] - federation.offsets[c] for c in cohort}
    shares = {c: 1 / len(cohort) if options.scaffold else sizes[c] / sum(sizes.values()) for c in cohort}
    received = server.weights
    weights = {k: received[k] + sum(shares[c] * (results[c][0][k] - received[k]) for c in cohort) for k in received}
    control, controls = server.control, dict(server.controls)
    if options.scaffold:
        for c in cohort:
            controls[c] = new_control(server, c, received, *results[c], options)
        control = {
            k: control[k] + sum(controls[c][k] - server.controls[c][k] for c in cohort) / federation.num_clients
            for k in control
        }
    return Server(weights, control, controls, next_prototypes(federation, cohort, results) if options.transfer else {})


def next_prototypes(federation, cohort, results):
    """Means of the delivered class means, weighted by class counts."""
    flat = federation.images.reshape(len(federation.images), -1).astype(float)
    total, count = {}, {}
    for c in cohort:
        span = federation.rows[federation.offsets[c] : federation.offsets[c + 1]]
        labels = federation.labels[span]
        for y, mean in class_means(results[c][0], flat[span], labels).items():
            total[y] = total.get(y, 0) + (labels == y).sum() * mean
            count[y] = count.get(y, 0) + (labels == y).sum()
    return {y: total[y] / count[y] for y in total}
