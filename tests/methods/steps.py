"""Local training along a direction, which transcriptions of methods that bend gradients or steps share."""

import numpy as np
import reference
import toys
from methods import float64


def norm(tree):
    """Over all parameters."""
    return np.sqrt(sum((leaf**2).sum() for leaf in tree.values()))


def moved(weights, scale, direction):
    """Weights plus a multiple of a direction."""
    return {k: weights[k] + scale * direction[k] for k in weights}


def gradients(weights, client, number, options):
    """For each local step, the gradient of the mean cross-entropy as a function of the weights."""
    data = toys.federation()
    flat = data.images.reshape(len(data.images), -1).astype(float)
    for rows in reference.draws(data, float64.SEED, number, client, options):
        yield lambda at, rows=rows: float64.gradient(at, flat[rows], data.labels[rows])


def descend(received, client, number, direction, options=float64.OPTIONS):
    """Local training along `direction(gradient function, weights)`: the change, and the number of steps."""
    weights, rate, steps = dict(received), options.rate * options.decay**number, 0
    for gradient in gradients(received, client, number, options):
        weights = moved(weights, -rate, direction(gradient, weights))
        steps += 1
    return float64.difference(weights, received), steps


def ascent(rho):
    """The gradient at w + rho g / |g|."""
    return lambda gradient, w: gradient(moved(w, rho / (norm(gradient(w)) + 1e-7), gradient(w)))


def plain(client, received):
    """For a local training, the gradient as a function of the loss's gradient and the weights: here the former."""
    return lambda gradient, w: gradient(w)


def uphill(rho):
    """FedSAM's gradient."""
    return lambda client, received: ascent(rho)


def backward(rho, last):
    """FedLESAM's gradient; `last` keeps the model that each client received."""

    def local_gradient(client, received):
        before, last[client] = last.get(client, received), received
        back = float64.difference(before, received)
        return lambda gradient, w: gradient(moved(w, rho / (norm(back) + 1e-7), back))

    return local_gradient


def zeros(weights):
    """Like the weights."""
    return {k: np.zeros_like(v) for k, v in weights.items()}


def controlled(sim, local_gradient):
    """SCAFFOLD's rounds: the weights, and the control variates of server and clients.

    `local_gradient(client, received)` is the gradient of a local training, as `plain` gives it.
    """
    weights = float64.initial(sim)
    server, clients = zeros(weights), {c: zeros(weights) for c in range(float64.N)}
    for number, cohort in float64.cohorts(sim):
        rate = float64.OPTIONS.rate * float64.OPTIONS.decay**number
        changes, fresh = {}, {}
        for c in cohort:
            correction = float64.difference(server, clients[c])
            taken = local_gradient(c, weights)
            corrected = lambda g, w, taken=taken, added=correction: moved(taken(g, w), 1.0, added)
            changes[c], steps = descend(weights, c, number, corrected)
            fresh[c] = {k: -correction[k] - changes[c][k] / (steps * rate) for k in weights}
        total = {k: sum(fresh[c][k] - clients[c][k] for c in cohort) for k in weights}
        weights = {k: weights[k] + np.mean([changes[c][k] for c in cohort], axis=0) for k in weights}
        server, clients = moved(server, 1 / float64.N, total), clients | fresh
    return weights, server, clients


def regularised(sim, local_gradient, weight, finish=lambda cohort: None):
    """FedDyn's rounds, with the penalty's gradient at the unshifted parameters: the weights.

    `local_gradient(client, received)` is the gradient of a local training, as `plain` gives it. The state of a client
    adds up its drift, as in the code of several authors. `finish(cohort)` ends a round.
    """
    weights = float64.initial(sim)
    drift = {c: zeros(weights) for c in range(float64.N)}
    for number, cohort in float64.cohorts(sim):
        changes = {}
        for c in cohort:
            taken = local_gradient(c, weights)

            def direction(g, w, taken=taken, own=drift[c], start=weights):
                penalty = {k: w[k] - start[k] + own[k] for k in w}
                return moved(taken(g, w), weight, penalty)

            changes[c] = descend(weights, c, number, direction)[0]
        drift |= {c: moved(drift[c], 1.0, changes[c]) for c in cohort}
        mean = {k: np.mean([changes[c][k] for c in cohort], axis=0) for k in weights}
        weights = {k: weights[k] + mean[k] + np.mean([drift[c][k] for c in drift], axis=0) for k in weights}
        finish(cohort)
    return weights
