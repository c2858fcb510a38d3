"""Checks that there is enough memory before it is allocated."""

import contextlib
import math
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fedjax_bal.data.reading import DataError


class _GroupFiles(NamedTuple):
    """The files of a control group, which limits the memory of a container."""

    mount: str
    limit: str
    usage: str
    cached: str  # the key in memory.stat of file contents that are dropped when memory is needed


_VERSION_1 = _GroupFiles(
    "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)
_VERSION_2 = _GroupFiles("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


def available_bytes(root: Path = Path("/")) -> int | None:
    """Returns the bytes that this process may still allocate: free memory, or less if a container limits it.

    If the system doesn't report free memory, all memory counts as free; None if it reports neither.

    Args:
        root: the folder of `proc` and `sys`.
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        has_pages = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if has_pages else None
    left = [*_left_to_groups(root), *([] if free is None else [free])]
    return min(left, default=None)


def resident_peak() -> int:
    """Returns the process's peak resident memory in bytes, since the kernel was last asked to forget it.

    Example:
        >>> resident_peak() > 1_000_000
        True
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return largest if sys.platform == "darwin" else largest * 1024


def _left_to_groups(root: Path) -> Iterator[int]:
    """Yields the bytes left to each control group of this process; a group's limit also applies to its subgroups."""
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            files = _VERSION_1 if controllers else _VERSION_2
            mount = root / files.mount
            # In a container, the path may be the host's; then only the mount itself exists.
            innermost = mount / path.strip("/") if ".." not in path else mount
            for group in (innermost, *(parent for parent in innermost.parents if parent.is_relative_to(mount))):
                with contextlib.suppress(OSError, ValueError):  # no such group, or "max" for no limit
                    limit = int((group / files.limit).read_text())
                    usage = int((group / files.usage).read_text())
                    yield max(limit - usage + _cached(group / "memory.stat", files.cached), 0)


def _cached(file: Path, key: str) -> int:
    pairs = (line.split() for line in file.read_text().splitlines())
    return next((int(value) for name, value in pairs if name == key), 0)


def check_memory(subject: str, needed: int, remedy: str = "take a machine with more") -> None:
    """Raises `DataError` if `needed` bytes are not free; the message begins with `subject`, which ends in a verb."""
    free = available_bytes()
    if free is not None and needed > free:
        raise DataError(
            f"{subject} {needed / 2**30:.1f} GiB, but only {free / 2**30:.1f} GiB of memory are available; {remedy}."
        )


def check_images_fit(
    place: str | os.PathLike, count: int, shape: tuple[int, ...], remedy: str = "take a machine with more"
) -> None:
    """Raises `DataError` if `count` images of a shape `(H, W, K)`, one byte per value, exceed the free memory."""
    size = "x".join(map(str, shape[:2]))
    check_memory(f"{place}: {count} images of {size} pixels need", math.prod((count, *shape)), remedy)
