"""The command `fedjax-bal bench`: measures case by case, then shows a table and JSON."""

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
    """Yields the record of each case, as `measure` returns it, with `device`, `versions` and `data` added.

    Results of finished cases are not lost when a later one fails. The compilation cache is off, because compiling is
    measured too. Raises `ValueError`, which names the case, for wrong options, missing data or divergence.
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
            yield _measure(case, peak, wanted, note)
    finally:
        jax.config.update("jax_enable_compilation_cache", kept)


def _measure(
    case: Case, peak: Callable[[str], float], wanted: BenchOptions, note: Callable[[str], None]
) -> dict[str, Any]:
    try:
        return measure(case, peak, wanted.seconds, note) | _environment(wanted)
    except DivergenceError as error:
        raise ValueError(f"{case.name}: diverged in {error}") from error


def bench_command(wanted: BenchOptions, console: Console, file: str | None) -> None:
    """Measures, then shows the results, also after an error or an interrupt.

    JSON, a list of records, goes to the file, or to standard output for "-".
    """
    _check_writable(file)
    records: list[dict[str, Any]] = []
    log = Console(stderr=True)
    try:
        for record in bench(wanted, lambda text: log.print(text, markup=False, highlight=False)):
            records.append(record)
    finally:
        if records:
            _report(records, console, file)


def _report(records: Sequence[dict[str, Any]], console: Console, file: str | None) -> None:
    console.print(table(records))
    console.print(caption(records), markup=False, highlight=False)
    text = json.dumps(records, indent=1) + "\n"
    if file == "-":
        sys.stdout.write(text)
    elif file is not None:
        write_atomically(Path(file), text.encode())


def caption(records: Sequence[dict[str, Any]]) -> str:
    """A caption of the properties that all records share."""
    first = records[0]
    strategies = ", ".join(dict.fromkeys(record["strategy"] for record in records))
    peak = first["matmul_peak_flops_per_s"] / 1e9
    return (
        f"{first['device']}, {first['devices']} XLA device{'s' if first['devices'] > 1 else ''}, "
        f"jax {first['versions']['jax']}, fedjax_bal {first['versions']['fedjax_bal']}\n"
        f"strategy {strategies}; {first['data']}; medians over dispatches, spread highest less lowest\n"
        f"memory {first['memory_kind']}; peak {peak:.0f} GFLOP/s, of large {first['precision']} matrix products"
    )


def _check_writable(file: str | None) -> None:
    # Before measuring, which takes minutes.
    if file is None or file == "-":
        return
    if Path(file).is_dir() or not os.access(Path(file).parent, os.W_OK):
        raise ValueError(f"--json: received {file}, where no file can be written; choose one in a folder that is there")


def _environment(wanted: BenchOptions) -> dict[str, Any]:
    real = wanted.config is not None or wanted.data_dir is not None
    return {
        "device": device_name(),
        "versions": versions(),
        "data": "real images" if real else "random pixels",
    }
