"""The device and the versions on which a run was trained, for its summary."""

import contextlib
import os
import platform
from pathlib import Path

import jax
import numpy as np

from fedjax_bal._version import __version__
from fedjax_bal.models import onednn_version


def device_name() -> str:
    """The device, in words."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return f"{jax.device_count()} x {device.device_kind}"
    return f"{_processor()}, {os.cpu_count()} cores"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """The versions of this package and of what its results may depend on; oneDNN's only where it is called."""
    import flax
    import jaxlib
    import optax

    return {
        "fedjax_bal": __version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "flax": flax.__version__,
        "optax": optax.__version__,
        "numpy": np.__version__,
        **({"oneDNN": onednn} if (onednn := onednn_version()) else {}),
    }


_SETTINGS = (
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_random_seed_offset",
    "jax_default_matmul_precision",
    "jax_enable_x64",
)


def numeric_settings() -> dict[str, str]:
    """The settings of jax that random numbers and rounding depend on, by name.

    The processes of a run must have the same, and a run goes on only with those that it was begun with.

    Example:
        >>> numeric_settings()["jax_random_seed_offset"]
        '0'
    """
    return {name: str(getattr(jax.config, name)) for name in _SETTINGS}
