"""Whether there is room for images, before memory is set aside for them."""

import os
from pathlib import Path

from fedjax_bal.data.errors import DataError


def available_bytes() -> int | None:
    """Memory of this machine that may still be used.

    Returns:
        Bytes; all that there is where the system doesn't say what is in use, None where it says neither.

    Example:
        >>> available_bytes() != 0
        True
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else None


def check_memory(place: str | os.PathLike, count: int, shape: tuple[int, ...], advice: str) -> None:
    """Refuses images of a shape `(H, W, K)`, a byte a value, that would need more memory than there is."""
    needed, there = count, available_bytes()
    for length in shape:
        needed *= length
    if there is not None and needed > there:
        size = "x".join(map(str, shape[:2]))
        raise DataError(
            f"{place}: {count} images of {size} pixels need {needed / 2**30:.1f} GiB, but only {there / 2**30:.1f} GiB "
            f"of memory are available; {advice}."
        )
