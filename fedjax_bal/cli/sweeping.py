"""The command `fedjax-bal sweep`: a grid of runs, its table, and its page."""

import contextlib
import functools
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from fedjax_bal.caches import count_compiled_programs, keep_compiled_programs
from fedjax_bal.cli.arguments import most_devices
from fedjax_bal.cli.console import INTERRUPTED, Output, Showing, fail, interruptible, say, stopped_message
from fedjax_bal.cli.pages import build_page
from fedjax_bal.cli.tables import ACCURACY, print_table, with_short_names

_MOST_ROWS, _MOST_FAILURES = 40, 20


def sweep_command(
    plan: Any,
    folder: Any,
    data_dir: Path | None,
    devices: str | int | None,
    together: int | None,
    *,
    dry_run: bool,
    show: Showing,
    engine: str = "local",
    address: str | None = None,
) -> None:
    """Starts or resumes a sweep, or a part of it, in its `SweepFolder`, and shows its results.

    `engine` is the backend, "local" for this process or "ray" for a cluster, and `address` the cluster's; `together` is
    the most runs of a batch, None for as many as fit into memory.

    Raises:
        typer.Exit: the user stopped it, or some runs have no result.
    """
    compiled = count_compiled_programs()
    place = data_dir and str(data_dir.absolute())
    if engine == "ray":
        devices = _devices_per_batch(plan, devices or folder.read_devices())
    with (
        contextlib.nullcontext() if dry_run else folder.claimed(),
        _backend(engine, address, devices, place) as backend,
        interruptible() as asked,
        Showing().progress() if dry_run else show.progress() as console,
    ):
        note = functools.partial(say, console)
        keep_compiled_programs(note)
        from fedjax_bal.experiments import run_sweep

        options: Any = {"data_dir": place, "devices": devices, "should_stop": asked, "most": together}
        options |= {"plain": show.plain, "detail": show.detail(note)}
        rows, stopped = run_sweep(plan, folder, console, dry_run=dry_run, backend=backend, **options)
        if show.verbose:
            say(console, compiled())
    if stopped:
        say(Output(), stopped_message(folder.path))
        raise typer.Exit(INTERRUPTED)
    if not dry_run:
        _conclude_sweep(folder, rows, Output())


def show_results(path: Path, console: Console) -> None:
    """Prints the comparison at each condition if there are a few, what a paper reports, and the result in words."""
    from fedjax_bal.report import (
        answer,
        beside_of_sweep,
        comparable,
        paper_caption,
        paper_verdict,
        read_results,
        side_by_side,
        table,
    )

    results = read_results(path)
    beside, found = beside_of_sweep(results), comparable(results)
    shown = found if len(found) * len(results.methods) <= _MOST_ROWS else found[: len(found) == 1]
    for name, groups in shown:
        group = with_short_names(groups[0], console)
        rows = group if len(groups) == 1 else list(chain(*groups))
        caption = ACCURACY * (name == shown[-1][0])
        print_table(table(rows, results.target, short=True), console, caption, name)
    if beside.entries:
        print_table(side_by_side(beside), console, paper_caption(beside))
    console.print(Text(answer(results)))
    if beside.entries:
        console.print(Text(paper_verdict(beside)))


def _devices_per_batch(plan: Any, devices: str | int | None) -> int:
    """The number of devices of one machine for each worker of a cluster."""
    if isinstance(devices, str):
        raise ValueError("--devices: received all, but with --engine ray every group asks for its own: give a number")
    return devices or most_devices([point.config for point in plan.points])


@contextlib.contextmanager
def _backend(name: str, address: str | None, devices: Any, data_dir: str | None) -> Iterator[Any]:
    if name == "local":
        yield None
        return
    import jax

    from fedjax_bal.experiments import connected

    with connected(address) as ray:
        jax.config.update("jax_platforms", "cpu")  # this machine's GPUs, if any, are the workers'
        from fedjax_bal.experiments import RayBackend

        yield RayBackend(ray, devices, data_dir)


def _conclude_sweep(folder: Any, rows: list[dict[str, Any]], console: Console) -> None:
    if folder.part is None:
        page = build_page(folder.path)
        show_results(folder.path, console)
        say(console, f"table: {folder.results}")
        say(console, f"page: {page}")
    else:
        number, parts = folder.part
        say(
            console,
            f"part {number} of {parts} is done, in {folder.path}; once all are, the same command without --part writes "
            "the table and the page",
        )
    lines = [
        f"{row['point']}, {row['method']}, seed {row['seed']}: {row['status']}: {row['failure']}"
        for row in rows
        if row["failure"]
    ]
    if lines:
        more = [f"and {len(lines) - _MOST_FAILURES} more, see the table"] * (len(lines) > _MOST_FAILURES)
        fail("some runs have no result, the rest is done:\n  " + "\n  ".join([*lines[:_MOST_FAILURES], *more]), 1)
