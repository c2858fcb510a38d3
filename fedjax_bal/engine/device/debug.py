"""Names the round, client and local step in which an error happens, where nothing is compiled (`strategy="debug"`).

Under `jax.disable_jit` loops run in Python and values are known, so that an exception in a part has the part's own line
in its traceback. What the traceback lacks is added here as notes. Compiled programs are left as they are.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.engine.device.trees import all_finite

T = TypeVar("T")


def is_uncompiled() -> bool:
    """Tells whether jit is off, so that every value is known."""
    config: Any = jax.config
    return config.jax_disable_jit


@contextlib.contextmanager
def located(place: str, *values: Any) -> Iterator[None]:
    """Adds a place to an exception that is raised within; `values` fill its format string."""
    try:
        yield
    except Exception as error:
        if is_uncompiled():
            error.add_note(place.format(*values))
        raise


def stop_at_nan(setting: Setting, function: Callable[..., T], *args: Any) -> T:
    """Calls a function; if its result isn't finite, calls it again, in which the operation that makes a nan raises.

    Checking every operation at once would stop at a nan that a `jnp.where` takes out again. Where broken clients are
    left out they are no error here either.
    """
    result = function(*args)
    if is_uncompiled() and not setting.execution.excludes and not all_finite(result):
        with jax.debug_nans(True):
            function(*args)
        raise FloatingPointError("a number is infinite, though no operation made a nan: something grows too fast")
    return result
