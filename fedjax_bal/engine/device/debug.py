"""Adds the round, client and local step to errors of runs that aren't compiled (`strategy="debug"`).

Under `jax.disable_jit` loops run in Python and values are concrete, so the traceback of an exception in a part shows
the part's own line. It doesn't show the round, client and step, which are added as notes. Compiled programs don't
change.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.engine.device.trees import all_finite

T = TypeVar("T")


def is_uncompiled() -> bool:
    """Tells whether jit is disabled, so that every value is concrete."""
    config: Any = jax.config
    return config.jax_disable_jit


@contextlib.contextmanager
def located(place: str, *values: Any) -> Iterator[None]:
    """Adds a place to exceptions that are raised within the context; `values` fill its format string."""
    try:
        yield
    except Exception as error:
        if is_uncompiled():
            error.add_note(place.format(*values))
        raise


def stop_at_nan(setting: Setting, function: Callable[..., T], *args: Any) -> T:
    """Calls a function; if the result isn't finite, calls it again so that the operation that made a nan raises.

    The first call doesn't check every operation, because that would stop at a nan that a `jnp.where` discards later.
    If broken clients are left out of the round, a result that isn't finite is no error.
    """
    result = function(*args)
    if is_uncompiled() and not setting.execution.excludes and not all_finite(result):
        # The second call checks every operation. Parts are pure, so that it computes the same numbers.
        with jax.debug_nans(True):
            function(*args)
        raise FloatingPointError("a number is infinite, though no operation made a nan: something grows too fast")
    return result
