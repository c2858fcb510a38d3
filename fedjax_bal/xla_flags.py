"""XLA's flags for CPUs, which must be set before jax starts; this module doesn't import jax."""

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


PATIENCE = {
    "xla_cpu_collective_call_terminate_timeout_seconds": str(24 * 3600),
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": "600",
}
"""Seconds that a CPU device waits for the others, at most, before XLA ends the process, and before it prints a warning.

XLA's defaults are 40 and 20 (a minute in all): a run on a busy machine, or on one that was suspended, would be aborted
although nothing is wrong with it.
"""


def set_cpu_flags() -> None:
    """Sets XLA's flags for CPUs, except those set by the user; warns if jax has started without the first.

    Programs of the engine are compiled with `LIBRARY_OPERATIONS` anyway. The flag protects functions that users compile
    with a plain `jax.jit`: `make_round(...).step`, functions of `balance`, `Model.apply`. `PATIENCE` has no effect as
    an option of a program. XLA ends the process at a flag that it doesn't know, so each is set only for versions of
    jaxlib that have been tried: 0.10.2 alone adds wrongly (jax issue 39103).
    """
    wanted: dict[str, str] = {}
    if jaxlib_version == "0.10.2":
        wanted |= LIBRARY_OPERATIONS
    if jaxlib_version.startswith(("0.10.", "0.11.", "0.12.")):
        wanted |= PATIENCE
    flags = os.environ.get("XLA_FLAGS", "")
    missing = {name: value for name, value in wanted.items() if name not in flags}
    jax = sys.modules.get("jax")
    if jax is None or not has_started(jax):
        os.environ["XLA_FLAGS"] = " ".join([flags, *(f"--{name}={value}" for name, value in missing.items())]).strip()
    elif LIBRARY_OPERATIONS.keys() & missing.keys() and jax.default_backend() == "cpu":
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
