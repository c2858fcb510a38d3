"""The command line: `fedjax-bal run`, `sweep`, `bench`, `report`, `export`, `list`, `guide`, ..."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from fedjax_bal._version import __version__
from fedjax_bal.caches import drawing
from fedjax_bal.cli import arguments as args
from fedjax_bal.cli.console import INTERRUPTED, Output, Showing, fail, messages, printing
from fedjax_bal.cli.data import describe, list_datasets, prepare
from fedjax_bal.cli.distributed import SWEEP_ALONE, joined_processes, process_place, shared_facts
from fedjax_bal.cli.listing import explain, guide, list_names, schema
from fedjax_bal.cli.running import build_page, describe_run, next_folder, run_command, sweep_command

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        Output().print(f"fedjax-bal {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Federated-learning simulation for class imbalance and label skew."""


@app.command(cls=args.CommandWithChanges)
def run(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY=VALUE ...]",
            help="A YAML file or a built-in configuration (see fedjax-bal list configs; default: the quickstart), then "
            "changes such as rounds=30, lr=0.1, methods=\\[fedavg,rebafl] or seeds=3.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; by default runs/NAME, or the next free one of runs/NAME-2, ...")
    ] = None,
    data_dir: args.DataDir = None,
    devices: args.Devices = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over in a folder that holds the same configuration.")
    ] = False,
    dry_run: args.DryRun = False,
    plain: args.Plain = False,
    quiet: args.Quiet = False,
    verbose: args.Verbose = False,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="tensorboard|wandb", help="Also log metrics there; may be given several times."),
    ] = None,
    distributed: args.Distributed = False,
    coordinator: args.Coordinator = None,
    process_id: args.ProcessId = None,
    processes: args.Processes = None,
    plugin: args.Plugins = None,
) -> None:
    """Run a comparison. Run it again, or with more rounds or seeds, to resume or extend it.

    With several values of a key, such as lr=0.01,0.1, it is a sweep.
    """
    with messages():
        from fedjax_bal.config import config_of, read_command, with_convolution
        from fedjax_bal.engine.processes import processes as processes_of_run
        from fedjax_bal.lab import FolderInUseError, RunFolder, chosen_form, open_trackers
        from fedjax_bal.plugins import TRACKERS, load_plugins

        show = Showing(plain, quiet, verbose)
        load_plugins([TRACKERS] if track else [])
        command = read_command(*args.split_arguments(arguments))
        if command.is_sweep:
            if distributed:
                raise ValueError(SWEEP_ALONE)
            args.refuse_options("a configuration without axes, but this is a sweep", fresh=fresh, track=track)
            sweep(arguments, out, data_dir, devices, dry_run=dry_run, plain=plain, quiet=quiet, verbose=verbose)
            return
        config = config_of(command)
        wanted = args.parse_devices(devices)
        place = process_place(distributed, coordinator, process_id, processes, os.environ)
        if place is not None:
            if dry_run:
                raise ValueError(
                    "--dry-run: received together with --distributed; leave that out: one process is enough"
                )
            # Which process is the first, and what its run folder holds, is known only after the processes have joined.
            args.split_cpu_for([config], wanted or args.most_devices([config]))
        in_use: dict[Path, str] = {}
        choose = lambda path: chosen_form([config], [RunFolder(path)])
        settle = lambda path: with_convolution(config, choose(path))
        conflict = lambda path: in_use.get(path, "") or RunFolder(path).conflict(settle(path))
        with joined_processes(place, lambda: shared_facts(config), wanted):
            first = place is None or processes_of_run().first
            while True:
                folder = out or next_folder(config.name, "configuration", conflict, shown=first)
                form = processes_of_run().from_first(lambda path=folder: choose(path))
                settled = with_convolution(config, form)
                execution = RunFolder(folder).read_execution() if first and not fresh else None
                if place is None:
                    args.split_cpu_for([settled], wanted or (execution and execution.devices))
                if dry_run:
                    describe_run(settled, folder, data_dir, wanted, execution, fresh=fresh)
                    return
                trackers = open_trackers(track or () if first else (), folder)
                shared = wanted if place is None else "auto"
                try:
                    run_command(settled, folder, data_dir, shared, trackers, execution, fresh=fresh, show=show)
                    return
                except FolderInUseError as error:  # another process claimed it first
                    if out or place or not error.another:
                        raise
                    in_use[folder] = "what another process has just begun there"


@app.command()
def demo(quiet: args.Quiet = False, verbose: args.Verbose = False) -> None:
    """Run a small version of the quickstart: one seed, ten rounds, about 20 seconds."""
    run(["quickstart", "name=demo", "rounds=10", "seeds=1"], quiet=quiet, verbose=verbose)


@app.command(cls=args.CommandWithChanges)
def sweep(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY=VALUE,VALUE ...] [KEY=VALUE ...]",
            help="A YAML file or a built-in configuration, which may have a list of axes; then further axes, such as "
            "lr=0.01,0.1, and changes for all runs.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the sweep; by default runs/NAME, or the next free one of runs/NAME-2, ..."),
    ] = None,
    data_dir: args.DataDir = None,
    devices: args.Devices = None,
    together: Annotated[
        int | None, typer.Option(min=1, help="Most runs in one program; by default as many as fit into memory.")
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="Where to train: in this process, or on a cluster through Ray.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|auto",
            help="Address of the Ray cluster, or auto for this machine's; by default, start one here.",
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Train only every N-th point from the I-th on, as a task of a job array."),
    ] = None,
    dry_run: args.DryRun = False,
    distributed: Annotated[bool, typer.Option("--distributed", hidden=True)] = False,
    plain: args.Plain = False,
    quiet: args.Quiet = False,
    verbose: args.Verbose = False,
    plugin: args.Plugins = None,
) -> None:
    """Run a grid of configurations. Run it again, or with more values, rounds or seeds, to resume or extend it."""
    with messages():
        from fedjax_bal.lab import SweepFolder, load_sweep, with_chosen_forms

        if distributed:
            raise ValueError(SWEEP_ALONE)
        file, overrides = args.split_arguments(arguments)
        args.check_engine(engine, address)
        show = Showing(plain, quiet, verbose)
        plan = load_sweep(file, overrides)
        chosen = lambda folder: with_chosen_forms(plan, folder).configs
        conflict = lambda path: SweepFolder(path).conflict(plan.text, chosen(SweepFolder(path)))
        folder = out or next_folder(plan.name, "sweep", conflict)
        wanted = args.parse_devices(devices)
        initial = SweepFolder(folder).read_devices()
        args.split_cpu_for([point.config for point in plan.points], wanted or initial)
        files = SweepFolder(folder, args.parse_part(part))
        options: Any = {"engine": engine, "address": address, "initial_devices": initial}
        sweep_command(plan, files, data_dir, wanted, together, dry_run=dry_run, show=show, **options)


@app.command(cls=args.CommandWithChanges)
def bench(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY=VALUE ...]",
            help="A YAML file (default: the workloads), then changes such as execution.strategy=vmap.",
        ),
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="W1 to W5 or W4b, or several as W1,W3; by default all.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Seconds to measure each case, without compilation.")] = 5.0,
    clients_per_round: Annotated[int | None, typer.Option(help="Other cohort size.")] = None,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Use random pixels, the default without --data-dir.")
    ] = False,
    data_dir: args.DataDir = None,
    devices: args.Devices = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Also write JSON to a file, or to standard output (-).")
    ] = None,
    plugin: args.Plugins = None,
) -> None:
    """Measure speed: client updates per second, share of the machine's peak, padding waste, memory."""
    with messages():
        from fedjax_bal.bench import BenchOptions, bench_command
        from fedjax_bal.jax_setup import settle_process, split_cpu

        count = args.parse_devices(devices)
        settle_process()
        split_cpu(count or "auto")
        file, overrides = args.split_arguments(arguments)
        names = [name for text in workload or () for name in text.split(",")]
        place = data_dir and str(data_dir)
        wanted = BenchOptions(file, overrides, names, seconds, clients_per_round, synthetic, place, count)
        try:
            bench_command(wanted, Output(stderr=json == "-"), json)
        except KeyboardInterrupt:
            fail("stopped; the results so far are shown above", INTERRUPTED)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs or sweeps.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="Only write a comparison, to this file; by default to the first folder."
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write the figures here, as PDF and PNG for a paper.")
    ] = None,
    width: Annotated[float, typer.Option(min=1.5, max=20.0, help="Width of these figures in inches.")] = 3.25,
    only: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Write only these figures, such as accuracy,classes.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC,...",
            help="Also write table.tex for a paper, with these metrics of runs, such as final,worst_class (see "
            "fedjax-bal list metrics).",
        ),
    ] = None,
    bold: Annotated[
        bool,
        typer.Option("--bold", help="In this table, bold the best mean and underline those not clearly different."),
    ] = False,
    names: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LABEL",
            help="A method's name in this table and these figures, where $...$ is a formula; several as A=B,C=D.",
        ),
    ] = None,
    plugin: args.Plugins = None,
) -> None:
    """Regenerate reports; for several runs, also a page that compares them."""
    with messages():
        from fedjax_bal.lab import FolderError, RunFolder, SweepFolder

        console = Output()
        labels = args.parse_names(names)
        if table is None and (bold or (labels and figures is None)):
            option = "--bold" if bold else "--names"
            raise ValueError(f"{option}: is for --table; add it, such as --table final,worst_class")
        if only is not None and figures is None:
            raise ValueError("--only: is for --figures; add it, such as --figures DIR")
        if table is not None:
            from fedjax_bal.report import write_table

            console.say(f"table: {write_table(folders, table.split(','), bold=bold, names=labels)}")
        if figures is not None:
            with drawing():
                from fedjax_bal.report import write_figures

                files = write_figures(folders, figures, width, labels, only.split(",") if only else (), console.say)
                console.say(f"figures: {figures} ({len(files)} as PDF and PNG, {width:g} inches wide)")
        for folder in folders:
            owner = SweepFolder(folder) if SweepFolder(folder).exists() else RunFolder(folder)
            missing = owner.missing_plugins()
            unknown = owner.unknown_metrics() if missing else ()
            if unknown:
                console.say(
                    f"{folder}: left out, because their plug-in isn't loaded (--plugin): {', '.join(sorted(unknown))}, "
                    f"of {' or '.join(missing)}"
                )
        if out is None:
            for folder in folders:
                console.say(f"report: {build_page(folder)}")
            if len(folders) == 1:
                return
            if any(SweepFolder(folder).exists() for folder in folders):
                console.say("no comparison: sweeps aren't compared; to compare points, give their folders in points/")
                return
        with drawing():
            from fedjax_bal.report import build_comparison

            try:
                console.say(f"comparison: {build_comparison(folders, out or RunFolder(folders[0]).comparison)}")
            except FolderError as error:
                if out is not None:
                    raise
                console.say(f"not compared: {error}")


@app.command()
@printing
def export(
    folder: Annotated[Path, typer.Argument(help="A run folder, or that of a sweep's point.")],
    method: Annotated[str | None, typer.Option(help="The method; by default the first.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed; by default the first.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="npz, safetensors or orbax for weights, stablehlo for the program; by default --out's ending, or npz.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file, or Orbax's folder; by default in the run folder's exports.")
    ] = None,
    data_dir: args.DataDir = None,
    plugin: args.Plugins = None,
) -> Iterator[str]:
    """Write a trained model for programs without this package: its weights, or a program that predicts.

    The data set is read only for methods that change the model for its evaluation, such as ccvr.
    """
    from fedjax_bal.lab import FolderError, LoadedSweep, load_run

    notes: list[str] = []
    run = load_run(folder, data_dir, notes.append)
    if isinstance(run, LoadedSweep):
        raise FolderError(f"{folder}: is a sweep's folder; give that of one of its points, such as {run[0].path}")
    file = run.export(method, seed, kind, out)
    yield from (*notes, f"model: {file}")


app.command("guide")(printing(guide))
app.command("list")(printing(list_names))

config = typer.Typer(no_args_is_help=True, help="Keys of configurations: explain them, or print their JSON Schema.")
config.command()(printing(explain))
config.command()(printing(schema))
app.add_typer(config, name="config")

data = typer.Typer(no_args_is_help=True, help="Data sets: list, prepare and describe them.")
data.command("list")(printing(list_datasets))
data.command()(printing(prepare))
data.command()(printing(describe))
app.add_typer(data, name="data")
