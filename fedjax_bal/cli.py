"""The command line: `fedjax-bal run`, `sweep`, `bench`, `report`, `list` and `data`."""

import contextlib
import functools
import io
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedjax_bal import data_commands
from fedjax_bal.data_describe import describe

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated-learning simulation for class imbalance and label skew.",
)
_BAD_INPUT = 2
_INTERRUPTED = 130
_WIDE = 110
_NARROW = 78


def main() -> None:
    """The console script's entry point."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a sign that a terminal lacks must not cost a result
    try:
        app()
    except KeyboardInterrupt:
        print("fedjax-bal: stopped", file=sys.stderr)
        sys.exit(_INTERRUPTED)


class _Output(Console):
    """A console whose reader may go away: the work goes on in silence."""

    def on_broken_pipe(self) -> None:
        """Sends what is still to come nowhere."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@app.command()
def run(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY=VALUE ...]",
            help="A YAML file (none: the built-in quickstart), then changes such as training.rounds=30 or seeds=[0].",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; by default runs/NAME.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data set's own files are.")] = None,
    devices: Annotated[
        str | None, typer.Option(metavar="N|all", help="Devices to share the work; on a CPU by default one.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over in a folder of the same configuration.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Lines in place of the live display.")] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="tensorboard|wandb", help="Show the metrics there too; give it once for each."),
    ] = None,
) -> None:
    """Run a comparison; the same command again goes on where it stopped."""
    with _messages():
        from fedjax_bal.config import load_config
        from fedjax_bal.trackers import open_trackers

        paths, overrides = _split(arguments or [])
        config = load_config(paths[0] if paths else None, overrides)
        folder = out or Path("runs") / config.name
        wanted = _devices(devices)
        trackers = open_trackers(track or (), folder)
        _split_cpu([config], wanted)
        _compare(config, folder, data_dir, wanted, trackers, fresh=fresh, plain=plain)


@app.command()
def sweep(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE [KEY=VALUE ...]",
            help="A sweep: a configuration with a list of axes, then changes for all its runs.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The sweep's folder; by default runs/NAME.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data sets' own files are.")] = None,
    devices: Annotated[
        str | None, typer.Option(metavar="N|all", help="Devices to share the work; on a CPU by default one.")
    ] = None,
    together: Annotated[
        int | None, typer.Option(min=1, help="Runs in one program at most; by default as many as fit into memory.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what there is to do.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Lines in place of the live display.")] = False,
) -> None:
    """Run a grid of configurations; the same command again goes on where it stopped."""
    with _messages():
        from fedjax_bal.sweep.plan import load_sweep

        paths, overrides = _split(arguments)
        if not paths:
            raise ValueError("command line: no sweep file; give one, for instance configs/sweeps/clients.yaml")
        plan = load_sweep(paths[0], overrides)
        wanted = _devices(devices)
        _split_cpu([point.config for point in plan.points], wanted)
        _sweep(plan, out or Path("runs") / plan.name, data_dir, wanted, together, dry_run=dry_run, plain=plain)


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
    data_dir: Annotated[Path | None, typer.Option(help="Where the data sets' own files are.")] = None,
    devices: Annotated[
        str | None, typer.Option(metavar="N|all", help="Devices to share the work; on a CPU one for each core.")
    ] = None,
    json: Annotated[str | None, typer.Option(metavar="FILE|-", help="Write JSON too; - is standard output.")] = None,
) -> None:
    """Measure speed: client updates a second, share of the machine's peak, padding waste, memory."""
    with _messages():
        from fedjax_bal.bench.cases import Wanted
        from fedjax_bal.bench.command import bench_and_show
        from fedjax_bal.engine.cpu import split_cpu

        count = _devices(devices)
        split_cpu(count or "auto")
        paths, overrides = _split(arguments or [])
        place = None if data_dir is None else str(data_dir)
        config = paths[0] if paths else None
        names = [name for text in workload or () for name in text.split(",")]
        wanted = Wanted(config, overrides, names, seconds, clients_per_round, synthetic, place, count)
        try:
            bench_and_show(wanted, _Output(stderr=json == "-"), json)
        except KeyboardInterrupt:
            _fail("stopped; what was measured before is shown above", _INTERRUPTED)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs or sweeps.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="Only compare, and put the page here; by default into the first folder."
        ),
    ] = None,
) -> None:
    """Write the pages of folders anew; of several runs also one page that compares them."""
    with _messages():
        console = _Output()
        if out is None:
            for folder in folders:
                _say(console, f"report: {_build_page(folder)}")
        if out is not None or (len(folders) > 1 and not any((folder / "sweep.yaml").is_file() for folder in folders)):
            _compare_folders(folders, out, console)


def _compare_folders(folders: list[Path], out: Path | None, console: Console) -> None:
    with _drawing():
        from fedjax_bal.report import ReportError
        from fedjax_bal.report.comparison import build_comparison

        try:
            _say(console, f"comparison: {build_comparison(folders, out or folders[0] / 'comparison.html')}")
        except ReportError as error:
            if out is not None:
                raise
            _say(console, f"not compared: {error}")


@app.command("list")
def list_names(
    what: Annotated[str, typer.Argument(metavar="recipes|selectors|models|partitions|datasets", help="What to list.")],
) -> None:
    """List what a configuration can name."""
    with _messages():
        from fedjax_bal.listing import listing

        table = Table.grid(padding=(0, 3))
        for name, text in listing(what).items():
            first, *others = map(escape, text.splitlines())
            table.add_row(
                f"[bold]{escape(name)}[/bold]", "\n".join([first, *(f"[dim]{line}[/dim]" for line in others)])
            )
        _Output().print(table)


def _compare(
    config: Any,
    path: Path,
    data_dir: Path | None,
    devices: str | int | None,
    trackers: Any,
    *,
    fresh: bool,
    plain: bool,
) -> None:
    from fedjax_bal import progress
    from fedjax_bal.experiment.folder import RunFolder
    from fedjax_bal.trackers import Mirror, tracked_runs

    folder = RunFolder(path)
    with folder.claimed(config), _interruptible() as asked:
        console = _Output()
        display = progress.PlainProgress(console) if plain else progress.choose(console)
        try:
            with contextlib.closing(Mirror(trackers, tracked_runs(config), path, display.note)) as mirror:
                summary = _work(config, folder, display, data_dir, devices, fresh, asked, mirror)
        finally:
            display.stop()
        _conclude(folder.path, summary, console)


def _work(
    config: Any,
    folder: Any,
    display: Any,
    data_dir: Path | None,
    devices: str | int | None,
    fresh: bool,
    asked: Callable[[], bool],
    mirror: Any,
) -> dict[str, Any]:
    _keep_compiled_programs(display.note)
    from fedjax_bal.experiment.runner import Runner, Stopped

    place = None if data_dir is None else str(data_dir)
    try:
        options: dict[str, Any] = {"data_dir": place, "devices": devices, "fresh": fresh}
        return Runner(config, folder, display, **options, should_stop=asked, mirror=mirror).run()
    except Stopped:
        display.stop()
        _say(_Output(), f"\nStopped; all is saved in {folder.path}. The same command again goes on from there.")
        raise typer.Exit(_INTERRUPTED) from None


def _sweep(
    plan: Any,
    path: Path,
    data_dir: Path | None,
    devices: str | int | None,
    together: int | None,
    *,
    dry_run: bool,
    plain: bool,
) -> None:
    from fedjax_bal.sweep.folder import SweepFolder

    folder, console = SweepFolder(path), _Output()
    with contextlib.nullcontext() if dry_run else folder.claimed(), _interruptible() as asked:
        _keep_compiled_programs(console.print)
        from fedjax_bal.sweep.command import sweep_and_tell

        place = None if data_dir is None else str(data_dir)
        options: Any = {"data_dir": place, "devices": devices, "should_stop": asked, "most": together}
        table, stopped = sweep_and_tell(plan, folder, console, **options, plain=plain, dry_run=dry_run)
    if stopped:
        _say(console, f"\nStopped; all is saved in {path}. The same command again goes on from there.")
        raise typer.Exit(_INTERRUPTED)
    if not dry_run:
        _conclude_sweep(path, table, console)


def _conclude_sweep(path: Path, table: list[dict[str, Any]], console: Console) -> None:
    _say(console, f"table: {path / 'results.csv'}")
    _say(console, f"page: {_build_page(path)}")
    lost = [row for row in table if row["failure"]]
    if lost:
        told = [
            f"{row['point']}, {row['method']}, seed {row['seed']}: {row['status']}: {row['failure']}" for row in lost
        ]
        _fail("some runs have no result, the rest is done:\n  " + "\n  ".join(told[:20]), 1)


def _devices(wanted: str | None) -> str | int | None:
    """What `--devices` says: "auto" for all, a number, or None where it isn't given."""
    if wanted is None or wanted == "all":
        return wanted and "auto"
    if not wanted.isdecimal() or int(wanted) < 1:
        raise ValueError(f"--devices: received {wanted!r}, must be an integer of at least 1, or all")
    return int(wanted)


def _split_cpu(configs: Sequence[Any], devices: str | int | None) -> None:
    """Settles how many devices the CPU is, before jax starts."""
    from fedjax_bal.engine.cpu import split_cpu

    pairs = [(config, index) for config in configs for index in range(len(config.methods))]
    asked = [config.for_method(index).execution.devices for config, index in pairs]
    # One, unless asked: the number of devices decides in which order updates are added up, and the same command should
    # add them up alike on machines with different numbers of cores.
    split_cpu(devices or max((number for number in asked if number != "auto"), default=1))


def _conclude(path: Path, summary: dict[str, Any], console: Console) -> None:
    from fedjax_bal.report import KL_IN_WORDS, compare, shows_divergence, table, verdict

    page = _build_report(path)
    longest = 24 if console.width >= _WIDE else 16
    summaries = [row._replace(method=_short(row.method, longest)) for row in compare(summary["runs"])]
    text = table(summaries, summary["target_accuracy"], short=True)
    if console.width < _NARROW:
        _print_lines(text, console)
    else:
        _print_table(text, console)
    if shows_divergence(summaries):
        console.print(KL_IN_WORDS, markup=False, highlight=False)
    console.print(verdict(summaries), markup=False, highlight=False)
    _say(console, f"report: {page}")
    failures = [f"{run['method']}, seed {run['seed']}: {run['failure']}" for run in summary["runs"] if run["failure"]]
    if failures:
        _fail("diverged, the rest is done:\n  " + "\n  ".join(failures), 1)


def _print_table(text: Any, console: Console) -> None:
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    grid.caption, grid.caption_justify = "test accuracy in %, ± standard deviation over seeds", "left"
    fit = _two_lines if console.width < _WIDE else str
    for index, name in enumerate(map(fit, text.headings)):
        grid.add_column(escape(name), justify="right" if index else "left", no_wrap=True)
    for cells in text.rows:
        grid.add_row(*(escape(fit(cell)) for cell in cells))
    console.print(grid)


def _print_lines(text: Any, console: Console) -> None:
    for method, *cells in text.rows:
        _say(console, method)
        for heading, cell in zip(text.headings[1:], cells, strict=True):
            _say(console, f"  {heading}: {cell}")


def _short(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _build_report(path: Path, *, sweep: bool = False) -> Path:
    with _drawing():
        from fedjax_bal.report import build
        from fedjax_bal.report.sweep_page import build_sweep

        return build_sweep(path) if sweep else build(path)


def _build_page(path: Path) -> Path:
    """The page of a run's folder, or of a sweep's."""
    return _build_report(path, sweep=(path / "sweep.yaml").is_file())


@contextlib.contextmanager
def _drawing() -> Iterator[None]:
    # Before matplotlib is imported, which otherwise puts its font cache elsewhere, and complains where it can't.
    folder = _cache_folder("matplotlib")
    with tempfile.TemporaryDirectory() if folder is None else contextlib.nullcontext(folder) as place:
        os.environ.setdefault("MPLCONFIGDIR", str(place))
        yield


def _two_lines(cell: str) -> str:
    """What follows a number goes below it."""
    for mark in ("±", "[", "("):
        cell = cell.replace(f" {mark}", f"\n{mark}")
    return cell.replace(" seeds)", ")").replace("vs ", "vs\n").replace("not reached", "not\nreached")


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    paths = [argument for argument in arguments if "=" not in argument]
    if len(paths) > 1:
        raise ValueError(
            f"command line: received {len(paths)} files ({', '.join(paths)}); give one configuration, "
            "and changes to it as key=value"
        )
    return paths, [argument for argument in arguments if "=" in argument]


@contextlib.contextmanager
def _messages() -> Iterator[None]:
    """Turns what a user can cause into a message and an exit code, without a traceback."""
    try:
        yield
    except ValueError as error:
        _fail(str(error), _BAD_INPUT)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{(error.strerror or str(error)).lower()}; what was saved before is kept", _BAD_INPUT)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        _fail("not enough memory for this configuration: use fewer clients or a smaller model", _BAD_INPUT)
    except KeyboardInterrupt:
        _fail("stopped at once; the same command again goes on from the last checkpoint", _INTERRUPTED)


def _fail(message: str, code: int) -> None:
    typer.echo(f"fedjax-bal: {message}", err=True)
    raise typer.Exit(code)


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks for a stop at the next safe place, the second one stops at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print("\nfinishing these rounds, then saving; Ctrl-C again stops at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def _keep_compiled_programs(note: Callable[[str], None]) -> None:
    """Lets XLA keep compiled programs in the user's cache folder, so that the next run starts at once."""
    import jax

    folder = _cache_folder("xla")
    if folder is None:
        note("compiled programs are not kept: the user's cache folder can't be written")
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def _cache_folder(name: str) -> Path | None:
    """A folder of ours in the user's cache folder; None where there can't be one."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(home) / "fedjax_bal" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def _lines(command: Callable[..., Iterator[str]]) -> Callable[..., None]:
    """A command of another module, which gives its lines, and whose errors become messages."""

    @functools.wraps(command)
    def shown(*args: Any, **kwargs: Any) -> None:
        console = _Output()
        with _messages(), _drawing():
            for line in command(*args, **kwargs):
                _say(console, line)

    return shown


_data = data_commands.commands(_messages, lambda: _Output())
_data.command("describe")(_lines(describe))
app.add_typer(_data, name="data")
