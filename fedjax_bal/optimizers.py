"""Optimizers as data: any of optax's, with their numbers as pytree leaves."""

import dataclasses
import functools
import inspect
import math
from typing import Any

import jax
import optax

from fedjax_bal.checks import finite_number, is_number, one_of

# The learning rate is ours; the rest of these never make sense as a number from a configuration.
_NOT_OPTIONS = {"decay", "learning_rate", "mask", "kwargs"}
# They need more than a gradient at each step (a loss, a key), or are deprecated.
_NOT_OFFERED = {"lbfgs", "noisy_sgd", "optimistic_adam", "polyak_sgd"}
_BELOW_ONE = math.nextafter(1.0, 0.0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optax optimizer by name, its numbers swappable without another compilation.

    Build it with `optimizer`, which validates.

    Attributes:
        name: the name of the factory in optax.
        learning_rate: the learning rate of round 0.
        decay: factor on the learning rate each round; None for a constant rate.
        weight_decay: coupled weight decay, added to the gradient; None for none.
        options: the factory's other numbers.
        flags: the factory's options that are not numbers, as pairs.
    """

    name: str = dataclasses.field(metadata={"static": True})
    learning_rate: Any
    decay: Any = None
    weight_decay: Any = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    flags: tuple[tuple[str, Any], ...] = dataclasses.field(default=(), metadata={"static": True})

    @property
    def momentum(self) -> Any:
        """The momentum, 0 where there is none."""
        return self.options.get("momentum", 0.0)

    def rate(self, round: Any) -> Any:
        """The learning rate of a round (from 0)."""
        return self.learning_rate if self.decay is None else self.learning_rate * self.decay**round

    def transform(self, round: Any) -> optax.GradientTransformation:
        """The optax transformation of a round.

        Weight decay is inside the gradient, as in PyTorch's SGD: it passes through momentum.
        """
        factory = getattr(optax, self.name)
        transform = factory(learning_rate=self.rate(round), **self.options, **dict(self.flags))
        if self.weight_decay is None:
            return transform
        return optax.chain(optax.add_decayed_weights(self.weight_decay), transform)


def names() -> list[str]:
    """The names of optax's optimizers that take a learning rate.

    Example:
        >>> {"sgd", "adam", "yogi", "adagrad"} <= set(names())
        True
    """
    return list(_names())


def option_names(name: str) -> list[str]:
    """The options of an optimizer beside its learning rate.

    Args:
        name: a name from `names()`.

    Returns:
        The names, sorted.

    Example:
        >>> option_names("sgd")
        ['accumulator_dtype', 'momentum', 'nesterov']
    """
    return sorted(set(inspect.signature(getattr(optax, name)).parameters) - _NOT_OPTIONS)


def optimizer(
    name: str = "sgd", learning_rate: float = 1.0, *, decay: float = 1.0, weight_decay: float = 0.0, **options: Any
) -> Optimizer:
    """Builds an optimizer from numbers.

    Args:
        name: any optax optimizer that takes a learning rate.
        learning_rate: the learning rate of round 0; finite, not negative.
        decay: factor on the learning rate each round, in (0, 1]; hides rmsprop's own option of that name.
        weight_decay: coupled weight decay; an optimizer with a weight decay of its own gets this number instead of
            optax's default, so that none is the default everywhere.
        **options: the factory's other options, e.g. `momentum=0.9`; a momentum is in [0, 1).

    Returns:
        The optimizer.

    Raises:
        ValueError: an unknown name or option, or a number out of range.

    Example:
        >>> sgd = optimizer("sgd", 0.1, momentum=0.9, decay=0.5)
        >>> sgd.rate(2)
        0.025
    """
    one_of("optimizer", name, names())
    known = option_names(name)
    for option in options:
        one_of(f"option of the optimizer {name}", option, known)
    rate = finite_number("optimizer: learning_rate", learning_rate)
    decay = finite_number("optimizer: decay", decay, high=1.0)
    if decay == 0:
        raise ValueError("optimizer: decay: received 0, must be above 0; 1 keeps the learning rate")
    weight_decay = finite_number("optimizer: weight_decay", weight_decay)
    own_decay = "weight_decay" in known
    if own_decay:
        options["weight_decay"] = weight_decay
    if options.get("momentum") == 0 and _default(name, "momentum") is None:
        del options["momentum"]  # the same steps without a buffer
    if options.get("momentum") is not None:
        finite_number("optimizer: momentum", options["momentum"], high=_BELOW_ONE)
    numbers = {key: _finite(key, value) for key, value in options.items() if _is_leaf(name, key, value)}
    flags = tuple(sorted((key, value) for key, value in options.items() if key not in numbers))
    return Optimizer(
        name,
        rate,
        decay=None if decay == 1 else decay,
        weight_decay=None if own_decay or weight_decay == 0 else weight_decay,
        options=numbers,
        flags=flags,
    )


@functools.cache
def _names() -> tuple[str, ...]:
    public = (name for name in dir(optax) if not name.startswith(("_", "scale_by_")) and name not in _NOT_OFFERED)
    return tuple(sorted(name for name in public if _takes_learning_rate(getattr(optax, name))))


def _takes_learning_rate(candidate: Any) -> bool:
    if not inspect.isfunction(candidate):
        return False
    parameters = inspect.signature(candidate).parameters
    required = {name for name, p in parameters.items() if p.default is inspect.Parameter.empty}
    return "learning_rate" in parameters and required <= {"learning_rate", "kwargs"}


def _is_leaf(name: str, option: str, value: Any) -> bool:
    # Whole numbers such as a block size decide on shapes, and have to stay Python numbers.
    whole = isinstance(_default(name, option), int) and not isinstance(_default(name, option), bool)
    return is_number(value) and not whole


def _finite(option: str, value: Any) -> float:
    return finite_number(f"optimizer: {option}", value, low=-math.inf)


def _default(name: str, option: str) -> Any:
    return inspect.signature(getattr(optax, name)).parameters[option].default
