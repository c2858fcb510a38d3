"""The one owner of the client axis.

Everything that happens to many clients at once goes through `over_chains`; how it is executed is decided here and
nowhere else.
"""

from collections.abc import Callable

import jax

from fedjax_bal.checks import one_of
from fedjax_bal.types import PyTree

STRATEGIES = ("auto", "map", "vmap")


def resolve(strategy: str) -> str:
    """Picks a strategy for this machine.

    Args:
        strategy: "auto", "map" or "vmap".

    Returns:
        "map" or "vmap"; "auto" is "map" on CPUs, where true step counts and unbatched convolutions win, and "vmap" on
        accelerators.

    Raises:
        ValueError: another name.

    Example:
        >>> resolve("vmap")
        'vmap'
    """
    one_of("execution.strategy", strategy, STRATEGIES)
    if strategy != "auto":
        return strategy
    return "map" if jax.default_backend() == "cpu" else "vmap"


def over_chains(function: Callable[[PyTree], PyTree], chains: PyTree, strategy: str) -> PyTree:
    """Applies a function to every chain.

    Args:
        function: from one chain's inputs to its outputs.
        chains: inputs, leaves `[G, ...]`.
        strategy: "map", one chain after another, each with its own number of steps; or "vmap", all stacked, as many
            steps as the longest takes.

    Returns:
        Outputs, leaves `[G, ...]`; equal to rounding between strategies.

    Example:
        >>> import jax.numpy as jnp
        >>> over_chains(lambda x: x + 1, jnp.arange(3), "map").tolist()
        [1, 2, 3]
    """
    if strategy == "map":
        return jax.lax.map(function, chains)
    return jax.vmap(function)(chains)
