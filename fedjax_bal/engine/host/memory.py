"""How much memory there is, and how much is needed, before anything is allocated."""

from typing import Any

import jax

from fedjax_bal.data import available_bytes
from fedjax_bal.engine.device import Layout
from fedjax_bal.engine.processes import processes


def free_bytes(layout: Layout) -> int | None:
    """Memory of each device that may still be used; None where nobody says.

    CPU devices have the host's memory in common.

    Args:
        layout: the layout.

    Returns:
        Bytes.
    """
    device = jax.local_devices()[0]
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return processes().least(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    there = host_bytes() if device.platform == "cpu" else None
    return None if there is None else there // layout.devices


def host_bytes() -> int | None:
    """Memory of the host that may still be used, of several processes' hosts the least; None where nobody says."""
    return processes().least(available_bytes())


def program_bytes(compiled: Any) -> int:
    """What a compiled program needs on each device beside its arguments.

    Args:
        compiled: from `jax.stages.Lowered.compile`.

    Returns:
        Bytes; 0 where the backend doesn't say.
    """
    analysis = compiled.memory_analysis()
    if analysis is None:
        return 0
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes


def fit_to_memory(layout: Layout, needed: int, free: int | None, *, fixed: bool) -> int | None:
    """How many clients to train at a time on a device, where as many as planned don't fit.

    Args:
        layout: the layout that was compiled.
        needed: what its program needs on each device, in bytes.
        free: what each device has.
        fixed: the number may not be changed.

    Returns:
        A smaller number to try next; None where it fits.

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
