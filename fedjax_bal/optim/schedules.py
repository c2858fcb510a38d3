"""Learning-rate schedules as data: factors on the rate by round or local step."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_bal.jax_setup import package_settings, start_jax
from fedjax_bal.types import Array
from fedjax_bal.validate import finite_number, is_number, one_of, whole_number

RateFactor = Callable[[Any], Any]

# Excluded: functions that combine other schedules, or change an optimizer rather than a rate.
_NOT_OFFERED = {"join_schedules", "scale_by_schedule", "sgdr_schedule"}
# Defaults of the initial and peak values of optax's schedules, as factors on the learning rate.
_VALUES = {"value": 1.0, "init_value": 1.0, "peak_value": 1.0}
# The largest factor below 0 that counts as a rounding error, relative to the largest factor.
_ROUNDING = 1e-6
_PROBE_COUNTS = np.unique(np.r_[0:64, np.geomspace(64, 1e6, 64)]).astype(np.int32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Schedule:
    """A schedule by name, from `schedule`; parameters that are leaves can change without another compilation.

    Attributes:
        name: one of `schedule_names()`, or a function, which equals only itself.
        numbers: its parameters that are pytree leaves.
        fixed: its other parameters, as pairs.
    """

    name: str | RateFactor = dataclasses.field(metadata={"static": True})
    numbers: dict[str, Any] = dataclasses.field(default_factory=dict)
    fixed: tuple[tuple[str, Any], ...] = dataclasses.field(default=(), metadata={"static": True})

    def factor(self, count: Any) -> Array:
        """Returns the factor on the learning rate, `Float[]`, after `count` rounds or local steps, `Int[]`."""
        factor = self.computed_factor(count)
        if self.name in _OWN:
            return factor
        # optax's schedules can end below 0 by a rounding error. This form changes neither other factors nor gradients.
        return factor - jax.lax.stop_gradient(jnp.minimum(factor, 0.0))

    def computed_factor(self, count: Any) -> Array:
        """Returns the factor as the function computes it, `Float[]`, which may be below 0."""
        function = self.name
        if isinstance(function, str):
            fixed = {key: dict(value) if isinstance(value, tuple) else value for key, value in self.fixed}
            function = schedule_factory(function)(**self.numbers, **fixed)
        return jnp.asarray(function(count), float)


def constant() -> RateFactor:
    """Keeps the learning rate constant."""
    return lambda count: 1.0


def exponential(factor: float) -> RateFactor:
    """Multiplies the learning rate by the same factor at each count, $f^t$.

    Args:
        factor: f, above 0.

    Example:
        >>> float(exponential(0.5)(2))
        0.25
    """
    return lambda count: jnp.asarray(factor, float) ** count


def step(every: int, factor: float = 0.1) -> RateFactor:
    r"""Lowers the learning rate at regular intervals, $f^{\lfloor t / e \rfloor}$.

    Args:
        every: e, at least 1.
        factor: f, above 0.

    Example:
        >>> [round(float(step(10)(t)), 3) for t in (9, 10, 25)]
        [1.0, 0.1, 0.01]
    """
    return lambda count: jnp.asarray(factor, float) ** jnp.floor_divide(count, every)


def cosine(length: int, end: float = 0.0, warmup: int = 0) -> RateFactor:
    r"""Decays along half a cosine, $e + (1 - e) (1 + \cos(\pi s)) / 2$, where $s$ is the elapsed share of its length.

    Args:
        length: the count at which it reaches `end` and stays there, at least 1 and above `warmup`.
        end: e, the last factor, at least 0.
        warmup: number of initial counts in which the factor rises in equal steps to 1, before the cosine begins.

    Example:
        >>> [round(float(cosine(12, warmup=2)(t)), 2) for t in (0, 1, 2, 7, 12, 20)]
        [0.5, 1.0, 1.0, 0.5, 0.0, 0.0]

    References:
        SGDR (Loshchilov and Hutter, 2017), eq. 5, without restarts.
    """

    def at(count: Any) -> Array:
        share = jnp.clip((count - warmup) / jnp.maximum(length - warmup, 1), 0.0, 1.0)
        falling = end + (1 - end) * 0.5 * (1 + jnp.cos(jnp.pi * share))
        return jnp.minimum((count + 1) / jnp.maximum(warmup, 1), falling)

    return at


def linear_warmup(length: int) -> RateFactor:
    """Raises the factor in equal steps to 1, where it stays.

    Args:
        length: number of steps, at least 1.

    Example:
        >>> [float(linear_warmup(4)(t)) for t in (0, 1, 3, 9)]
        [0.25, 0.5, 1.0, 1.0]
    """
    return lambda count: jnp.minimum((count + 1) / length, 1.0)


_OWN: Mapping[str, Callable[..., RateFactor]] = {
    function.__name__: function for function in (constant, cosine, exponential, linear_warmup, step)
}


@functools.cache
def schedule_names() -> tuple[str, ...]:
    """Returns the names of the schedules: the five of this module, and optax's.

    Example:
        >>> {"step", "cosine", "warmup_cosine_decay_schedule"} <= set(schedule_names())
        True
    """
    public = {name for name in dir(optax) if name.endswith("_schedule") or name == "exponential_decay"}
    return (*_OWN, *sorted(public - _NOT_OFFERED))


@functools.cache
def schedule_factory(name: str) -> Callable[..., RateFactor]:
    """Returns the function of a schedule's name; its parameters are those that `schedule` takes.

    Example:
        >>> "decay_steps" in inspect.signature(schedule_factory("cosine_decay_schedule")).parameters
        True
    """
    if name in _OWN:
        return _OWN[name]
    function = getattr(optax, name)
    signature = inspect.signature(function)
    values = {key: value for key, value in _VALUES.items() if key in signature.parameters}
    if "peak_value" in values and "init_value" in values:
        values["init_value"] = 0.0
    # In the partial's signature these values are defaults, and parameters from the first of them on are keyword-only.
    return functools.partial(function, **values)


def schedule(name: str, **parameters: Any) -> Schedule | None:
    """Builds a schedule from numbers.

    Args:
        name: one of `schedule_names()`. Values of optax's schedules are factors on the learning rate: the default of an
            initial or peak value is 1, and a warm-up begins at 0.
        **parameters: parameters of the function of that name.

    Returns:
        The schedule; None for `constant`, which changes nothing.

    Raises:
        ValueError: the name or a parameter is unknown, a parameter is missing or out of range, or a factor is below 0.

    Example:
        >>> float(schedule("step", every=10, factor=0.5).factor(20))
        0.25
        >>> float(schedule("linear_schedule", end_value=0.0, transition_steps=4).factor(1))
        0.75
    """
    one_of("schedule", name, schedule_names())
    known = inspect.signature(schedule_factory(name)).parameters
    for parameter in parameters:
        one_of(f"parameter of the schedule {name}", parameter, known)
    for parameter, about in known.items():
        if about.default is inspect.Parameter.empty and parameter not in parameters:
            raise ValueError(f"schedule: {name}: {parameter}: missing, must be given")
    if name == "constant":
        return None
    if name in _OWN:
        for key, value in parameters.items():
            if key in ("every", "length", "warmup"):
                whole_number(f"schedule: {name}: {key}", value, low=0 if key == "warmup" else 1)
            elif finite_number(f"schedule: {name}: {key}", value) == 0 and key == "factor":
                raise ValueError(f"schedule: {name}: factor: received 0, must be above 0")
        if parameters.get("warmup", 0) >= parameters.get("length", math.inf):
            raise ValueError(
                f"schedule: {name}: warmup: received {parameters['warmup']}, must be below "
                f"length={parameters['length']}"
            )
    parameters = {key: dict(value) if isinstance(value, tuple) else value for key, value in parameters.items()}
    numbers: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    for key, value in parameters.items():
        if _is_leaf(name, key, parameters):
            numbers[key] = value
        else:  # a mapping as pairs, which can be hashed
            fixed[key] = tuple(sorted(value.items())) if isinstance(value, Mapping) else value
    made = Schedule(name, numbers, tuple(sorted(fixed.items())))
    _check_factors(made)
    return made


def given_schedule(function: RateFactor) -> Schedule:
    """Wraps a function of the count, such as an optax schedule; raises `ValueError` for factors below 0."""
    made = Schedule(function)
    _check_factors(made)
    return made


def _is_leaf(name: str, key: str, parameters: Mapping[str, Any]) -> bool:
    """Returns whether the schedule's function accepts a traced array in place of this number."""
    if not is_number(parameters[key]):
        return False
    if name in _OWN:
        return True
    if isinstance(parameters[key], int) and "value" not in key:
        return False  # a number of steps
    rest = {other: value for other, value in parameters.items() if other != key}
    try:
        jax.eval_shape(lambda value: schedule_factory(name)(**rest, **{key: value})(0), 1.0)
    except (jax.errors.JAXTypeError, TypeError):
        return False
    except (ValueError, AttributeError):  # another parameter's fault, which `_check_factors` reports
        return True
    return True


def _check_factors(made: Schedule) -> None:
    name = made.name if isinstance(made.name, str) else getattr(made.name, "__qualname__", "a function")
    start_jax()
    try:
        with package_settings():
            factors = np.asarray(jax.jit(jax.vmap(made.computed_factor))(_PROBE_COUNTS))
    except jax.errors.JAXTypeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"schedule: {name}: {reason} A schedule is computed for traced counts: use jax.numpy and jnp.where "
            "in place of numpy and if"
        ) from None
    except (ValueError, TypeError, AttributeError, AssertionError) as error:
        raise ValueError(f"schedule: {name}: {error}") from None
    lowest = -_ROUNDING * np.max(factors)
    wrong = np.flatnonzero(~(np.isfinite(factors) & (factors >= min(lowest, 0.0))))
    if wrong.size:
        first = wrong[0]
        raise ValueError(
            f"schedule: {name}: its factor on the learning rate is {factors[first]:g} at {_PROBE_COUNTS[first]} "
            "(from 0), must be finite and at least 0"
        )
