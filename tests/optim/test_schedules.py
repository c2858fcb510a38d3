"""Learning-rate schedules: formulas, optax's own by name, what is refused, and what needs no other program."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rounding import FORMULA, SUM

from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.optim.schedules import schedule, schedule_names

COUNTS = np.arange(15)
FORMULAS = {
    "exponential": ({"factor": 0.9}, lambda t: 0.9**t),
    "step": ({"every": 4, "factor": 0.5}, lambda t: 0.5 ** (t // 4)),
    "linear_warmup": ({"length": 5}, lambda t: np.minimum((t + 1) / 5, 1)),
    "cosine": (
        {"length": 12, "end": 0.1, "warmup": 2},
        lambda t: np.where(t < 2, (t + 1) / 2, 0.1 + 0.45 * (1 + np.cos(np.pi * np.clip((t - 2) / 10, 0, 1)))),
    ),
}
OPTAX = {
    "constant_schedule": {"value": 0.5},
    "cosine_decay_schedule": {"decay_steps": 7, "alpha": 0.1},
    "cosine_onecycle_schedule": {"transition_steps": 9},
    "exponential_decay": {"transition_steps": 3, "decay_rate": 0.5, "staircase": True},
    "linear_onecycle_schedule": {"transition_steps": 9},
    "linear_schedule": {"end_value": 0.2, "transition_steps": 6},
    "piecewise_constant_schedule": {"boundaries_and_scales": {3: 0.1, 9: 0.5}},
    "piecewise_interpolate_schedule": {"interpolate_type": "linear", "boundaries_and_scales": {4: 0.5}},
    "polynomial_schedule": {"end_value": 0.0, "power": 2.0, "transition_steps": 8},
    "warmup_constant_schedule": {"warmup_steps": 4},
    "warmup_cosine_decay_schedule": {"warmup_steps": 2, "decay_steps": 10},
    "warmup_exponential_decay_schedule": {"warmup_steps": 2, "transition_steps": 3, "decay_rate": 0.5},
}
BEGIN = {"init_value": 1.0}
PEAK = {"peak_value": 1.0}
VALUES = {
    "constant_schedule": {},
    "cosine_onecycle_schedule": PEAK,
    "linear_onecycle_schedule": PEAK,
    **{name: {"init_value": 0.0, **PEAK} for name in OPTAX if name.startswith("warmup")},
}


def factors(made):
    return np.asarray(jax.jit(jax.vmap(made.factor))(COUNTS))


@pytest.mark.parametrize("name", FORMULAS)
def test_own_schedules_follow_their_formulas(name):
    parameters, formula = FORMULAS[name]
    np.testing.assert_allclose(factors(schedule(name, **parameters)), formula(COUNTS), rtol=SUM, atol=FORMULA)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTAX)
def test_optax_schedules_are_factors_that_begin_or_peak_at_one(name):
    wanted = getattr(optax, name)(**VALUES.get(name, BEGIN), **OPTAX[name])
    got = factors(schedule(name, **OPTAX[name]))
    np.testing.assert_allclose(got, jax.jit(jax.vmap(wanted))(COUNTS), rtol=FORMULA, atol=1e-7)


def test_every_schedule_is_tried_here():
    assert set(schedule_names()) == {"constant", *FORMULAS, *OPTAX}


def test_a_rounding_error_below_zero_is_zero():
    # As a compiled `optax.linear_schedule(0.3, 0.0, 10)` ends.
    made = optimizer("sgd", lambda count: jnp.where(count < 10, 0.3, -4.5e-9))
    assert [float(made.rate(count)) for count in (9, 10)] == [np.float32(0.3), 0.0]
    with pytest.raises(ValueError, match="must be finite and at least 0"):
        optimizer("sgd", optax.linear_schedule(0.3, -1e-3, 10))


def test_a_constant_schedule_is_none():
    assert optimizer("sgd", 0.1, schedule=schedule("constant")) == optimizer("sgd", 0.1)


def test_schedules_multiply():
    built = optimizer(
        "sgd", 0.2, decay=0.5, schedule=schedule("step", every=2, factor=0.1),
        step_schedule=schedule("exponential", factor=0.9),
    )  # fmt: skip
    assert float(built.rate(3)) == pytest.approx(0.2 * 0.5**3 * 0.1)
    assert float(built.rate_at(3, 2)) == pytest.approx(0.2 * 0.5**3 * 0.1 * 0.9**2)
    steps = np.array([[0, 1], [3, 4]])
    wanted = [[0, 1], [1 + 0.9 + 0.81, 1 + 0.9 + 0.81 + 0.729]]
    np.testing.assert_allclose(built.full_steps(steps, 4), wanted, rtol=FORMULA)
    assert optimizer("sgd", 0.2).full_steps(steps, 4) is None


@pytest.mark.parametrize(
    ("name", "parameters", "other"),
    [
        ("step", {"every": 3, "factor": 0.5}, {"every": 2, "factor": 0.25}),
        ("linear_schedule", {"end_value": 0.5, "transition_steps": 4}, {"end_value": 0.1, "transition_steps": 4}),
        ("cosine_decay_schedule", {"decay_steps": 9, "alpha": 0.0}, {"decay_steps": 9, "alpha": 0.5}),
    ],
)
def test_other_numbers_need_no_other_program(name, parameters, other):
    traces = []

    @jax.jit
    def rate(built, count):
        traces.append(1)
        return built.rate(count)

    pair = [optimizer("sgd", 0.1, schedule=schedule(name, **values)) for values in (parameters, other)]
    rates = [float(rate(built, 3)) for built in pair]
    assert len(traces) == 1
    assert rates == pytest.approx([float(built.rate(3)) for built in pair])
    assert rates[0] != rates[1]


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("cosin", {}, "schedule: received 'cosin'"),
        ("cosine", {}, "schedule: cosine: length: missing"),
        ("cosine", {"lenght": 3}, "parameter of the schedule cosine: received 'lenght'"),
        ("cosine", {"length": 2, "warmup": 2}, "warmup: received 2"),
        ("step", {"every": 0}, "step: every: received 0"),
        ("exponential", {"factor": 1.5}, "its factor on the learning rate is .* must be finite"),
        ("linear_schedule", {"end_value": -1.0, "transition_steps": 4}, "is -0.5 at 3"),
        ("cosine_decay_schedule", {"decay_steps": 0}, "cosine_decay_schedule: .*positive decay_steps"),
        ("piecewise_constant_schedule", {"boundaries_and_scales": {3: -0.1}}, "expects non-negative"),
    ],
)
def test_what_is_wrong_is_said(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        schedule(name, **parameters)
