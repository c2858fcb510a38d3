"""Optimizers: PyTorch's SGD, any of optax's by name, and optax transformations as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rounding import FORMULA, STEPS, SUM

from fedjax_bal.optim.optimizers import as_optimizer, optimizer, optimizer_factory, optimizer_names

FALLING = optax.piecewise_constant_schedule(0.4, {2: 0.5, 3: 0.5})  # 0.4, 0.4, 0.2, 0.1


def steps(built, gradients, start, round=0):
    transform = built.transform(round)
    params, state = jnp.float32(start), transform.init(jnp.float32(start))
    for gradient in gradients:
        updates, state = transform.update(jnp.float32(gradient), state, params)
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
    assert steps(built, (1.0, -0.5, 0.3), 2.0) == pytest.approx(w, rel=FORMULA)


def as_in_torch(name, gradients, w, rate, alpha=0.99):
    """PyTorch's steps with its defaults, written out; alpha is RMSprop's."""
    squares, first = 0.0, 0.0
    for step, g in enumerate(gradients, 1):
        if name == "rmsprop":
            squares = alpha * squares + (1 - alpha) * g**2
            w -= rate * g / (squares**0.5 + 1e-8)
        elif name == "adagrad":
            squares += g**2
            w -= rate * g / (squares**0.5 + 1e-10)
        else:
            first, squares = 0.9 * first + 0.1 * g, 0.999 * squares + 0.001 * g**2
            corrected = (squares / (1 - 0.999**step)) ** 0.5 + 1e-8
            w -= rate * 0.01 * w + rate * first / (1 - 0.9**step) / corrected
    return w


IN_TORCH = {  # the settings that the guide's page coming_from gives
    "rmsprop": lambda rate: as_optimizer("", optax.rmsprop(rate, decay=0.99, eps_in_sqrt=False)),
    "adagrad": lambda rate: optimizer("adagrad", rate, initial_accumulator_value=0, eps=1e-10),
    "adamw": lambda rate: optimizer("adamw", rate, weight_decay=0.01),
}


@pytest.mark.parametrize("name", IN_TORCH)
def test_with_these_settings_optimizers_follow_pytorch_s_defaults(name):
    gradients = (1.0, -0.5, 0.3, 0.002, -0.1)
    wanted = as_in_torch(name, gradients, 2.0, 0.1)
    assert steps(IN_TORCH[name](0.1), gradients, 2.0) == pytest.approx(wanted, rel=FORMULA)
    assert steps(optimizer(name, 0.1), gradients, 2.0) != pytest.approx(wanted, rel=STEPS)


def test_rmsprop_by_name_is_pytorch_s_with_another_alpha():
    gradients = (1.0, -0.5, 0.3, 0.002, 1e-6)
    built = optimizer("rmsprop", 0.1, eps_in_sqrt=False)
    assert steps(built, gradients, 2.0) == pytest.approx(as_in_torch("rmsprop", gradients, 2.0, 0.1, 0.9), rel=FORMULA)


@pytest.mark.slow  # importing PyTorch takes seconds
@pytest.mark.parametrize(("name", "of_torch"), [("rmsprop", "RMSprop"), ("adagrad", "Adagrad"), ("adamw", "AdamW")])
def test_pytorch_itself_takes_the_same_steps(name, of_torch):
    torch = pytest.importorskip("torch")
    gradients, w = (1.0, -0.5, 0.3, 0.002, -0.1), torch.nn.Parameter(torch.tensor(2.0))
    theirs = getattr(torch.optim, of_torch)([w], lr=0.1)
    for gradient in gradients:
        w.grad = torch.tensor(gradient)
        theirs.step()
    assert steps(IN_TORCH[name](0.1), gradients, 2.0) == pytest.approx(w.item(), rel=FORMULA)


def test_the_rate_decays_by_round():
    built = optimizer("sgd", 0.1, decay=0.996)
    assert built.rate(999) == pytest.approx(0.00182, abs=5e-6)  # the paper's three digits
    assert steps(built, (1.0,), 0.0, round=10) == pytest.approx(-0.1 * 0.996**10, rel=SUM)


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
    assert steps(built, (0.0,), 1.0) == pytest.approx(1 - 0.1 * 0.5, rel=FORMULA)


def test_no_momentum_means_none_whatever_optax_would_take():
    assert optimizer("sgd", 0.1, momentum=0).options == {}
    assert optimizer("lars", 0.1, momentum=0).options == {"momentum": 0.0, "weight_decay": 0.0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: optimizer("sgdd", 0.1), "did you mean 'sgd'"),
        (lambda: optimizer("sgd", 0.1, momentun=0.9), "did you mean 'momentum'"),
        (lambda: optimizer("sgd", float("nan")), "learning_rate: received nan"),
        (lambda: optimizer("sgd", 0.1, momentum=1.0), "momentum: received 1.0"),
        (lambda: optimizer("sgd", 0.1, nesterov=True), "nesterov: received without a momentum"),
        (lambda: optimizer("sgd", 0.1, momentum=0.9, nesterov="no"), "nesterov: received 'no', must be True or False"),
        (lambda: optimizer("adam", 0.1, b1="0.9"), "b1: received '0.9', must be a number"),
        (lambda: optimizer("muon", 0.1, ns_steps=2.5), "ns_steps: received 2.5, must be an integer"),
        (lambda: optimizer("muon", 0.1, ns_steps=np.inf), "ns_steps: received inf, must be an integer"),
        (lambda: optimizer("sgd", 0.1, decay=0.0), "decay: received 0"),
        (lambda: optimizer("sgd", 1e39), r"learning_rate: received 1e\+39"),
        (
            lambda: optimizer("sgd", FALLING, schedule=FALLING),
            "received together with a learning rate",
        ),
        (lambda: optimizer("sgd", lambda round: 0.1 if round < 5 else 0.01), "use jax.numpy and jnp.where in place"),
        (lambda: optimizer("sgd", lambda round: 0.1 - 0.1 * round), "is -0.1 at 2 .from 0."),
        (lambda: optimizer("sgd", 0.1, schedule="cosine"), "schedule: received 'cosine', must come from"),
        (lambda: as_optimizer("local.optimizer", "sgd"), "local.optimizer: received 'sgd'"),
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


def by_label(rate):
    return optax.partition({"fast": optax.sgd(rate), "slow": optax.sgd(0.01)}, {"w1": "fast", "w2": "slow"})


MADE = {
    "chain": lambda x: optax.chain(optax.clip_by_global_norm(1.0), optax.add_decayed_weights(x), optax.sgd(0.1)),
    "schedule": lambda x: optax.adamw(optax.cosine_decay_schedule(x, 20)),
    "joined schedules": lambda x: optax.sgd(
        optax.join_schedules([optax.linear_schedule(0, x, 5), optax.constant_schedule(0.1)], [5])
    ),
    "number of steps": lambda x: optax.sgd(optax.cosine_decay_schedule(0.1, int(100 * x))),
    "injected": lambda x: optax.inject_hyperparams(optax.sgd)(x, momentum=0.9),
    "injected schedule": lambda x: optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(x, 0.0, 9)),
    "labels": by_label,
    "mask": lambda x: optax.masked(optax.sgd(x), {"w1": True, "w2": False}),
    "array": lambda x: optax.sgd(jnp.array([x, 1.0])),
    "several steps": lambda x: optax.MultiSteps(optax.sgd(x), 2).gradient_transformation(),
    "look ahead": lambda x: optax.apply_if_finite(optax.sgd(x), 3),
}
MADE |= {name: optimizer_factory(name) for name in optimizer_names()}


@pytest.mark.parametrize("name", MADE)
def test_a_transformation_equals_itself_alone(name):
    given = MADE[name](0.1)
    one, same, other = (as_optimizer("optimizer", own) for own in (given, given, MADE[name](0.1)))
    structures = [jax.tree.structure(own) for own in (one, same, other)]
    assert one == same != other
    assert structures[0] == structures[1] != structures[2]
    assert hash(structures[0]) == hash(structures[1])
    assert jax.tree.leaves(one) == []


def test_a_transformation_is_traced_once():
    traces = []

    @jax.jit
    def step(own, params):
        traces.append(1)
        transform = own.transform(0)
        return transform.update(params, transform.init(params), params)[0]

    given = [optax.sgd(0.1), optax.sgd(0.2)]
    got = [float(step(as_optimizer("optimizer", own), np.float32(-1.0))) for own in (*given, *given)]
    assert got == pytest.approx([0.1, 0.2, 0.1, 0.2])
    assert len(traces) == 2


def test_the_momentum_is_known_whatever_gives_it():
    assert optimizer("sgd", 0.1, momentum=np.float32(0.5)).momentum == 0.5
    assert optimizer("lars", 0.1).momentum == optimizer("sm3", 0.1).momentum == 0.9  # optax's default
    assert optimizer("sgd", 0.1).momentum == 0


def test_a_traced_number_is_kept():
    moved = jax.grad(lambda rate: as_optimizer("optimizer", optax.sgd(rate)).transform(0).update(2.0, (None, None))[0])
    assert float(moved(0.1)) == -2.0


def test_the_rate_of_a_transformation_is_unknown():
    given = as_optimizer("optimizer", optax.sgd(0.1, momentum=0.9))
    assert (given.rate(0), given.rate_at(0, 1), given.momentum, given.describe_rate(0)) == (None, None, None, "")
