"""The command line: `fedjax-bal run`, `sweep`, `bench`, `report`, `export`, `list`, `guide`, ..."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fedjax_bal._version import __version__
from fedjax_bal.cli import arguments as args
from fedjax_bal.cli.console import Output, messages, printing
from fedjax_bal.cli.data import describe, list_datasets, prepare
from fedjax_bal.cli.listing import explain, guide, list_names, schema
from fedjax_bal.cli.results import show_results, write_page
from fedjax_bal.cli.running import run
from fedjax_bal.cli.searching import search

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
        bool,
        typer.Option("--version", metavar="", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Federated-learning simulation for class imbalance and label skew."""


app.command("run", cls=args.CommandWithChanges)(run)


@app.command()
def demo(quiet: args.Quiet = False) -> None:
    """Run a small version of the quickstart: one seed, ten rounds, about 20 seconds."""
    run(["quickstart", "name=demo", "rounds=10", "seeds=1"], quiet=quiet)


app.command("sweep", cls=args.CommandWithChanges, help="The same command as run.")(run)
app.command("search", cls=args.CommandWithChanges)(search)


@app.command(cls=args.CommandWithChanges)
def bench(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY=VALUE ...]",
            help="A configuration to measure instead of the workloads; then changes, such as execution.strategy=vmap.",
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(help="One or more of W1 to W7 and W4b, such as W1,W3. Default: all but W6 and W7."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Seconds to measure each case, excluding compilation.")] = 5.0,
    clients_per_round: Annotated[int | None, typer.Option(help="Number of clients per round.")] = None,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", metavar="", help="Train on random pixels (the default without --data-dir).")
    ] = False,
    data_dir: args.DataDir = None,
    devices: args.Devices = None,
    json: Annotated[
        str | None,
        typer.Option(metavar="FILE|-", help="Also write JSON, to a file or to standard output (-)."),
    ] = None,
    plugin: args.Plugins = None,
) -> None:
    """Measure speed: client updates per second, share of the peak FLOP rate, padding waste, memory."""
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
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the results so far are still shown
        bench_command(wanted, Output(stderr=json == "-"), json)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs or sweeps.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write only a comparison of the folders, to this file.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write the figures to this folder, as PDF and PNG.")
    ] = None,
    width: Annotated[
        float | None, typer.Option(min=1.5, max=20.0, help="Width of these figures in inches. Default: 3.25.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Write only these figures, such as accuracy,classes.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC,...",
            help="Also write table.tex, with these metrics (fedjax-bal list metrics), such as 'accuracy,class mean'.",
        ),
    ] = None,
    bold: Annotated[
        bool,
        typer.Option("--bold", metavar="", help="In the table, bold the best mean; underline means that may equal it."),
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help="In the table, add each metric's difference from this method."),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LABEL,...", help="Labels of methods in the table and the figures; may contain $formulas$."
        ),
    ] = None,
    plugin: args.Plugins = None,
) -> None:
    """Rewrite the pages of runs and sweeps; for several runs, also write a page that compares them."""
    with messages():
        from fedjax_bal.lab import FolderError, RunFolder, SweepFolder

        console = Output()
        labels = args.parse_names(names)
        args.refuse_repeated(folders)
        if table is None:
            args.refuse_options("is for --table", bold=bold, against=against)
        if figures is None:
            args.refuse_options("is for --figures", only=only, width=width)
        if table is None and figures is None:
            args.refuse_options("is for --table and --figures", names=names)
        if table is not None:
            from fedjax_bal.report import write_table

            file = write_table(folders, table.split(","), bold=bold, names=labels, against=against)
            console.say(f"table: {file}")
        if figures is not None:
            from fedjax_bal.report import write_figures

            width = width or 3.25
            files = write_figures(folders, figures, width, labels, only.split(",") if only else (), console.say)
            console.say(f"figures: {figures} ({len(files)} as PDF and PNG, {width:g} inches wide)")
        for folder in folders:
            owner = SweepFolder(folder) if SweepFolder(folder).exists() else RunFolder(folder)
            missing = owner.missing_plugins()
            unknown = owner.unknown_metrics() if missing else ()
            if unknown:
                console.say(
                    f"{folder}: left out {', '.join(sorted(unknown))}; load the plug-in with --plugin "
                    f"({', '.join(missing)})"
                )
        if out is None:
            pages = [write_page(folder) for folder in folders]
            if len(folders) == 1 and table is None and figures is None:
                show_results(folders[0], console, console)
            for page in pages:
                console.say(f"report: {page}")
            if len(folders) == 1:
                return
            if any(SweepFolder(folder).exists() for folder in folders):
                console.say("no comparison: whole sweeps can't be compared; give folders of points, in points/")
                return
        from fedjax_bal.report import write_comparison_page

        try:
            console.say(f"comparison: {write_comparison_page(folders, out or RunFolder(folders[0]).comparison)}")
        except FolderError as error:
            if out is not None:
                raise
            console.say(f"not compared: {error}")


@app.command()
@printing
def export(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, or of a point of a sweep.")],
    method: Annotated[str | None, typer.Option(help="Method to export; needed if there are several.")] = None,
    seed: Annotated[int | None, typer.Option(help="Its seed. Default: the first.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="npz, safetensors or orbax (weights), stablehlo (a program). Default: by extension of --out, or npz.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write, a folder for orbax. Default: in exports/ of the run.")
    ] = None,
    data_dir: args.DataDir = None,
    plugin: args.Plugins = None,
) -> Iterator[str]:
    """Export a trained model for use without this package: its weights, or a program that predicts.

    Methods that change the model for evaluation, such as ccvr, need the data set (--data-dir).
    """
    from fedjax_bal.lab import FolderError, LoadedSweep, load_run

    notes: list[str] = []
    run = load_run(folder, data_dir, notes.append)
    if isinstance(run, LoadedSweep):
        raise FolderError(f"{folder}: holds a sweep; give the folder of one of its points, such as {run[0].path}")
    file = run.export(method, seed, kind, out)
    yield from (*notes, f"model: {file}")


app.command("guide")(printing(guide))
app.command("list")(printing(list_names))

config = typer.Typer(no_args_is_help=True, help="Explain the keys of configurations, or print their JSON Schema.")
config.command()(printing(explain))
config.command()(printing(schema))
app.add_typer(config, name="config")

data = typer.Typer(no_args_is_help=True, help="List, prepare and describe data sets.")
data.command("list")(printing(list_datasets))
data.command()(printing(prepare))
data.command()(printing(describe))
app.add_typer(data, name="data")
