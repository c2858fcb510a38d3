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
    """Carries a sweep through, or on, and shows what came of it.

    Args:
        plan: the sweep.
        path: its folder.
        data_dir: the folder with the data sets' files.
        devices: how many devices share the work; None leaves it to the configurations.
        together: how many runs to train together at most; None for as many as fit.
        dry_run: only say what there is to do.
        plain: lines in place of the live display.
        engine: what trains, "local" for this process or "ray" for a cluster.
        address: of the cluster.

    Raises:
        typer.Exit: it was stopped, or some runs have no result.
    """
    from fedjax_bal.runs import SweepFolder

    folder, console = SweepFolder(path), Output()
    place = None if data_dir is None else str(data_dir.absolute())
    if engine == "ray":
        devices = devices_of_a_group(plan, devices)
    with (
        contextlib.nullcontext() if dry_run else folder.claimed(),
        _engine(engine, address, devices, place) as chosen,
        interruptible() as asked,
    ):
        keep_compiled_programs(console.print)
        from fedjax_bal.cli.sweep import run_sweep

        options: Any = {
            "data_dir": place,
            "devices": devices,
            "should_stop": asked,
            "most": together,
            "backend": chosen,
        }
        table, stopped = run_sweep(plan, folder, console, **options, plain=plain, dry_run=dry_run)
    if stopped:
        say(console, f"\nStopped; all is saved in {path}. The same command again goes on from there.")
        raise typer.Exit(INTERRUPTED)
    if not dry_run:
        _conclude_sweep(folder, table, console)


def devices_of_a_group(plan: Any, devices: str | int | None) -> int:
    """How many devices of one machine a worker of a cluster asks for.

    Args:
        plan: the sweep.
        devices: what `--devices` says; None leaves it to the configurations.

    Returns:
        The number, the largest that a configuration asks for; 1 where none does.

    Raises:
        ValueError: `--devices all`, which says nothing about machines that are still to be found.
    """
    if isinstance(devices, str):
        raise ValueError("--devices: received all, but with --engine ray every group asks for its own: give a number")
    configs = [(point.config, index) for point in plan.points for index in range(len(point.config.methods))]
    asked = [config.for_method(index).execution.options.devices for config, index in configs]
    return devices or max((int(number) for number in asked if number != "auto"), default=1)


@contextlib.contextmanager
def _engine(name: str, address: str | None, devices: Any, data_dir: str | None) -> Iterator[Any]:
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
        told = [
            f"{row['point']}, {row['method']}, seed {row['seed']}: {row['status']}: {row['failure']}" for row in lost
        ]
        fail("some runs have no result, the rest is done:\n  " + "\n  ".join(told[:20]), 1)
