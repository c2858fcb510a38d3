"""The command `fedjax-bal sweep`: a grid of runs, its table, and its page."""

import contextlib
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from fedjax_bal.commands.caches import keep_compiled_programs
from fedjax_bal.commands.console import INTERRUPTED, Output, fail, interruptible, say
from fedjax_bal.commands.pages import build_page


def sweep_and_conclude(
    plan: Any,
    path: Path,
    data_dir: Path | None,
    devices: str | int | None,
    together: int | None,
    *,
    dry_run: bool,
    plain: bool,
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

    Raises:
        typer.Exit: it was stopped, or some runs have no result.
    """
    from fedjax_bal.sweep.folder import SweepFolder

    folder, console = SweepFolder(path), Output()
    with contextlib.nullcontext() if dry_run else folder.claimed(), interruptible() as asked:
        keep_compiled_programs(console.print)
        from fedjax_bal.sweep.command import sweep_and_tell

        place = None if data_dir is None else str(data_dir)
        options: Any = {"data_dir": place, "devices": devices, "should_stop": asked, "most": together}
        table, stopped = sweep_and_tell(plan, folder, console, **options, plain=plain, dry_run=dry_run)
    if stopped:
        say(console, f"\nStopped; all is saved in {path}. The same command again goes on from there.")
        raise typer.Exit(INTERRUPTED)
    if not dry_run:
        _conclude_sweep(path, table, console)


def _conclude_sweep(path: Path, table: list[dict[str, Any]], console: Console) -> None:
    say(console, f"table: {path / 'results.csv'}")
    say(console, f"page: {build_page(path)}")
    lost = [row for row in table if row["failure"]]
    if lost:
        told = [
            f"{row['point']}, {row['method']}, seed {row['seed']}: {row['status']}: {row['failure']}" for row in lost
        ]
        fail("some runs have no result, the rest is done:\n  " + "\n  ".join(told[:20]), 1)
