"""How many devices jax makes of the CPU; to be settled before it starts."""

import contextlib
import os

import jax


def split_cpu(devices: str | int = "auto") -> None:
    """Lets jax see the CPU as several devices, on each of which one client trains at a time.

    Changes nothing where jax has already started, or runs on an accelerator.

    Args:
        devices: how many, or "auto" for one for each core that this process may use.

    Example:
        >>> split_cpu(1)
    """
    count = cores() if devices == "auto" else int(devices)
    with contextlib.suppress(RuntimeError):  # jax has started
        jax.config.update("jax_num_cpu_devices", count)


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
