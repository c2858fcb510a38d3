"""What `fedjax-bal bench` does: case after case, then a table and JSON."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from fedjax_bal.bench import machine
from fedjax_bal.bench.cases import BenchOptions, cases
from fedjax_bal.bench.measure import Case, measure
from fedjax_bal.bench.table import table
from fedjax_bal.errors import DivergenceError
from fedjax_bal.experiments import device_name, versions
from fedjax_bal.files import write_atomically


def bench(wanted: BenchOptions, note: Callable[[str], None] = lambda text: None) -> Iterator[dict[str, Any]]:
    """Measures all that is wanted, case by case, so that what is done is not lost when a later one fails.

    Compiled programs are neither read from a cache nor kept in one: compiling is measured too.

    Args:
        wanted: what the user asked for.
        note: told what is going on.

    Yields:
        A record for each case, as `measure` returns it, with `device`, `versions` and `data` added.

    Raises:
        ValueError: options that don't fit, data that is not there, or a case that diverges; the message says which.
    """
    chosen = cases(wanted)
    best: dict[str, float] = {}

    def peak(precision: str) -> float:
        best[precision] = max(best.get(precision, 0.0), machine.matmul_peak(precision))
        return best[precision]

    kept = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        for case in chosen:
            yield _measured(case, peak, wanted, note)
    finally:
        jax.config.update("jax_enable_compilation_cache", kept)


def _measured(
    case: Case, peak: Callable[[str], float], wanted: BenchOptions, note: Callable[[str], None]
) -> dict[str, Any]:
    try:
        return measure(case, peak, wanted.seconds, note) | _surroundings(wanted)
    except DivergenceError as error:
        raise ValueError(f"{case.name}: diverged in {error}") from error


def bench_command(wanted: BenchOptions, console: Console, file: str | None) -> None:
    """Measures, then shows what there is, also when something ends the work early.

    Args:
        wanted: what the user asked for.
        console: for the table.
        file: where JSON goes, a list of records; "-" for standard output, None for nowhere.

    Raises:
        ValueError: as `bench`, or a file that can't be written.
    """
    _check_place(file)
    records: list[dict[str, Any]] = []
    log = Console(stderr=True)
    try:
        for record in bench(wanted, lambda text: log.print(text, markup=False, highlight=False)):
            records.append(record)
    finally:
        if records:
            _show(records, console, file)


def _show(records: Sequence[dict[str, Any]], console: Console, file: str | None) -> None:
    console.print(table(records))
    console.print(caption(records), markup=False, highlight=False)
    text = json.dumps(records, indent=1) + "\n"
    if file == "-":
        sys.stdout.write(text)
    elif file is not None:
        write_atomically(Path(file), text.encode())


def caption(records: Sequence[dict[str, Any]]) -> str:
    """What all records have in common, in words."""
    first = records[0]
    strategies = ", ".join(dict.fromkeys(record["strategy"] for record in records))
    peak = first["matmul_peak_flops_per_s"] / 1e9
    return (
        f"{first['device']}, {first['devices']} XLA device{'s' if first['devices'] > 1 else ''}, "
        f"jax {first['versions']['jax']}, fedjax_bal {first['versions']['fedjax_bal']}\n"
        f"strategy {strategies}; {first['data']}; medians over dispatches, spread highest less lowest\n"
        f"memory {first['memory_kind']}; peak {peak:.0f} GFLOP/s, of large {first['precision']} matrix products"
    )


def _check_place(file: str | None) -> None:
    # At once, not when all has been measured.
    if file is None or file == "-":
        return
    if Path(file).is_dir() or not os.access(Path(file).parent, os.W_OK):
        raise ValueError(f"--json: received {file}, where no file can be written; choose one in a folder that is there")


def _surroundings(wanted: BenchOptions) -> dict[str, Any]:
    real = wanted.config is not None or wanted.data_dir is not None
    return {
        "device": device_name(),
        "versions": versions(),
        "data": "real images" if real else "random pixels",
    }
