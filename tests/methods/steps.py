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
