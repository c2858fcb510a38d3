"""The command `fedjax-bal run`, whose alias is `sweep`: trains, and shows tables and pages of the results."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from fedjax_bal.caches import keep_compiled_programs
from fedjax_bal.cli import arguments as args
from fedjax_bal.cli.console import Output, fail, interruptible, messages, progress_console
from fedjax_bal.cli.distributed import ProcessPlace, joined_processes, process_place
from fedjax_bal.cli.results import fail_for_failures, show_comparison, show_sweep
from fedjax_bal.cli.start import INTERRUPTED

_comparison_option = functools.partial(typer.Option, rich_help_panel="Only for one comparison")
_sweep_option = functools.partial(typer.Option, rich_help_panel="Only for sweeps")


class Settings(NamedTuple):
    """The options that comparisons and sweeps share.

    Attributes:
        out: the folder; None for runs/NAME, or the next free one.
        data_dir: the folder with the data sets' files.
        devices: the number of devices, or "auto" for all; None for the number that the run began with.
        dry_run: print the plan instead of training.
        plain: print lines instead of a live display.
        quiet: print only the result and errors.
        verbose: also print the plan, placement, compile times and memory.
    """

    out: Path | None
    data_dir: Path | None
    devices: str | int | None
    dry_run: bool
    plain: bool
    quiet: bool
    verbose: bool


def run(
    arguments: args.Changes = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write to. Default: runs/NAME, or the next free one of runs/NAME-2, ..."),
    ] = None,
    data_dir: args.DataDir = None,
    devices: args.Devices = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar="", help="Print the plan and exit.")] = False,
    plain: args.Plain = False,
    quiet: args.Quiet = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", metavar="", help="Also print the plan, placement, compile times and memory."),
    ] = False,
    plugin: args.Plugins = None,
    fresh: Annotated[
        bool, _comparison_option("--fresh", metavar="", help="Delete the results in the folder and start over.")
    ] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="tensorboard|wandb|mlflow|trackio", help="Also log metrics to this tracker; may be repeated."
        ),
    ] = None,
    distributed: Annotated[
        bool,
        _comparison_option("--distributed", metavar="", help="Train in several processes; start each with its number."),
    ] = False,
    coordinator: Annotated[
        str | None,
        _comparison_option(metavar="HOST:PORT", help="Address of process 0. Default: $FEDJAX_BAL_COORDINATOR."),
    ] = None,
    process_id: Annotated[
        int | None,
        _comparison_option(metavar="I", help="Number of this process, from 0. Default: $FEDJAX_BAL_PROCESS_ID."),
    ] = None,
    processes: Annotated[
        int | None, _comparison_option(metavar="N", help="Number of processes. Default: $FEDJAX_BAL_PROCESSES.")
    ] = None,
    together: Annotated[
        int | None, _sweep_option(min=1, help="Maximum number of runs per program. Default: as many as fit in memory.")
    ] = None,
    part: Annotated[
        str | None, _sweep_option(metavar="I/N", help="Train only every N-th point, from the I-th on; for job arrays.")
    ] = None,
    engine: Annotated[
        Literal["local", "ray"] | None, _sweep_option(help="Train in this process (default), or on a Ray cluster.")
    ] = None,
    address: Annotated[
        str | None,
        _sweep_option(
            metavar="HOST:PORT|auto", help="Ray cluster; auto: this machine's. Default: $RAY_ADDRESS, or start one."
        ),
    ] = None,
) -> None:
    """Run a comparison, or a sweep over several values of a key, such as lr=0.01,0.1.

    Run the same command again to resume, or with more rounds, seeds, methods or values to extend the results.
    """
    with messages():
        from fedjax_bal.config import config_of, read_command
        from fedjax_bal.lab import plan_sweep
        from fedjax_bal.plugins import TRACKERS, load_plugins

        if quiet and verbose:
            raise ValueError("--quiet: received together with --verbose; give one of them")
        settings = Settings(out, data_dir, args.parse_devices(devices), dry_run, plain, quiet, verbose)
        load_plugins([TRACKERS] if track else [])
        command = read_command(*args.split_arguments(arguments))
        several_processes = {"coordinator": coordinator, "process_id": process_id, "processes": processes}
        if command.is_sweep:
            reason = "is for one comparison, but this is a sweep"
            args.refuse_options(reason, fresh=fresh, distributed=distributed, **several_processes)
            if engine != "ray":
                args.refuse_options("is for --engine ray", address=address)
            elif isinstance(settings.devices, str):
                raise ValueError("--devices: received all, but with --engine ray each part has its own: give a number")
            plan = plan_sweep(command)
            start_sweep(plan, settings, together, args.parse_part(part), engine or "local", address, track or ())
        else:
            reason = "is for a sweep, but no key has several values (such as lr=0.01,0.1)"
            args.refuse_options(reason, together=together, part=part, engine=engine, address=address)
            if dry_run:
                args.refuse_options("isn't needed for --dry-run", distributed=distributed)
            place = process_place(distributed, **several_processes, environment=os.environ)
            start_comparison(config_of(command), settings, place, fresh=fresh, track=track or ())


def start_comparison(
    config: Any, settings: Settings, place: ProcessPlace | None, *, fresh: bool, track: Sequence[str] = ()
) -> None:
    """Starts or resumes a comparison, and shows its results; `fresh` starts over, regardless of the folder's content.

    Raises:
        typer.Exit: the user stopped the command, or a run diverged.
    """
    from fedjax_bal import lab

    devices = settings.devices
    with contextlib.ExitStack() as session:
        session.enter_context(joined_processes(place, config, devices))
        say = Output().say
        folder, config = lab.claim_run_folder(session, config, settings.out, say, lock=not settings.dry_run)
        initial = None if fresh else folder.read_devices()
        if place is None:
            args.split_cpu_for([config], devices or initial)
        else:
            devices = "auto"
        inputs = lab.SharedInputs(settings.data_dir, devices, initial, plan=settings.dry_run)
        if settings.dry_run:
            plan = lab.Sweep(config.name, (), (lab.Point("", {}, config),), "")
            action = "be written to" if not folder.exists() else "start over in" if fresh else "resume in"
            _describe(plan, {"": None if fresh else folder}, inputs, 1, f"  would {action} {folder.path}")
            return

        trackers = lab.open_trackers(track if folder.first else (), folder.path)
        console = progress_console(quiet=settings.quiet or not folder.first)
        display = lab.Progress(console, plain=settings.plain)
        keep_compiled_programs(display.note)
        with (
            stoppable(folder) as asked,
            contextlib.closing(lab.Trackers(trackers, config.name, display.note)) as tracking,
        ):
            summary = lab.run_comparison(
                config,
                folder,
                inputs,
                display,
                asked,
                callbacks=[tracking],
                verbose=settings.verbose,
                fresh=fresh,
            )
        if folder.first:
            show_comparison(folder.path, summary, console)
        fail_for_failures(
            f"{run['method']}, seed {run['seed']}: {run['failure']}" for run in summary["runs"] if run["failure"]
        )


@contextlib.contextmanager
def stoppable(folder: Any) -> Iterator[Callable[[], bool]]:
    """Lets the user stop training by Ctrl-C: yields a function that returns whether it was pressed.

    Raises:
        typer.Exit: the user stopped it; everything is saved in the folder.
    """
    from fedjax_bal.lab import Stopped

    try:
        with interruptible() as asked:
            yield asked
    except Stopped:
        if folder.first:
            Output().say(f"\nStopped; everything is saved in {folder.path}. Run the command again to resume.")
        raise typer.Exit(INTERRUPTED) from None


def _describe(plan: Any, folders: Any, inputs: Any, together: int | None, place: str) -> None:
    """Prints what a comparison or sweep has left to do, and where it would write its results."""
    from fedjax_bal.lab import dry_run

    keep_compiled_programs()
    for line in (*dry_run(plan, folders, inputs, together), place):
        Output().say(line)


def start_sweep(
    plan: Any,
    settings: Settings,
    together: int | None,
    part: tuple[int, int] | None,
    engine: str,
    address: str | None,
    track: Sequence[str] = (),
) -> None:
    """Starts or resumes a sweep, or one part of it, and shows its results.

    Args:
        plan: the sweep.
        settings: the options shared with comparisons.
        together: maximum number of runs per batch; None for as many as fit into memory.
        part: number of the part, from 1, and number of parts; None for the whole sweep.
        engine: "local" for this process, or "ray" for a cluster.
        address: the cluster's address.
        track: names of trackers.

    Raises:
        typer.Exit: the user stopped the command, or some runs have no result.
    """
    from fedjax_bal import lab

    on_ray = engine == "ray" and not settings.dry_run
    with contextlib.ExitStack() as session:
        folder, sweep = lab.claim_sweep_folder(
            session, plan, part, settings.out, Output().say, lock=not settings.dry_run
        )
        initial = folder.read_devices()
        args.split_cpu_for([point.config for point in sweep.points], settings.devices or initial)
        inputs = lab.SharedInputs(settings.data_dir, settings.devices, initial, plan=settings.dry_run)
        if settings.dry_run:
            rest = sweep.part(part)
            folders = {point.label: folder.point(point.label) for point in rest.points}
            action = "resume in" if folder.exists() else "be written to"
            _describe(rest, folders, inputs, together, f"  would {action} {folder.path}")
            return

        console = progress_console(quiet=settings.quiet)
        display = lab.Progress(console, plain=settings.plain)
        trackers = lab.open_trackers(track, folder.path)
        if on_ray:
            trackers = {}  # the parts have their own
        tracking = session.enter_context(
            contextlib.closing(lab.Trackers(trackers, sweep.name, display.note, sweep=True))
        )
        failed_parts: list[str] = []
        with stoppable(folder) as asked:
            if on_ray:
                folder.begin(sweep.text, sweep.configs)
                session.close()  # the parts lock their points
                failed_parts = _train_on_ray(plan, folder, settings, together, address, track, asked)
                folder, sweep = lab.claim_sweep_folder(session, plan, part, folder.path, Output().say)
            keep_compiled_programs(console.say)
            rows = lab.run_sweep(
                sweep,
                folder,
                inputs,
                display,
                asked,
                callbacks=[tracking],
                most=together,
                verbose=settings.verbose,
                only_table=on_ray,
            )
    show_sweep(folder)
    fail_for_failures(
        f"{row['point']}, {row['method']}, seed {row['seed']}: {row['status']}: {row['failure']}"
        for row in rows
        if row["failure"]
    )
    if failed_parts:
        fail("some parts failed; the same command resumes them:\n  " + "\n  ".join(failed_parts), 1)


def _train_on_ray(
    plan: Any,
    folder: Any,
    settings: Settings,
    together: int | None,
    address: str | None,
    track: Sequence[str],
    should_stop: Callable[[], bool],
) -> list[str]:
    """Trains the parts of a sweep on a cluster; returns why some have failed."""
    from fedjax_bal.cli.ray import train_on_ray
    from fedjax_bal.plugins import loaded_plugins

    devices: Any = settings.devices
    options = [text for plugin in loaded_plugins() for text in ("--plugin", plugin)]
    options += [text for name in track for text in ("--track", name)]
    options += ["--data-dir", str(settings.data_dir.absolute())] if settings.data_dir else []
    options += ["--together", str(together)] if together else []
    return train_on_ray(
        options,
        folder.path.absolute() / folder.marker,
        len(plan.points),
        address=address,
        devices=devices or folder.read_devices() or args.most_devices([point.config for point in plan.points]),
        note=Output().say,
        should_stop=should_stop,
    )
