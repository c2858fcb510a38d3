"""The command line: `fedjax-bal run`, `sweep`, `bench`, `report`, `verify`, `export`, `list`, `guide`, ..."""

import os
from pathlib import Path
from typing import Annotated

import typer

from fedjax_bal._version import __version__
from fedjax_bal.cli.arguments import (
    Coordinator,
    DataDir,
    Devices,
    Distributed,
    DryRun,
    Plain,
    Plugins,
    Processes,
    ProcessId,
    Quiet,
    Verbose,
    check_engine,
    devices_of,
    most_devices,
    part_of,
    split_arguments,
    split_cpu_for,
)
from fedjax_bal.cli.console import INTERRUPTED, Output, Showing, fail, messages, printing
from fedjax_bal.cli.data import describe, list_datasets, prepare
from fedjax_bal.cli.distributed import SWEEP_ALONE, joined_processes, place_of, shared_facts
from fedjax_bal.cli.folders import export, verify, write_pages
from fedjax_bal.cli.listing import explain, guide, list_names, schema
from fedjax_bal.cli.running import describe_run, next_folder, run_command, sweep_command

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


@app.command()
def run(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY=VALUE ...]",
            help="A YAML file or a built-in configuration (none: the quickstart; see fedjax-bal list configs), then "
            "changes such as rounds=30, lr=0.1, methods=\\[fedavg,rebafl] or seeds=3.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; by default runs/NAME, or the next free one of runs/NAME-2, ...")
    ] = None,
    data_dir: DataDir = None,
    devices: Devices = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over in a folder of the same configuration.")] = False,
    dry_run: DryRun = False,
    plain: Plain = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="tensorboard|wandb", help="Show the metrics there too; give it once for each."),
    ] = None,
    distributed: Distributed = False,
    coordinator: Coordinator = None,
    process_id: ProcessId = None,
    processes: Processes = None,
    plugin: Plugins = None,
) -> None:
    """Run a comparison; the same command again, or with more rounds or seeds, goes on where it stopped."""
    with messages():
        from fedjax_bal.config import load_over_base
        from fedjax_bal.contrib.trackers import open_trackers
        from fedjax_bal.engine.processes import processes as processes_of_run
        from fedjax_bal.lab import FolderInUseError, RunFolder

        show = Showing(plain, quiet, verbose)
        paths, overrides = split_arguments(arguments or [])
        config, left_out = load_over_base(paths[0] if paths else None, overrides)
        wanted = devices_of(devices)
        place = place_of(distributed, coordinator, process_id, processes, os.environ)
        if place is not None:
            if dry_run:
                raise ValueError("--dry-run: received it beside --distributed; leave that out: one process can say it")
            # Before the processes join, which one of them is the first is not known, nor what the run folder says.
            split_cpu_for([config], wanted or most_devices([config]))
        in_use: dict[Path, str] = {}
        conflict = lambda path: in_use.get(path, "") or RunFolder(path).conflict(config)
        with joined_processes(place, lambda: shared_facts(config), wanted):
            first = place is None or processes_of_run().first
            if first:
                show.left_out(left_out)
            while True:
                folder = out or next_folder(config.name, "configuration", conflict, shown=first)
                if place is None:
                    split_cpu_for([config], wanted or (None if fresh else RunFolder(folder).read_devices()))
                if dry_run:
                    describe_run(config, folder, data_dir, wanted, fresh=fresh)
                    return
                trackers = open_trackers(track or () if first else (), folder)
                shared = wanted if place is None else "auto"
                try:
                    run_command(config, folder, data_dir, shared, trackers, fresh=fresh, show=show)
                    return
                except FolderInUseError as error:  # another process was faster, with another configuration of this name
                    if out or place or not error.another:
                        raise
                    in_use[folder] = "what another process has just begun there"


@app.command()
def demo(quiet: Quiet = False, verbose: Verbose = False) -> None:
    """Run the quickstart in small: one seed, ten rounds, about 20 seconds."""
    run(["quickstart", "name=demo", "rounds=10", "seeds=1"], quiet=quiet, verbose=verbose)


@app.command()
def sweep(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE [KEY=VALUE ...]",
            help="A sweep, that is a configuration with a list of axes, a file or a built-in one, then changes for all "
            "its runs.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The sweep's folder; by default runs/NAME, or the next free one of runs/NAME-2, ..."),
    ] = None,
    data_dir: DataDir = None,
    devices: Devices = None,
    together: Annotated[
        int | None, typer.Option(min=1, help="Runs in one program at most; by default as many as fit into memory.")
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="What trains: this process, or a cluster through Ray.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|auto",
            help="The Ray cluster's head, or auto for that of this machine; by default one is started here.",
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Train every N-th point from the I-th on only, as a task of a job array."),
    ] = None,
    dry_run: DryRun = False,
    distributed: Annotated[bool, typer.Option("--distributed", hidden=True)] = False,
    plain: Plain = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    plugin: Plugins = None,
) -> None:
    """Run a grid of configurations; the same again, or with more values, rounds or seeds, goes on where it stopped."""
    with messages():
        from fedjax_bal.lab import SweepFolder, load_sweep

        if distributed:
            raise ValueError(SWEEP_ALONE)
        paths, overrides = split_arguments(arguments or [])
        if not paths:
            raise ValueError("command line: no sweep; give a file, or a built-in one such as sweeps/clients")
        check_engine(engine, address)
        show = Showing(plain, quiet, verbose)
        plan = load_sweep(paths[0], overrides)
        show.left_out(plan.left_out)
        conflict = lambda path: SweepFolder(path).conflict(plan.text, plan.configs)
        folder, where = out or next_folder(plan.name, "sweep", conflict), {"engine": engine, "address": address}
        wanted = devices_of(devices)
        split_cpu_for([point.config for point in plan.points], wanted or SweepFolder(folder).read_devices())
        files = SweepFolder(folder, part_of(part))
        sweep_command(plan, files, data_dir, wanted, together, dry_run=dry_run, show=show, **where)


@app.command()
def bench(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY=VALUE ...]",
            help="A YAML file (none: the workloads), then changes such as execution.strategy=vmap.",
        ),
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="W1 to W5 or W4b, or several as W1,W3; by default all.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure each case, compilation apart.")] = 5.0,
    clients_per_round: Annotated[int | None, typer.Option(help="Another cohort size.")] = None,
    synthetic: Annotated[bool, typer.Option("--synthetic", help="Random pixels; so without --data-dir.")] = False,
    data_dir: DataDir = None,
    devices: Annotated[
        str | None, typer.Option(metavar="N|all", help="Devices to share the work; on a CPU one for each core.")
    ] = None,
    json: Annotated[str | None, typer.Option(metavar="FILE|-", help="Write JSON too; - is standard output.")] = None,
    plugin: Plugins = None,
) -> None:
    """Measure speed: client updates a second, share of the machine's peak, padding waste, memory."""
    with messages():
        from fedjax_bal.bench import BenchOptions, bench_command
        from fedjax_bal.jax_setup import settle_process, split_cpu

        count = devices_of(devices)
        settle_process()
        split_cpu(count or "auto")
        paths, overrides = split_arguments(arguments or [])
        place = data_dir and str(data_dir)
        config = paths[0] if paths else None
        names = [name for text in workload or () for name in text.split(",")]
        wanted = BenchOptions(config, overrides, names, seconds, clients_per_round, synthetic, place, count)
        try:
            bench_command(wanted, Output(stderr=json == "-"), json)
        except KeyboardInterrupt:
            fail("stopped; what was measured before is shown above", INTERRUPTED)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs or sweeps.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="Only compare, and put the page here; by default into the first folder."
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the figures here, too, as PDF and PNG for a paper.")
    ] = None,
    width: Annotated[float, typer.Option(min=1.5, max=20.0, help="Width of these figures in inches.")] = 3.25,
    plugin: Plugins = None,
) -> None:
    """Write the pages of folders again; of several runs also one page that compares them."""
    with messages():
        write_pages(folders, out, figures, width)


app.command("verify")(printing(verify))
app.command("export")(printing(export))
app.command("guide")(printing(guide))
app.command("list")(printing(list_names))


config = typer.Typer(no_args_is_help=True, help="The keys of configurations: explain them, or write their JSON Schema.")
for _name, _command in (("explain", explain), ("schema", schema)):
    config.command(_name)(printing(_command))
app.add_typer(config, name="config")

data = typer.Typer(no_args_is_help=True, help="Data sets: list, prepare and describe them.")
for _name, _command in (("list", list_datasets), ("prepare", prepare), ("describe", describe)):
    data.command(_name)(printing(_command))
app.add_typer(data, name="data")
