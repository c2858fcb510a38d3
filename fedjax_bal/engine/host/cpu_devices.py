"""The number of devices into which jax splits the CPU; to be set before jax starts."""

import contextlib
import os

import jax


def split_cpu(devices: str | int = "auto") -> None:
    """Lets jax see the CPU as several devices, each of which trains one client at a time.

    "auto" is one for each core that this process may use. Changes nothing if jax has started or runs on an accelerator.
    """
    count = cores() if devices == "auto" else int(devices)
    with contextlib.suppress(RuntimeError):  # jax has started
        jax.config.update("jax_num_cpu_devices", count)


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
