"""XLA's flag for correct sums on CPUs, which must be set before jax starts; this module doesn't import jax."""

import os
import sys
import warnings

from jaxlib.version import __version__ as jaxlib_version

LIBRARY_OPERATIONS = {
    "xla_cpu_experimental_ynn_fusion_type": ",".join(
        f"LIBRARY_FUSION_TYPE_{kind}" for kind in ("INDIVIDUAL_DOT", "INDIVIDUAL_CONVOLUTION")
    )
}
"""Operations that XLA:CPU leaves to its library: products and convolutions, but not sums.

The library splits a long sum among the threads that happen to be free, so that the last digits differ from call to
call as soon as two devices work at a time.
"""


def leave_sums_to_xla() -> None:
    """Sets the flag for a jaxlib that adds wrongly (0.10.2, jax issue 39103); warns if jax has started without it.

    Programs of the engine are compiled with the option anyway. The flag protects functions that users compile with a
    plain `jax.jit`: `make_round(...).step`, functions of `balance`, `Model.apply`. It isn't set for other versions of
    jaxlib, because XLA ends the process at a flag that it doesn't know.
    """
    ((name, value),) = LIBRARY_OPERATIONS.items()
    flags = os.environ.get("XLA_FLAGS", "")
    if jaxlib_version != "0.10.2" or name in flags:
        return
    jax = sys.modules.get("jax")
    if jax is None or not has_started(jax):
        os.environ["XLA_FLAGS"] = f"{flags} --{name}={value}".strip()
    elif jax.default_backend() == "cpu":
        warnings.warn(
            "jaxlib 0.10.2 can return wrong sums from functions under jax.jit on CPUs (jax issue 39103), and jax "
            "started before fedjax_bal could prevent that: import fedjax_bal before jax computes anything, or use "
            "another version of jax",
            stacklevel=3,
        )


def has_started(jax) -> bool:
    """Tells whether jax has started."""
    # Jax has no public function for this, but once it has started, it refuses another number of CPU devices.
    number = jax.config.jax_num_cpu_devices
    try:
        jax.config.update("jax_num_cpu_devices", number + 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", number)
    return False
