"""Optimizers: PyTorch's SGD, and any of optax's by name."""

import jax
import numpy as np
import optax
import pytest

from fedjax_bal.optim.optimizers import optimizer, optimizer_names


def steps(built, gradients, start, round=0):
    transform = built.transform(round)
    params, state = np.float32(start), transform.init(np.float32(start))
    for gradient in gradients:
        updates, state = transform.update(np.float32(gradient), state, params)
        params = optax.apply_updates(params, updates)
    return float(params)


def test_sgd_follows_pytorch():
    rate, momentum, decay = 0.1, 0.9, 0.01
    w, v = 2.0, None
    for g in (1.0, -0.5, 0.3):
        g = g + decay * w
        v = g if v is None else momentum * v + g
        w = w - rate * v
    built = optimizer("sgd", rate, momentum=momentum, weight_decay=decay)
    assert steps(built, (1.0, -0.5, 0.3), 2.0) == pytest.approx(w, rel=1e-6)


def test_the_rate_decays_by_round():
    built = optimizer("sgd", 0.1, decay=0.996)
    assert built.rate(999) == pytest.approx(0.00182, abs=5e-6)  # the paper's three digits
    assert steps(built, (1.0,), 0.0, round=10) == pytest.approx(-0.1 * 0.996**10, rel=1e-5)


def test_decoupled_decay_stays_with_the_optimizer_that_has_it():
    built = optimizer("adamw", 0.1, weight_decay=0.5)
    assert built.weight_decay is None
    assert steps(built, (0.0,), 1.0) == pytest.approx(1 - 0.1 * 0.5, rel=1e-6)


def test_no_momentum_means_none_whatever_optax_would_take():
    assert optimizer("sgd", 0.1, momentum=0).options == {}
    assert optimizer("lars", 0.1, momentum=0).options == {"momentum": 0.0, "weight_decay": 0.0}


@pytest.mark.parametrize("name", optimizer_names())
def test_every_listed_name_can_be_built(name):
    optimizer(name, 0.1).transform(0).init(np.zeros(2, np.float32))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: optimizer("sgdd", 0.1), "did you mean 'sgd'"),
        (lambda: optimizer("sgd", 0.1, momentun=0.9), "did you mean 'momentum'"),
        (lambda: optimizer("sgd", float("nan")), "learning_rate: received nan"),
        (lambda: optimizer("sgd", 0.1, momentum=1.0), "momentum: received 1.0"),
        (lambda: optimizer("adam", 0.1, b1=float("inf")), "b1: received inf, must be a finite number"),
        (lambda: optimizer("sgd", 0.1, decay=0.0), "decay: received 0"),
        (lambda: optimizer("sgd", 1e39), "learning_rate: received 1e\\+39, must be a finite number"),
        (lambda: optimizer("sgd", -1.0), "learning_rate: received -1"),
        (lambda: optimizer("sgd", 0.1, decay=1.5), "decay: received 1.5, must be a finite number from 0 to 1"),
    ],
)
def test_wrong_numbers_and_names_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", optimizer_names())
def test_every_listed_name_works_inside_a_compiled_program(name):
    built = optimizer(name, 0.1, **({"min_dim_size_to_factor": 2} if name == "adafactor" else {}))

    @jax.jit
    def step(built, params):
        transform = built.transform(0)
        return transform.update(params, transform.init(params), params)[0]

    assert bool(np.isfinite(step(built, np.ones((4, 4), np.float32))).all())
