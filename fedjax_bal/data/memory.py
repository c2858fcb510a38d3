"""Checks that memory suffices before it is allocated."""

import math
import os
from pathlib import Path

from fedjax_bal.data.errors import DataError


def available_bytes() -> int | None:
    """Returns the free memory of this machine, or all of it if the system doesn't say what is free; None if neither."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else None


def check_memory(subject: str, needed: int, remedy: str = "take a machine with more") -> None:
    """Raises `DataError` if `subject`, which begins the message and ends in a verb, takes more bytes than are free."""
    free = available_bytes()
    if free is not None and needed > free:
        raise DataError(
            f"{subject} {needed / 2**30:.1f} GiB, but only {free / 2**30:.1f} GiB of memory are available; {remedy}."
        )


def check_images_fit(
    place: str | os.PathLike, count: int, shape: tuple[int, ...], remedy: str = "take a machine with more"
) -> None:
    """Raises `DataError` if that many images of a shape `(H, W, K)`, one byte a value, exceed the free memory."""
    size = "x".join(map(str, shape[:2]))
    check_memory(f"{place}: {count} images of {size} pixels need", math.prod((count, *shape)), remedy)
