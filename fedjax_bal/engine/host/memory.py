"""Free and needed memory, before anything is allocated."""

from typing import Any

import jax

from fedjax_bal.data import available_bytes
from fedjax_bal.engine.device import Layout
from fedjax_bal.engine.processes import processes


def free_bytes(layout: Layout) -> int | None:
    """Free memory of each device in bytes, None if unknown; CPU devices share the host's memory."""
    device = jax.local_devices()[0]
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return processes().least(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    host = host_bytes() if device.platform == "cpu" else None
    return None if host is None else host // layout.devices


def host_bytes() -> int | None:
    """Available memory of the host, of several processes' hosts the least; None if unknown."""
    return processes().least(available_bytes())


def program_bytes(compiled: Any) -> int:
    """Bytes that a compiled program needs on each device beside its arguments; 0 if the backend doesn't report them."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return 0
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes


def fit_to_memory(layout: Layout, needed: int, free: int | None, *, fixed: bool) -> int | None:
    """A smaller number of clients at a time to try next, if a program doesn't fit into memory; None if it fits.

    `needed` and `free` are bytes on each device; `fixed` forbids another number.

    Raises:
        ValueError: it doesn't fit, and nothing can be made smaller.

    Example:
        >>> fit_to_memory(Layout("vmap", 1, width=12, lanes=True), needed=30, free=10, fixed=False)
        3
    """
    if free is None or needed <= free:
        return None
    if fixed or layout.width == 1:
        remedy = f"set execution.chunk below {layout.width}, or " if layout.width > 1 else ""
        raise ValueError(
            f"training {layout.width} client(s) at a time needs {needed / 1e9:.1f} GB on each of {layout.devices} "
            f"device(s) beside the data and the state, but {free / 1e9:.1f} GB are free: {remedy}use a smaller batch "
            "size, fewer clients a round, or a smaller model"
        )
    # What doesn't grow with the width is counted as if it did, which errs on the side of fitting.
    return max(1, min(layout.width - 1, int(layout.width * free / needed * 0.9)))
