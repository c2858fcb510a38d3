"""Optimizers: PyTorch's SGD, and any of optax's by name."""

import jax
import numpy as np
import optax
import pytest

from fedjax_bal.optim.optimizers import as_optimizer, optimizer, optimizer_names

FALLING = optax.piecewise_constant_schedule(0.4, {2: 0.5, 3: 0.5})  # 0.4, 0.4, 0.2, 0.1


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


def test_a_function_is_a_rate_by_round():
    for built in (optimizer("sgd", FALLING), optimizer("sgd", 0.4, schedule=lambda round: FALLING(round) / 0.4)):
        assert [float(built.rate(round)) for round in range(4)] == pytest.approx([0.4, 0.4, 0.2, 0.1])
        assert steps(built, (1.0, 1.0), 0.0, round=3) == pytest.approx(-0.2)
    by_step = optimizer("sgd", 0.1, step_schedule=FALLING)
    assert [float(by_step.rate_at(7, step)) for step in range(4)] == pytest.approx([0.04, 0.04, 0.02, 0.01])


def test_schedules_of_optax_count_steps_and_injected_ones_rounds():
    own, injected = optax.sgd(FALLING), optax.inject_hyperparams(optax.sgd)(FALLING)
    chained = optax.chain(optax.identity(), optax.inject_hyperparams(optax.sgd)(FALLING, momentum=0.0))
    for round, rate in enumerate((0.4, 0.4, 0.2, 0.1)):
        assert steps(as_optimizer("", own), [1.0] * 3, 0.0, round) == pytest.approx(-1.0)
        for given in (injected, chained):
            assert steps(as_optimizer("", given), [1.0] * 3, 0.0, round) == pytest.approx(-3 * rate)


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
        (lambda: optimizer("sgd", FALLING, schedule=FALLING), "schedule: received it beside a learning rate by round"),
        (lambda: optimizer("sgd", lambda round: 0.1 if round < 5 else 0.01), "use jax.numpy and jnp.where in place"),
        (lambda: optimizer("sgd", lambda round: 0.1 - 0.1 * round), "is -0.1 at 2 .from 0., must be finite and at le"),
        (lambda: optimizer("sgd", 0.1, schedule="cosine"), "schedule: received 'cosine', must come from"),
        (lambda: as_optimizer("local.optimizer", "sgd"), "local.optimizer: received 'sgd', must be an optax.Gradient"),
        (lambda: as_optimizer("server_optimizer", optax.sgd), "server_optimizer: received <function sgd .*optax.sgd.0"),
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
