"""A selector given by name and options, built once the federation is known."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedjax_bal.registry import Registry
from fedjax_bal.selection.bandit import cucb, greedy
from fedjax_bal.selection.buffered import buffered
from fedjax_bal.selection.mediators import mediated
from fedjax_bal.selection.selectors import Selector, by_size, power_of_choice, round_robin, uniform
from fedjax_bal.types import Federation
from fedjax_bal.validate import one_of

SELECTORS: Registry[Callable[..., Selector]] = Registry(
    {
        "uniform": uniform,
        "round_robin": round_robin,
        "by_size": by_size,
        "power_of_choice": power_of_choice,
        "mediated": mediated,
        "cucb": cucb,
        "greedy": greedy,
        "buffered": buffered,
    }
)
"""Factory of each selector by name; arguments that the federation provides, see `FROM_FEDERATION`, are keyword-only."""

FROM_FEDERATION: Mapping[str, Callable[[Federation], Any]] = {
    "class_counts": lambda federation: federation.class_counts,
    "sizes": lambda federation: federation.sizes,
    "num_classes": lambda federation: federation.num_classes,
}
"""Arguments of factories that the federation provides."""


class Choice(NamedTuple):
    """A selector's name and options.

    Attributes:
        name: one of `SELECTORS`.
        options: the selector's options by name, in order, without the number of clients and the arguments that the
            federation provides.
    """

    name: str = "uniform"
    options: tuple[tuple[str, Any], ...] = ()

    def build(self, clients_per_round: int, federation: Federation) -> Selector:
        """Builds the selector for a federation.

        Args:
            clients_per_round: at least 1.
            federation: the federation for training, copies included.

        Raises:
            ValueError: the name is unknown, or an option is unknown, missing or out of range.

        Example:
            >>> from fedjax_bal.testing.toy import federation
            >>> Choice("mediated", (("size", 2), ("passes", 1))).build(4, federation()).chain_length
            2
        """
        factory = SELECTORS[one_of("selector", self.name, tuple(SELECTORS))]
        parameters = inspect.signature(factory).parameters
        provided = {name: look_up(federation) for name, look_up in FROM_FEDERATION.items() if name in parameters}
        options = dict(self.options)
        takes = {name: value for name, value in parameters.items() if name not in ("clients_per_round", *provided)}
        unknown = sorted(set(options) - set(takes))
        missing = sorted(name for name, value in takes.items() if value.default is value.empty and name not in options)
        if unknown or missing:
            fault = f"received {unknown[0]!r}" if unknown else f"lacks {missing[0]!r}"
            raise ValueError(
                f"selector {self.name}: {fault}; its options are {', '.join(takes) or 'none'}: "
                f"Choice({self.name!r}, (('option', value), ...))"
            )
        return factory(clients_per_round, **options, **provided)
