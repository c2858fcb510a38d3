"""The command `fedjax-bal bench`: measures one case after another, then prints an 80-column table and JSON."""

import dataclasses
import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedjax_bal.bench.measure import Case, matmul_peak, measure
from fedjax_bal.bench.published import TENSORFLOAT32, published_figure
from fedjax_bal.bench.workloads import USUAL, WORKLOADS, Workload, simulation_of, workload_federation
from fedjax_bal.config import load_config
from fedjax_bal.engine.host import Simulation
from fedjax_bal.errors import DivergenceError
from fedjax_bal.files import check_replaceable, write_atomically
from fedjax_bal.lab import SharedInputs, device_name, set_up, versions
from fedjax_bal.models import automatic, convolves
from fedjax_bal.status import size
from fedjax_bal.target import target_platform
from fedjax_bal.validate import finite_number, one_of, whole_number

_EXECUTION, _CONVOLUTION = "execution.", "model.convolution="
_HEADINGS = ("", "updates/s", "spread", "samples/s", "GFLOP/s", "peak", "waste", "compile", "memory")
_LONGEST_NAME = 16


class BenchOptions(NamedTuple):
    """The options of `fedjax-bal bench`.

    Attributes:
        config: a configuration file; None to measure workloads.
        overrides: `key=value` changes.
        workloads: names of workloads; `USUAL` if empty. Can't be combined with a configuration.
        seconds: time to measure each case.
        clients_per_round: cohort size; None for the case's own.
        synthetic: use random pixels even if there is a data folder.
        data_dir: the folder with the data sets' files.
        devices: number of devices that share the work, or "auto" for all; None for the configuration's.
    """

    config: str | None = None
    overrides: Sequence[str] = ()
    workloads: Sequence[str] = ()
    seconds: float = 5.0
    clients_per_round: int | None = None
    synthetic: bool = False
    data_dir: str | None = None
    devices: str | int | None = None


def cases(wanted: BenchOptions) -> list[Case]:
    """Lists the cases that the options select: workloads, or each method of a configuration.

    Workloads create their data only when they are measured.

    Raises:
        ValueError: an option is invalid, or options conflict.

    Example:
        >>> [case.name for case in cases(BenchOptions(workloads=["W3", "W1"]))]
        ['W3', 'W1']
    """
    finite_number("--seconds", wanted.seconds)
    cohort = wanted.clients_per_round
    if cohort is not None:
        whole_number("--clients-per-round", cohort)
    for name in wanted.workloads:
        one_of("--workload", name, WORKLOADS)
    if wanted.synthetic and wanted.data_dir is not None:
        raise ValueError(f"--synthetic: received together with --data-dir {wanted.data_dir}; leave one of them out")

    if wanted.config is not None:
        for option, given in (("--workload", bool(wanted.workloads)), ("--synthetic", wanted.synthetic)):
            if given:
                raise ValueError(
                    f"{option}: received together with the configuration {wanted.config}, which says what to train on; "
                    "leave one of them out"
                )
        changes = () if cohort is None else (f"selection.clients_per_round={cohort}",)
        inputs = SharedInputs(wanted.data_dir, wanted.devices)
        comparison = set_up(load_config(wanted.config, (*wanted.overrides, *changes)), inputs)
        return [
            Case(
                method.name,
                lambda made=simulation: made,
                method.execution.options.precision,
                _form(method.model.name, method.model.convolution),
            )
            for method, simulation in zip(comparison.methods, comparison.simulations, strict=True)
        ]

    for change in wanted.overrides:
        if not change.startswith((_EXECUTION, _CONVOLUTION)):
            raise ValueError(
                f"command line: received {change!r}, but of a workload only execution.* and model.convolution can be "
                "changed; pass a configuration to change anything else"
            )
    config = load_config(None, [change for change in wanted.overrides if change.startswith(_EXECUTION)])
    execution = dataclasses.replace(config.execution.options, rounds_per_dispatch=1)
    # Not by way of the configuration, which has no forms that are only measured here.
    forms = [change.removeprefix(_CONVOLUTION) for change in wanted.overrides if change.startswith(_CONVOLUTION)]
    convolution = forms[-1] if forms else "auto"
    if wanted.devices is not None:
        execution = dataclasses.replace(execution, devices=wanted.devices)

    def make(workload: Workload) -> Simulation:
        federation = workload_federation(workload, wanted.data_dir)
        return simulation_of(workload, federation, cohort, execution, convolution)

    chosen = [WORKLOADS[name] for name in dict.fromkeys(wanted.workloads or USUAL)]
    return [
        Case(workload.name, functools.partial(make, workload), execution.precision, _form(workload.model, convolution))
        for workload in chosen
    ]


def _form(model: str, convolution: str) -> str:
    """Returns the form in which a model's convolutions are computed; empty if it has none."""
    if not convolves(model):
        return ""
    return automatic.choice()[0] if convolution == "auto" else convolution


def bench(wanted: BenchOptions, note: Callable[[str], None] = lambda text: None) -> Iterator[dict[str, Any]]:
    """Yields the record of each case, as `measure` returns it, with `device`, `versions` and `data` added.

    Further keys are `platform`; `instruction_set`, the vector instructions of a CPU; and `published`, the figure of
    this workload on this kind of machine, None if there is none. Finished results survive the failure of a later case.
    The compilation cache is off, because compile time is measured, too. Raises `ValueError`, which names the case, for
    invalid options, missing data or divergence.
    """
    chosen = cases(wanted)
    real = wanted.config is not None or wanted.data_dir is not None
    platform = target_platform()
    about = {
        "device": device_name(),
        "platform": platform,
        "instruction_set": automatic.instruction_set() if platform == "cpu" else "",
        "versions": versions(),
        "data": "real images" if real else "random pixels",
    }
    as_published = wanted.config is None and wanted.clients_per_round is None
    best: dict[str, float] = {}

    def peak(precision: str) -> float:
        best[precision] = max(best.get(precision, 0.0), matmul_peak(precision))
        return best[precision]

    kept = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        for case in chosen:
            try:
                record = measure(case, peak, wanted.seconds, note)
            except DivergenceError as error:
                raise ValueError(f"{case.name}: diverged in {error}") from error
            published = published_figure(case.name, case.precision) if as_published else None
            yield record | about | {"published": published}
    finally:
        jax.config.update("jax_enable_compilation_cache", kept)


def bench_command(wanted: BenchOptions, console: Console, file: str | None) -> None:
    """Measures the cases and shows the results, even after an error or an interrupt.

    JSON, a list of records, goes to the file, or to standard output for "-".
    """
    if file is not None and file != "-":  # checked before measuring, which takes minutes
        if Path(file).is_dir() or not os.access(Path(file).parent, os.W_OK):
            raise ValueError(f"--json: received {file}, where no file can be written; choose one in an existing folder")
        check_replaceable(Path(file))
    records: list[dict[str, Any]] = []
    log = Console(stderr=True)
    try:
        for record in bench(wanted, lambda text: log.print(Text(text))):
            records.append(record)
    finally:
        if records:
            console.print(table(records))
            console.print(Text(caption(records)))
            text = json.dumps(records, indent=1) + "\n"
            if file == "-":
                sys.stdout.write(text)
            elif file is not None:
                write_atomically(Path(file), text.encode())


def caption(records: Sequence[dict[str, Any]]) -> str:
    """Lists the properties that all records share, how each was executed, and what has been published of them."""
    first = records[0]
    peak = first["matmul_peak_flops_per_s"] / 1e9
    instructions = first["instruction_set"] and f" with {first['instruction_set']}"
    ways: dict[str, list[str]] = {}
    for record in records:
        form = record["convolution"] and f", {record['convolution']} convolutions"
        ways.setdefault(f"strategy {record['strategy']}{form}", []).append(record["workload"])
    lines = [
        f"{first['device']}{instructions}, {first['devices']} XLA device{'s' if first['devices'] > 1 else ''}, "
        f"jax {first['versions']['jax']}, fedjax_bal {first['versions']['fedjax_bal']}",
        "; ".join(f"{way}: {', '.join(names)}" for way, names in ways.items()),
        f"{first['data']}; medians over dispatches, spread is highest minus lowest",
        f"memory {first['memory_kind']}; peak {peak:.0f} GFLOP/s, of large {first['precision']} matrix products",
    ]
    known = [record for record in records if record["published"]]
    if known:
        figures = [f"{record['workload']} {record['published']['client_updates_per_s']:,}" for record in known]
        lines.append(f"published: {', '.join(figures)} updates/s on {known[0]['published']['machine']}")
    if first["platform"] == "gpu" and first["precision"] == "float32":
        lines.append(TENSORFLOAT32)
    return "\n".join(lines)


def table(records: Sequence[dict[str, Any]]) -> Table:
    """Arranges records of `measure` in a table."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for index, heading in enumerate(_HEADINGS):
        grid.add_column(heading, justify="right" if index else "left", no_wrap=bool(index), overflow="fold")
    for record in records:
        grid.add_row(*map(Text, cells(record)))
    return grid


def cells(record: dict[str, Any]) -> list[str]:
    """Formats the cells of a record.

    Example:
        >>> cells({"workload": "W1", "client_updates_per_s": 20.123, "spread": [19.9, 20.4], "samples_per_s": 1006.2,
        ...        "flops_per_s": 8.5e10, "matmul_peak_share": 0.734, "padding_waste": 0.0, "compile_s": 2.31,
        ...        "peak_memory_bytes": 512_000_000})
        ['W1', '20.1', '2%', '1006', '85.0', '73%', '0%', '2.3 s', '512 MB']
    """
    name = record["workload"]
    lowest, highest = record["spread"]
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
