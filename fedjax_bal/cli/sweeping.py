"""The command `fedjax-bal sweep`: a grid of runs, its table, and its page."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from fedjax_bal.caches import keep_compiled_programs
from fedjax_bal.cli.console import INTERRUPTED, Output, fail, interruptible, say
from fedjax_bal.cli.pages import build_page


def sweep_command(
    plan: Any,
    path: Path,
    data_dir: Path | None,
    devices: str | int | None,
    together: int | None,
    *,
    dry_run: bool,
    plain: bool,
    engine: str = "local",
    address: str | None = None,
) -> None:
    """Starts or resumes a sweep, and shows its results.

    Args:
        plan: the sweep.
        path: its folder.
        data_dir: the folder with the data sets' files.
        devices: number of devices that share the work; None leaves it to the configurations.
        together: the most runs of a batch; None for as many as fit into memory.
        dry_run: only print the outline.
        plain: lines in place of the live display.
        engine: the backend, "local" for this process or "ray" for a cluster.
        address: the cluster's address.

    Raises:
        typer.Exit: the user stopped it, or some runs have no result.
    """
    from fedjax_bal.runs import SweepFolder

    folder, console = SweepFolder(path), Output()
    place = None if data_dir is None else str(data_dir.absolute())
    if engine == "ray":
        devices = devices_per_batch(plan, devices)
    with (
        contextlib.nullcontext() if dry_run else folder.claimed(),
        _backend(engine, address, devices, place) as backend,
        interruptible() as asked,
    ):
        keep_compiled_programs(console.print)
        from fedjax_bal.cli.sweep import run_sweep

        options: Any = {
            "data_dir": place,
            "devices": devices,
            "should_stop": asked,
            "most": together,
            "backend": backend,
        }
        table, stopped = run_sweep(plan, folder, console, **options, plain=plain, dry_run=dry_run)
    if stopped:
        say(console, f"\nStopped; all is saved in {path}. The same command again goes on from there.")
        raise typer.Exit(INTERRUPTED)
    if not dry_run:
        _conclude_sweep(folder, table, console)


def devices_per_batch(plan: Any, devices: str | int | None) -> int:
    """The number of devices of one machine for each worker of a cluster: `--devices`, or the most of any configuration.

    1 if no configuration asks for a number.

    Raises:
        ValueError: `--devices all`, which is undefined for machines that are still to be found.
    """
    if isinstance(devices, str):
        raise ValueError("--devices: received all, but with --engine ray every group asks for its own: give a number")
    configs = [(point.config, index) for point in plan.points for index in range(len(point.config.methods))]
    asked = [config.for_method(index).execution.options.devices for config, index in configs]
    return devices or max((int(number) for number in asked if number != "auto"), default=1)


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


def _conclude_sweep(folder: Any, table: list[dict[str, Any]], console: Console) -> None:
    say(console, f"table: {folder.results}")
    say(console, f"page: {build_page(folder.path)}")
    lost = [row for row in table if row["failure"]]
    if lost:
        lines = [
            f"{row['point']}, {row['method']}, seed {row['seed']}: {row['status']}: {row['failure']}" for row in lost
        ]
        fail("some runs have no result, the rest is done:\n  " + "\n  ".join(lines[:20]), 1)
