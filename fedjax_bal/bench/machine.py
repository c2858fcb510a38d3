"""Peak speed of the machine, and peak memory of the process."""

import math
import resource
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_bal.target import target_platform

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_SIDE = {"cpu": 2048}
_SIDE_OF_ACCELERATORS = 8192
PRECISIONS = {
    "float32": (jnp.float32, jax.lax.Precision.HIGHEST),
    "tensorfloat32": (jnp.float32, jax.lax.Precision.DEFAULT),
    "bfloat16": (jnp.bfloat16, jax.lax.Precision.DEFAULT),
}
"""Types and precisions of matrix products, by name."""


class Peak(NamedTuple):
    """A peak of memory.

    Attributes:
        size: in bytes.
        kind: "device" (the allocators of all devices, since the process began) or "resident" (of the process).
    """

    size: int
    kind: str


def matmul_peak(precision: str = "float32", repeats: int = 5) -> float:
    """Operations per second of large square matrix products on all devices at once, the best of several tries.

    A multiply-add is two operations; `precision` is a name of `PRECISIONS`.
    """
    side = _SIDE.get(target_platform(), _SIDE_OF_ACCELERATORS)
    kind, exactness = PRECISIONS[precision]
    operands = [jax.device_put(jnp.full((side, side), 1 / side, kind), device) for device in jax.devices()]
    product = jax.jit(lambda a: jnp.dot(a, a, precision=exactness))
    shortest = math.inf
    for _ in range(repeats + 1):  # the first one compiles
        jax.block_until_ready(operands)
        began = time.perf_counter()
        jax.block_until_ready([product(operand) for operand in operands])
        shortest = min(shortest, time.perf_counter() - began)
    return len(operands) * 2 * side**3 / shortest


def forget_peak() -> None:
    """Resets the process's peak of resident memory, if the system can."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return


def memory_peak() -> Peak:
    """Peak memory of all devices, or of the process if they don't report it."""
    stats = [device.memory_stats() or {} for device in jax.devices()]
    if all("peak_bytes_in_use" in each for each in stats):
        return Peak(sum(each["peak_bytes_in_use"] for each in stats), "device")
    return Peak(resident_peak(), "resident")


def resident_peak() -> int:
    """Peak resident memory of the process in bytes, since `forget_peak` if the system can reset it.

    Example:
        >>> resident_peak() > 1_000_000
        True
    """
    try:
        lines = _STATUS.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return largest if sys.platform == "darwin" else largest * 1024
