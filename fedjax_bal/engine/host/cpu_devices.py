"""The number of devices into which jax splits the CPU; to be set before jax starts."""

import contextlib
import functools
import os
import warnings
from typing import Any

import jax

_MOST_ON_FEW_CORES = 64


def split_cpu(devices: str | int = "auto", least: int = 1) -> None:
    """Lets jax see the CPU as several devices, at least `least`, each of which trains one client at a time.

    They are at most one for each core or 64, as hundreds take minutes to start and are no faster; `device_count` then
    refuses more.

    "auto" is one for each core that this process may use, unless the user has set another number in jax. Changes
    nothing if jax has started or runs on an accelerator.
    """
    if devices == "auto" and _is_set():
        return
    with contextlib.suppress(RuntimeError):  # jax has started
        wanted = max(cores() if devices == "auto" else int(devices), least)
        jax.config.update("jax_num_cpu_devices", min(wanted, max(cores(), _MOST_ON_FEW_CORES)))


@functools.cache
def warn_of_idle_cores() -> None:
    """Warns, once, if jax started before the CPU was split, and says how to split it."""
    if jax.default_backend() == "cpu" and not _is_set() and jax.device_count() < cores():
        warnings.warn(
            f"training on {jax.device_count()} of {cores()} cores, as jax started before fedjax_bal could split the "
            f'CPU: call jax.config.update("jax_num_cpu_devices", {cores()}) right after importing jax, or ask for '
            "Execution(devices=1)",
            stacklevel=2,
        )


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_set() -> bool:
    known: Any = jax.config
    flags = os.environ.get("XLA_FLAGS", "")
    return known.jax_num_cpu_devices >= 0 or "xla_force_host_platform_device_count" in flags
