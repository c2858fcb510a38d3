"""Measurements as a table that fits into 80 columns."""

import math
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

_HEADINGS = ("", "updates/s", "spread", "samples/s", "GFLOP/s", "peak", "waste", "compile", "memory")
_LONGEST_NAME = 16
_UNITS = ("B", "kB", "MB", "GB", "TB")


def table(records: Sequence[dict[str, Any]]) -> Table:
    """Arranges records, as `measure.measure` returns them, in a table."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for index, heading in enumerate(_HEADINGS):
        grid.add_column(heading, justify="right" if index else "left", no_wrap=bool(index), overflow="fold")
    for record in records:
        grid.add_row(*map(escape, cells(record)))
    return grid


def cells(record: dict[str, Any]) -> list[str]:
    """Formats the cells of a record.

    Example:
        >>> cells({"workload": "W1", "client_updates_per_s": 20.123, "spread": [19.9, 20.4], "samples_per_s": 1006.2,
        ...        "flops_per_s": 8.5e10, "matmul_peak_share": 0.734, "padding_waste": 0.0, "compile_s": 2.31,
        ...        "peak_memory_bytes": 512_000_000})
        ['W1', '20.1', '2%', '1006', '85.0', '73%', '0%', '2.3 s', '512 MB']
    """
    name, (lowest, highest) = record["workload"], record["spread"]
    return [
        name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…",
        figure(record["client_updates_per_s"]),
        f"{(highest - lowest) / record['client_updates_per_s']:.0%}",
        figure(record["samples_per_s"]),
        figure(record["flops_per_s"] / 1e9),
        f"{record['matmul_peak_share']:.0%}",
        f"{record['padding_waste']:.0%}",
        f"{record['compile_s']:.1f} s",
        size(record["peak_memory_bytes"]),
    ]


def figure(value: float) -> str:
    """Formats a number with three digits, or with all digits before the point.

    Example:
        >>> figure(0.01234), figure(5.678), figure(1234.5), figure(0.0)
        ('0.0123', '5.68', '1234', '0')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def size(count: float) -> str:
    """Formats bytes with a unit.

    Example:
        >>> size(512), size(1_530_000), size(2.5e9)
        ('512 B', '1.53 MB', '2.50 GB')
    """
    power = min(int(math.log10(max(count, 1)) // 3), len(_UNITS) - 1)
    return f"{figure(count / 1000**power) if power else f'{count:.0f}'} {_UNITS[power]}"
