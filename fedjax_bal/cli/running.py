"""The command `fedjax-bal run`, whose alias is `sweep`: trains, and shows tables and pages of the results."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from rich.text import Text

from fedjax_bal.caches import keep_compiled_programs
from fedjax_bal.cli import arguments as args
from fedjax_bal.cli.console import Output, fail, interruptible, messages, print_table, progress_console
from fedjax_bal.cli.distributed import ProcessPlace, joined_processes, process_place, shared_facts
from fedjax_bal.cli.start import INTERRUPTED

ACCURACY = "test accuracy in %, ± standard deviation over seeds"
_MOST_ROWS = 40
_MOST_FAILURES = 20
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and exit.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of a live display.")] = False,
    quiet: args.Quiet = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print the plan, placement, compile times and memory.")
    ] = False,
    plugin: args.Plugins = None,
    fresh: Annotated[bool, _comparison_option("--fresh", help="Start over in a folder of this configuration.")] = False,
    track: Annotated[
        list[str] | None,
        _comparison_option(metavar="tensorboard|wandb", help="Also log metrics there; may be repeated."),
    ] = None,
    distributed: Annotated[
        bool, _comparison_option("--distributed", help="Train together with other processes; start each with its id.")
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
        int | None, _sweep_option(min=1, help="Most runs in one program. Default: as many as fit in memory.")
    ] = None,
    part: Annotated[
        str | None, _sweep_option(metavar="I/N", help="Train every N-th point from the I-th on, as a job array's task.")
    ] = None,
    engine: Annotated[
        Literal["local", "ray"] | None, _sweep_option(help="Train in this process (default), or on a Ray cluster.")
    ] = None,
    address: Annotated[
        str | None,
        _sweep_option(
            metavar="HOST:PORT|auto", help="Address of the Ray cluster; auto: this machine's. Default: start one."
        ),
    ] = None,
) -> None:
    """Run a comparison, or a sweep over several values of a key, such as lr=0.01,0.1.

    Run the same command again to resume, or with more rounds, seeds, methods or values to extend the results.
    """
    with messages():
        from fedjax_bal.config import is_sweep, load_config
        from fedjax_bal.lab import load_sweep
        from fedjax_bal.plugins import TRACKERS, load_plugins

        if quiet and verbose:
            raise ValueError("--quiet: received together with --verbose; give one of them")
        settings = Settings(out, data_dir, args.parse_devices(devices), dry_run, plain, quiet, verbose)
        load_plugins([TRACKERS] if track else [])
        file, changes = args.split_arguments(arguments)
        several_processes = {"coordinator": coordinator, "process_id": process_id, "processes": processes}
        if is_sweep(file, changes):
            reason = "is for one comparison, but this is a sweep"
            args.refuse_options(reason, fresh=fresh, track=track, distributed=distributed, **several_processes)
            if engine != "ray":
                args.refuse_options("is for --engine ray", address=address)
            run_sweep(load_sweep(file, changes), settings, together, args.parse_part(part), engine or "local", address)
        else:
            reason = "is for a sweep, but no key has several values (such as lr=0.01,0.1)"
            args.refuse_options(reason, together=together, part=part, engine=engine, address=address)
            if dry_run:
                args.refuse_options("isn't needed for --dry-run", distributed=distributed)
            place = process_place(distributed, **several_processes, environment=os.environ)
            run_comparison(load_config(file, changes), settings, place, fresh=fresh, track=track or ())


def run_comparison(
    config: Any, settings: Settings, place: ProcessPlace | None, *, fresh: bool, track: Sequence[str] = ()
) -> None:
    """Starts or resumes a comparison, and shows its results; `fresh` starts over, regardless of the folder's content.

    Raises:
        typer.Exit: the user stopped the command, or a run diverged.
    """
    from fedjax_bal import lab
    from fedjax_bal.engine.processes import processes

    devices = settings.devices
    if place is not None:
        # Which process writes, and what its folder holds, is known only after the processes have joined.
        args.split_cpu_for([config], devices or args.most_devices([config]))
    with contextlib.ExitStack() as session:
        session.enter_context(joined_processes(place, lambda: shared_facts(config), devices))
        first = place is None or processes().first
        if settings.dry_run:
            folder, config = _choose_folder(config, settings.out, {}, first=first)
            with lab.writing(folder.path):  # reports a folder that couldn't be written
                folder.check_owner(config)
        else:
            folder, config, trackers = _claim_folder(session, config, settings.out, place, track if first else ())
        execution = folder.read_execution() if first and not fresh else None
        if place is None:
            args.split_cpu_for([config], devices or (execution and execution.devices))
        else:
            devices = "auto"

        if settings.dry_run:
            inputs = lab.SharedInputs(settings.data_dir, devices, execution and execution.devices, plan=True)
            plan = lab.Sweep(config.name, (), (lab.Point("", {}, config),), "")
            action = "be written to" if not folder.exists() else "start over in" if fresh else "resume in"
            _describe(plan, {"": None if fresh else folder}, inputs, 1, f"  would {action} {folder.path}")
            return
        console = progress_console(quiet=settings.quiet or not first)
        display = lab.Progress(console, plain=settings.plain)
        keep_compiled_programs(display.note)
        try:
            with (
                contextlib.closing(lab.Trackers(trackers, config, display.note)) as tracking,
                interruptible() as asked,  # only here: after training there is nothing to wait for
            ):
                summary = lab.run_comparison(
                    config,
                    folder,
                    display,
                    asked,
                    callbacks=[tracking],
                    verbose=settings.verbose,
                    data_dir=settings.data_dir,
                    devices=devices,
                    execution=execution,
                    fresh=fresh,
                )
        except lab.Stopped:
            if first:
                _say_stopped(folder.path)
            raise typer.Exit(INTERRUPTED) from None
        if first:
            show_comparison(folder.path, console)
        fail_for_failures(
            f"{run['method']}, seed {run['seed']}: {run['failure']}" for run in summary["runs"] if run["failure"]
        )


def _choose_folder(config: Any, out: Path | None, taken: Mapping[Path, str], *, first: bool) -> tuple[Any, Any]:
    """Returns `out` or the next free folder, and the configuration with the form of convolution that it has there.

    `taken` has folders that can't be used, and why.
    """
    from fedjax_bal.config import with_convolution
    from fedjax_bal.engine.processes import processes
    from fedjax_bal.lab import RunFolder, chosen_form

    form = lambda path: chosen_form([config], [RunFolder(path)])
    conflict = lambda path: taken.get(path) or RunFolder(path).conflict(with_convolution(config, form(path)))
    path = out or next_folder(config.name, conflict, shown=first)
    agreed = processes().from_first(lambda: form(path))
    return RunFolder(path, first=first), with_convolution(config, agreed)


def _claim_folder(
    session: contextlib.ExitStack, config: Any, out: Path | None, place: ProcessPlace | None, track: Iterable[str]
) -> tuple[Any, Any, Any]:
    """Locks the chosen folder for the session; returns it, the configuration, and the trackers."""
    from fedjax_bal.engine.processes import processes
    from fedjax_bal.lab import FolderInUseError, open_trackers

    first = place is None or processes().first
    taken: dict[Path, str] = {}
    while True:
        folder, settled = _choose_folder(config, out, taken, first=first)
        trackers = open_trackers(track, folder.path)  # before the lock: a missing extra must leave no folder
        try:
            session.enter_context(folder.claimed(settled))
            return folder, settled, trackers
        except FolderInUseError as error:
            if out or place or not error.another:
                raise
            taken[folder.path] = "the configuration that another process has just started there"


def _describe(plan: Any, folders: Any, inputs: Any, together: int | None, place: str) -> None:
    """Prints what a comparison or sweep has left to do, and where it would write its results."""
    from fedjax_bal.lab import dry_run

    keep_compiled_programs()
    for line in (*dry_run(plan, folders, inputs, together), place):
        Output().say(line)


def next_folder(name: str, conflict: Callable[[Path], str], *, shown: bool = True) -> Path:
    """Chooses runs/NAME, or the next free folder after it, which it announces if `shown`.

    `conflict` describes why this configuration or sweep can't resume in a folder.
    """
    from fedjax_bal.lab import choose_folder

    named = Path("runs") / name
    folder, differences = choose_folder(named, conflict)
    if differences and shown:
        Output().say(f"{named} holds different results; writing to {folder}. Differences:\n  {differences}")
    return folder


def run_sweep(
    plan: Any,
    settings: Settings,
    together: int | None,
    part: tuple[int, int] | None,
    engine: str,
    address: str | None,
) -> None:
    """Starts or resumes a sweep, or one part of it, and shows its results.

    Args:
        plan: the sweep.
        settings: the options shared with comparisons.
        together: maximum number of runs per batch; None for as many as fit into memory.
        part: number of the part, from 1, and number of parts; None for the whole sweep.
        engine: "local" for this process, or "ray" for a cluster.
        address: the cluster's address.

    Raises:
        typer.Exit: the user stopped the command, or some runs have no result.
    """
    from fedjax_bal import lab

    form = lambda path: lab.chosen_form(plan.configs.values(), lab.SweepFolder(path).points())
    conflict = lambda path: lab.SweepFolder(path).conflict(plan.text, plan.with_convolution(form(path)).configs)
    path = settings.out or next_folder(plan.name, conflict)
    folder = lab.SweepFolder(path, part)
    plan = plan.with_convolution(agreed := form(path))
    configs = [point.config for point in plan.points]
    initial = folder.read_devices()
    devices = settings.devices
    args.split_cpu_for(configs, devices or initial)
    if settings.dry_run:
        folder.check_owner(plan.text, plan.configs)
        rest = plan.part(part)
        folders = {point.label: folder.point(point.label) for point in rest.points}
        inputs = lab.SharedInputs(settings.data_dir, devices, initial, plan=True)
        _describe(
            rest, folders, inputs, together, f"  would {'resume in' if folder.exists() else 'be written to'} {path}"
        )
        return

    console = progress_console(quiet=settings.quiet)
    options: Any = {"data_dir": settings.data_dir and str(settings.data_dir.absolute()), "most": together}
    failed_parts: list[str] = []
    stopped = False
    with interruptible() as asked:
        if engine == "ray":
            if isinstance(devices, str):
                raise ValueError("--devices: received all, but with --engine ray each part has its own: give a number")
            devices = devices or initial or args.most_devices(configs)
            with folder.claimed():
                folder.check_owner(plan.text, plan.configs)
                folder.begin(plan.text, plan.configs)
            where: Any = {"form": agreed, "address": address, "devices": devices}
            try:
                failed_parts = lab.train_on_ray(plan, folder, note=console.say, should_stop=asked, **where, **options)
            except lab.Stopped:
                _say_stopped(path)
                raise typer.Exit(INTERRUPTED) from None
        with folder.claimed():
            display = lab.Progress(console, plain=settings.plain)
            keep_compiled_programs(display.note)
            rows, stopped = lab.run_sweep(
                plan,
                folder,
                display,
                should_stop=asked,
                devices=devices,
                initial_devices=initial,
                verbose=settings.verbose,
                only_table=engine == "ray",
                **options,
            )
    if stopped:
        _say_stopped(folder.path)
        raise typer.Exit(INTERRUPTED)
    console = Output()
    if folder.part is None:
        page = build_page(folder.path)
        show_sweep(folder.path, console)
        console.say(f"table: {folder.results}\npage: {page}")
    else:
        number, parts = folder.part
        console.say(
            f"part {number} of {parts} is done, in {folder.path}; after the last part, run the command without --part "
            "to write the table and the page"
        )
    fail_for_failures(
        f"{row['point']}, {row['method']}, seed {row['seed']}: {row['status']}: {row['failure']}"
        for row in rows
        if row["failure"]
    )
    if failed_parts:
        fail("some parts failed; the same command resumes them:\n  " + "\n  ".join(failed_parts), 1)


def fail_for_failures(failures: Iterable[str]) -> None:
    """Ends the command with exit code 1 if runs have failed; names the first of them."""
    lines = list(failures)
    if lines:
        more = [f"and {len(lines) - _MOST_FAILURES} more"] if len(lines) > _MOST_FAILURES else []
        fail("\n  ".join(["these runs failed; the rest finished:", *lines[:_MOST_FAILURES], *more]), 1)


def _say_stopped(folder: Path) -> None:
    Output().say(f"\nStopped; everything is saved in {folder}. Run the command again to resume.")


def build_page(path: Path) -> Path:
    """Writes the page of a run or sweep; returns its path."""
    from fedjax_bal.lab import SweepFolder
    from fedjax_bal.report import build, build_sweep

    return build_sweep(path) if SweepFolder(path).exists() else build(path)


def show_comparison(path: Path, console: Output) -> None:
    """Writes a comparison's page, and prints its tables (on `console`) and its conclusion."""
    from fedjax_bal.lab import Cost
    from fedjax_bal.report import KL_IN_WORDS, by_client, compare_run, group_table, read_run, shows_divergence

    page = build_page(path)
    run = read_run(path)
    compared = compare_run(run)
    print_table(group_table(compared.groups, run.summary["target_accuracy"], short=True), console, ACCURACY)
    if shows_divergence(compared.every):
        console.print(Text(KL_IN_WORDS))
    if any(of_run.named for of_run in run.clients):
        for table in by_client(run.clients):
            print_table(table.table, console, table.note, table.title)
    closing = Output()
    for text in filter(None, [compared.warning, *compared.answers]):
        closing.print(Text(text))
    console.say(Cost.saved(run.summary["cost"]).in_words(run.summary["wall_s"]))
    closing.say(f"report: {page}")


def show_sweep(path: Path, console: Output) -> None:
    """Prints the comparison at each condition (if they are few), the paper's results, and a verdict."""
    from fedjax_bal.report import (
        answer,
        comparable,
        paper_comparison_of_sweep,
        paper_tables,
        paper_verdict,
        read_results,
        table,
    )

    results = read_results(path)
    paper = paper_comparison_of_sweep(results)
    conditions = comparable(results)
    if len(conditions) > 1 and len(conditions) * len(results.methods) > _MOST_ROWS:
        conditions = []
    for name, groups in conditions:
        caption = ACCURACY if name == conditions[-1][0] else ""
        print_table(table(list(chain(*groups)), results.target, short=True), console, caption, name)
    for published in paper_tables(paper):
        print_table(published.table, console, published.note, published.title)
    console.print(Text(answer(results)))
    if paper.entries:
        console.print(Text(paper_verdict(paper)))
