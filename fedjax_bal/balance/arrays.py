"""Types of the functions' arguments, and two helpers that several functions share."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

Number = Num[Array, ""] | float
Counts = Num[Array, "*batch C"]


def as_counts(counts: Num[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Converts counts or shares to floats, negative ones to NaN: they must not pass for absent classes."""
    counts = jnp.asarray(counts, float)
    return jnp.where(counts >= 0, counts, jnp.nan)


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuses a value of a static argument, such as a mode, that isn't one of those allowed."""
    if value not in allowed:
        raise ValueError(f"{name}: received {value!r}, must be {' or '.join(map(repr, allowed))}")
