"""optax optimizers by name, with hyperparameters as pytree leaves; or any optax transformation, as static data."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

from fedjax_bal.optim.schedules import Schedule, given_schedule
from fedjax_bal.types import Array, PyTree
from fedjax_bal.validate import finite_number, is_number, one_of

# `optimizer` has its own learning rate and decay, which another rate beside it wouldn't follow; the others aren't
# numbers or have their own argument.
_NOT_OPTIONS = {
    *("adam_learning_rate", "clip_norm", "clip_value", "decay", "init_step", "kwargs", "learning_rate", "mask"),
    *("muon_weight_dimension_numbers", "ns_coeffs", "schedule", "step_schedule", "weight_dimension_numbers"),
}
# Excluded: optimizers that need more than a gradient at each step (a loss, a key), that evaluate other parameters than
# they train, or are deprecated.
_NOT_OFFERED = {
    *("lbfgs", "momo", "momo_adam", "noisy_sgd", "optimistic_adam", "polyak_sgd", "sophia"),
    *("schedule_free_adamw", "schedule_free_sgd"),
}
USUAL_RATES = {
    "adadelta": 1.0,
    "adafactor": 0.01,
    "adagrad": 0.01,
    "cocob": 1.0,
    "dadapt_adamw": 1.0,
    "dog": 1.0,
    "dowg": 1.0,
    "lars": 0.1,
    "lion": 0.0001,
    "madgrad": 0.01,
    "muon": 0.02,
    "prodigy": 1.0,
    "rprop": 0.01,
    "sgd": 0.05,
    "optimistic_gradient_descent": 0.05,
    "sign_sgd": 0.0001,
    "signum": 0.0001,
    "sm3": 0.1,
}
"""The learning rates with which users begin, by optimizer; for all others, of Adam's kind, it is 0.001."""
_BELOW_ONE = math.nextafter(1.0, 0.0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optax optimizer by name, from `optimizer`; its hyperparameters can change without another compilation.

    For an optax transformation, from `as_optimizer`, hyperparameters can't be read: `learning_rate` and `momentum` are
    None.

    Attributes:
        name: the name of the factory in optax or `optax.contrib`, "fedopt" for an optimizer from `fedopt`, or an optax
            transformation, which equals only itself.
        learning_rate: the learning rate of round 0; None if it isn't known.
        decay: factor on the learning rate per round; None for a constant rate.
        weight_decay: coupled weight decay, added to the gradient; None for none.
        options: the factory's other numbers.
        flags: the factory's options that aren't numbers, as pairs.
        schedule: a further factor on the learning rate, by round; None for none.
        step_schedule: a further factor on the learning rate, by local step, from 0 in each local training; None for
            none.
        clip_norm: the largest global norm of a gradient; None for no limit.
        clip_value: the largest magnitude of each entry of a gradient; None for no limit.
        clip_at: whether a client clips its gradient before ("start") or after ("end") parts change it.
    """

    name: str | optax.GradientTransformation = dataclasses.field(metadata={"static": True})
    learning_rate: Any
    decay: Any = None
    weight_decay: Any = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    flags: tuple[tuple[str, Any], ...] = dataclasses.field(default=(), metadata={"static": True})
    schedule: Schedule | None = None
    step_schedule: Schedule | None = None
    clip_norm: Any = None
    clip_value: Any = None
    clip_at: str = dataclasses.field(default="start", metadata={"static": True})

    @property
    def momentum(self) -> Any:
        """The momentum, 0 if there is none; None if it isn't known."""
        return self.options.get("momentum", 0.0) if isinstance(self.name, str) else None

    def rate(self, round: Any) -> Any:
        """Returns the learning rate of a round (from 0), without the schedule by local steps; None if unknown."""
        rate = self.learning_rate if self.decay is None else self.learning_rate * self.decay**round
        return rate if self.schedule is None else rate * self.schedule.factor(round)

    def rate_at(self, round: Any, step: Any) -> Any:
        """Returns the learning rate of a local step of a round; steps count from 0 in each local training."""
        rate = self.rate(round)
        return rate if self.step_schedule is None else rate * self.step_schedule.factor(step)

    def describe_rate(self, round: int) -> str:
        """Returns the learning rate of a round in brackets, for messages; empty if it isn't known."""
        rate = self.rate(round)
        return "" if rate is None else f" (here {float(rate):g})"

    def full_steps(self, steps: Array, most: int) -> Array | None:
        """Converts numbers of local steps, `Int[...]` of at most `most`, to equivalent steps at the round's rate.

        s steps are equivalent to the sum of the step schedule's first s factors, `Float[...]`; None without a step
        schedule.
        """
        if self.step_schedule is None:
            return None
        factors = jax.vmap(self.step_schedule.factor)(jnp.arange(most, dtype=jnp.int32))
        return jnp.concatenate([jnp.zeros(1), jnp.cumsum(factors)])[steps]

    def clipped(self, grads: PyTree) -> PyTree:
        """Clips each entry of a gradient, then the gradient's norm."""
        if self.clip_value is not None:
            grads = optax.clip(self.clip_value).update(grads, optax.EmptyState())[0]
        if self.clip_norm is not None:
            grads = optax.clip_by_global_norm(self.clip_norm).update(grads, optax.EmptyState())[0]
        return grads

    def transform(self, round: Any, step: Any = 0) -> optax.GradientTransformation:
        """Returns the optax transformation of a round, or of a local step in it; all have the same state.

        Weight decay is added to the gradient, as in PyTorch's SGD, and therefore passes through momentum. Clipping
        isn't included: it happens earlier, before or after parts change the gradient.
        """
        if not isinstance(self.name, str):
            return _in_round(self.name, round)
        factory = _fedopt if self.name == "fedopt" else optimizer_factory(self.name)
        transform = factory(learning_rate=self.rate_at(round, step), **self.options, **dict(self.flags))
        if self.weight_decay is None:
            return transform
        return optax.chain(optax.add_decayed_weights(self.weight_decay), transform)


def _in_round(given: optax.GradientTransformation, round: Any) -> optax.GradientTransformation:
    """Returns the transformation with schedules of `optax.inject_hyperparams` at a round, not at its own step."""
    # The type of a schedule's counter is private in optax, so it is taken from an instance.
    counter = type(optax.WrappedSchedule(optax.constant_schedule(0.0)).init())
    is_counter = lambda node: isinstance(node, counter)
    now = counter(jnp.asarray(round, jnp.int32))

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None) -> tuple[PyTree, PyTree]:
        state = jax.tree.map(lambda node: now if is_counter(node) else node, state, is_leaf=is_counter)
        return given.update(updates, state, params)

    return optax.GradientTransformation(given.init, update)


AnyOptimizer = Optimizer | optax.GradientTransformation
"""The types that users may pass as an optimizer."""


@functools.cache
def optimizer_names() -> tuple[str, ...]:
    """Returns the names of the optimizers of optax and `optax.contrib` that take a learning rate.

    Example:
        >>> {"sgd", "adam", "yogi", "adagrad", "muon"} <= set(optimizer_names())
        True
    """
    names = []
    for name, function in sorted(dict(_functions(contrib) + _functions(optax)).items()):
        parameters = inspect.signature(function).parameters
        required = {key for key, about in parameters.items() if about.default is about.empty}
        needs_a_rate_alone = "learning_rate" in parameters and required <= {"learning_rate", "kwargs"}
        if needs_a_rate_alone and not name.startswith(("_", "scale_by_")) and name not in _NOT_OFFERED:
            names.append(name)
    return tuple(names)


def _functions(module: ModuleType) -> list[tuple[str, Callable[..., Any]]]:
    return inspect.getmembers(module, inspect.isfunction)


def optimizer_factory(name: str) -> Callable[..., optax.GradientTransformation]:
    """Returns the function of an optimizer's name, from optax or else from `optax.contrib`.

    Example:
        >>> optimizer_factory("muon") is optax.contrib.muon
        True
    """
    return getattr(optax, name, None) or getattr(contrib, name)


def option_names(name: str) -> list[str]:
    """Returns the options of an optimizer except its learning rate, sorted.

    Example:
        >>> option_names("sgd")
        ['accumulator_dtype', 'momentum', 'nesterov']
    """
    return sorted(set(inspect.signature(optimizer_factory(name)).parameters) - _NOT_OPTIONS)


def optimizer(
    name: str = "sgd",
    learning_rate: float | Callable[[Any], Any] = 1.0,
    *,
    decay: float = 1.0,
    weight_decay: float = 0.0,
    schedule: Schedule | Callable[[Any], Any] | None = None,
    step_schedule: Schedule | Callable[[Any], Any] | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    clip_at: str = "start",
    **options: Any,
) -> Optimizer:
    """Builds an optimizer with known hyperparameters, which can be swept and are available to FedNova and SCAFFOLD.

    Args:
        name: any optimizer of optax or `optax.contrib` that takes a learning rate.
        learning_rate: the learning rate of round 0, finite, not negative; or a function of the round (from 0), such as
            an optax schedule.
        decay: factor on the learning rate per round, in (0, 1]; hides rmsprop's option of the same name.
        weight_decay: coupled weight decay. An optimizer with its own weight decay gets this number instead of optax's
            default, so that the default is no decay for every optimizer.
        schedule: a further factor on the learning rate by round, from `fedjax_bal.optim.schedule`, or a function.
        step_schedule: a further factor by local step, from 0 in each local training; for clients only.
        clip_norm: the largest global norm of a gradient, above 0, before weight decay. Frozen parameters don't count,
            and another model or classifier that is trained along with the model is clipped separately.
        clip_value: the largest magnitude of each entry of a gradient, above 0; applied before `clip_norm`.
        clip_at: whether a client clips its gradient before ("start") or after ("end") parts change it. At "end" the
            limit includes SCAFFOLD's correction or FedCM's momentum.
        **options: the factory's other options, e.g. `momentum=0.9`; a momentum is in [0, 1).

    Returns:
        The optimizer.

    Raises:
        ValueError: a name or option is unknown, or a number is out of range.

    Example:
        >>> sgd = optimizer("sgd", 0.1, momentum=0.9, decay=0.5)
        >>> sgd.rate(2)
        0.025
        >>> from fedjax_bal.optim import schedule
        >>> stepped = optimizer("sgd", 0.1, schedule=schedule("step", every=2, factor=0.5), clip_norm=1.0)
        >>> [round(float(stepped.rate(number)), 3) for number in range(4)]
        [0.1, 0.1, 0.05, 0.05]
        >>> import optax
        >>> float(optimizer("sgd", optax.linear_schedule(0.5, 0.0, 2)).rate(1))
        0.25
    """
    if callable(learning_rate):
        if schedule is not None:
            raise ValueError("optimizer: schedule: received together with a learning rate by round; leave one out")
        schedule = learning_rate
        learning_rate = 1.0
    one_of("optimizer", name, optimizer_names())
    one_of("optimizer: clip_at", clip_at, ("start", "end"))
    known = option_names(name)
    options = {option: value.item() if isinstance(value, np.generic) else value for option, value in options.items()}
    for option in options:
        one_of(f"option of the optimizer {name}", option, known)
    rate = finite_number("optimizer: learning_rate", learning_rate)
    decay = finite_number("optimizer: decay", decay, high=1.0)
    if decay == 0:
        raise ValueError("optimizer: decay: received 0, must be above 0; 1 keeps the learning rate")
    weight_decay = finite_number("optimizer: weight_decay", weight_decay)
    decoupled = "weight_decay" in known
    if decoupled:
        options["weight_decay"] = weight_decay

    defaults = inspect.signature(optimizer_factory(name)).parameters
    momentum = options.get("momentum", defaults["momentum"].default if "momentum" in defaults else 0)
    if options.get("nesterov") and momentum is None:
        raise ValueError("optimizer: nesterov: received without a momentum, which it changes; give momentum=0.9")
    if options.get("momentum") == 0 and defaults["momentum"].default is None:
        # The same steps without a buffer.
        del options["momentum"]
        options.pop("nesterov", None)
    if "momentum" not in options and momentum:
        options["momentum"] = momentum  # that of LARS and SM3 by default, which parts must know
    if options.get("momentum") is not None:
        finite_number("optimizer: momentum", options["momentum"], high=_BELOW_ONE)
    numbers: dict[str, float] = {}
    flags: dict[str, Any] = {}
    for option, value in options.items():
        default = defaults[option].default
        if isinstance(default, bool) and not isinstance(value, bool):
            raise ValueError(f"optimizer: {option}: received {value!r}, must be True or False")
        if isinstance(default, int | float) and not isinstance(default, bool):
            kind = "an integer" if isinstance(default, int) else "a number"
            if not is_number(value) or (isinstance(default, int) and not float(value).is_integer()):
                raise ValueError(f"optimizer: {option}: received {value!r}, must be {kind}")
        if is_number(value) and type(default) is not int:
            numbers[option] = finite_number(f"optimizer: {option}", value, low=-math.inf)
        else:
            # Integers such as a block size determine shapes and must stay Python numbers. Where optax annotates them as
            # arrays, a configuration reads them as floats.
            flags[option] = int(value) if is_number(value) and int(value) == value else value
    return Optimizer(
        name,
        rate,
        decay=None if decay == 1 else decay,
        weight_decay=None if decoupled or weight_decay == 0 else weight_decay,
        options=numbers,
        flags=tuple(sorted(flags.items())),
        schedule=_as_schedule("schedule", schedule),
        step_schedule=_as_schedule("step_schedule", step_schedule),
        clip_norm=_limit("clip_norm", clip_norm),
        clip_value=_limit("clip_value", clip_value),
        clip_at=clip_at,
    )


def fedopt(
    second: Literal["adam", "yogi", "adagrad"], learning_rate: float, b1: float, b2: float, tau: float, initial: float
) -> Optimizer:
    r"""Builds the adaptive server optimizers as published, without bias correction of the moments.

    $m \leftarrow \beta_1 m + (1 - \beta_1) g$ from 0, and $w \leftarrow w - \eta m / (\sqrt{v} + \tau)$, where v
    changes by $-(1 - \beta_2) (v - g^2)$ (Adam), $-(1 - \beta_2) g^2 sign(v - g^2)$ (Yogi) or $g^2$ (Adagrad).

    Args:
        second: update rule of the second moment.
        learning_rate: eta.
        b1: decay of the first moment.
        b2: decay of the second moment; unused by Adagrad.
        tau: added to the root of the second moment.
        initial: initial second moment; tau^2 in the paper.

    Returns:
        The optimizer.

    References:
        Reddi et al.: Adaptive Federated Optimization, 2021, Algorithm 2.
    """
    numbers = {"b1": b1, "b2": b2, "tau": tau, "initial": initial}
    return Optimizer("fedopt", float(learning_rate), options=numbers, flags=(("second", second),))


class _Moments(NamedTuple):
    """The state of `fedopt`: m and v, shaped like the parameters."""

    first: PyTree
    second: PyTree


def _fedopt(learning_rate: Any, b1: Any, b2: Any, tau: Any, initial: Any, second: str) -> optax.GradientTransformation:
    """Builds the optax transformation of `fedopt`."""
    change = {
        "adam": lambda v, square: -(1 - b2) * (v - square),
        "yogi": lambda v, square: -(1 - b2) * square * jnp.sign(v - square),
        "adagrad": lambda v, square: square,
    }[second]

    def init(params: PyTree) -> _Moments:
        begin = lambda leaf: jnp.full_like(leaf, initial)
        return _Moments(jax.tree.map(jnp.zeros_like, params), jax.tree.map(begin, params))

    def update(updates: PyTree, state: Any, params: Any = None) -> tuple[PyTree, Any]:
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.first, updates)
        v = jax.tree.map(lambda v, g: v + change(v, g**2), state.second, updates)
        return jax.tree.map(lambda m, v: -learning_rate * m / (jnp.sqrt(v) + tau), m, v), _Moments(m, v)

    return optax.GradientTransformation(init, update)


def as_optimizer(name: str, given: AnyOptimizer) -> Optimizer:
    """Returns the given optimizer, or wraps an optax transformation; raises `ValueError` for any other value.

    A transformation's own schedules count its steps: on clients local steps, from 0 in each local training, on the
    server rounds. Schedules of `optax.inject_hyperparams` count rounds on both.

    Example:
        >>> adam = optax.adam(0.1)
        >>> as_optimizer("optimizer", adam) == as_optimizer("optimizer", adam)
        True
    """
    if isinstance(given, Optimizer):
        return given
    if not isinstance(given, optax.GradientTransformation):
        raise ValueError(
            f"{name}: received {given!r}, must be an optax.GradientTransformation, as optax.sgd(0.1), or an optimizer "
            "from fedjax_bal.optimizer"
        )
    return Optimizer(given, None)


def check_known(recipe: str, local: Optimizer) -> None:
    """Rejects an optax transformation, for a recipe that needs the learning rate or the momentum."""
    if not isinstance(local.name, str):
        raise ValueError(
            f"{recipe}: received an optax transformation as local optimizer; it needs the learning rate and the "
            "momentum, which can't be read from one: pass fedjax_bal.optimizer('sgd', learning_rate, momentum=...), "
            "which takes clip_norm and schedules, too"
        )


def _as_schedule(key: str, value: Any) -> Schedule | None:
    if callable(value):
        return given_schedule(value)
    if not isinstance(value, Schedule | None):
        raise ValueError(
            f"optimizer: {key}: received {value!r}, must come from fedjax_bal.optim.schedule, or be a function"
        )
    return value


def _limit(key: str, value: float | None) -> float | None:
    if value is None:
        return None
    if finite_number(f"optimizer: {key}", value) == 0:
        raise ValueError(f"optimizer: {key}: received 0, must be above 0; leave it out for no limit")
    return float(value)
