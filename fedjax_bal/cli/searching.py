"""The command `fedjax-bal search`: searches the best values of keys, and compares them on fresh seeds."""

import contextlib
import importlib.util
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedjax_bal.caches import keep_compiled_programs
from fedjax_bal.cli import arguments as args
from fedjax_bal.cli.console import Output, messages, progress_console
from fedjax_bal.cli.running import Settings, start_comparison, stoppable


def search(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] KEY=LOW..HIGH[:log] [KEY=A,B,...] [KEY=VALUE ...]",
            help="A YAML file or a built-in configuration, by default the quickstart; keys to search, in a range or "
            "among listed values, such as lr=0.001..1:log; and changes, such as rounds=30.",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials of each method.")] = 64,
    metric: Annotated[
        str, typer.Option(help="Metric on validation rows to search by: balanced_accuracy, accuracy, macro_f1 or loss.")
    ] = "balanced_accuracy",
    repeats: Annotated[int, typer.Option(min=1, help="Seeds of each trial, each with its own partition.")] = 1,
    together: Annotated[
        int | None, typer.Option(min=1, help="Trials drawn and trained together. Default: a quarter, at least 8.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to. Default: runs/NAME-search, or the next free one.")
    ] = None,
    data_dir: args.DataDir = None,
    devices: args.Devices = None,
    plain: args.Plain = False,
    quiet: args.Quiet = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", metavar="", help="Also print the programs.")] = False,
    plugin: args.Plugins = None,
) -> None:
    """Search the best values of keys on validation rows, then compare them on seeds that the search didn't use.

    Each method of the configuration is searched by itself. Run the same command again to resume, or with more trials.
    """
    with messages():
        if importlib.util.find_spec("optuna") is None:
            raise ValueError("search: needs Optuna: pip install optuna")
        from fedjax_bal import lab

        if quiet and verbose:
            raise ValueError("--quiet: received together with --verbose; give one of them")
        count = args.parse_devices(devices)
        file, changes = args.split_arguments(arguments)
        plan = lab.plan_search(file, changes, metric=metric, repeats=repeats)
        console = progress_console(quiet=quiet)
        with contextlib.ExitStack() as session:
            folder = lab.claim_search_folder(session, plan, out, Output().say)
            initial = folder.read_devices()
            args.split_cpu_for([plan.config], count or initial)
            keep_compiled_programs(console.say)
            for line in _announce(plan, trials, folder.path):
                console.say(line)
            with stoppable(folder) as asked:
                results = lab.run_search(
                    plan,
                    folder,
                    lab.SharedInputs(data_dir, count, initial),
                    lab.Progress(console, plain=plain),
                    asked,
                    trials=trials,
                    together=together,
                    verbose=verbose,
                )
            closing = Output()
            for line in _describe(plan, results, closing.room):
                closing.say(line)
            best = {result.search.name: result.best for result in results if result.improves}
            if not best:
                closing.say("nothing to compare: no trial was better than the configuration's own values")
                return
            closing.say("\nthe comparison, on the configuration's seeds and partitions, which the search didn't use:")
            comparison = folder.comparison(max(result.trials for result in results))
            settings = Settings(comparison.path, data_dir, count, False, plain, quiet, verbose)
            try:
                start_comparison(plan.compared(best), settings, None, fresh=False)
                if len(plan.config.methods) > 1:
                    closing.say(_gains(best, comparison.read_summary()["runs"], closing.room))
            finally:
                options = [*(["--data-dir", str(data_dir)] if data_dir else []), *_repeated("--plugin", plugin)]
                command = [*_command(plan, best, file, changes, comparison.path), *options]
                closing.say(f"to train with the best values: {shlex.join(command)}")


def _announce(plan: Any, trials: int, folder: Path) -> list[str]:
    """Describes the search before it begins."""
    seeds = ", ".join(map(str, plan.seeds))
    lines = [
        f"search: {trials} trials of each method by {plan.metric}, mean of the last five evaluations, into {folder}",
        *(
            f"  {method.name}: {', '.join(f'{key.name} in {key.wanted.text}' for key in method.keys)}"
            for method in plan.methods
        ),
        f"  seed{'s' * (len(plan.seeds) > 1)} {seeds} for training and partitions, which the configuration doesn't use",
        "  sampler: quasi-random values in the first batch, then Optuna's tree-structured Parzen estimator (TPE)",
    ]
    skipped = {method.name for method in plan.config.methods} - {method.name for method in plan.methods}
    if skipped:
        lines.append(f"  not searched (they have none of the keys): {', '.join(sorted(skipped))}")
    if any(method.default_share for method in plan.methods):
        lines.append(
            "  validation rows: 20% of each class, because evaluation.validation is not set; the comparison at the end "
            "trains on them, too"
        )
    return lines


def _describe(plan: Any, results: Sequence[Any], room: int) -> list[str]:
    """Builds the table of the best values, and a line for each one at the border of its range."""
    from fedjax_bal.lab import show_value, shown
    from fedjax_bal.report import Table

    ranges = {key.name: key.wanted.text for result in results for key in result.search.keys}
    rows = []
    borders = []
    for result in results:
        values = {name: shown(value) for name, value in result.best.items()}
        failed = f" ({result.failed} failed)" if result.failed else ""
        best, own = (show_value(plan.metric, value) for value in (result.value, result.own))
        row = [result.search.name, f"{result.trials}{failed}", best, own]
        rows.append([*row, *(values.get(name, "-") for name in ranges)])
        borders += [
            f"{result.search.name}: {key.name}={values[key.name]} lies at the border of {key.wanted.text}; a better "
            "value may lie outside"
            for key in result.search.keys
            if key.is_at_border(result.best[key.name])
        ]
    headings = ["method", "trials", "best", "own", *(f"{name} ({text})" for name, text in ranges.items())]
    note = f"{plan.metric} of the best trial, and with the configuration's own values."
    return ["", Table("", headings, rows, note).text(room), *borders]


def _gains(methods: Iterable[str], runs: Sequence[Mapping[str, Any]], room: int) -> str:
    """Builds the table of what the best values of each method gain on the test set, over the seeds."""
    from fedjax_bal.lab import tuned_name
    from fedjax_bal.metrics import paired_difference
    from fedjax_bal.report import Table, points

    def gain(method: str, metric: str) -> str:
        by_seed = [
            {run["seed"]: run[metric] for run in runs if run["method"] == name and run[metric] is not None}
            for name in (tuned_name(method), method)
        ]
        return points(paired_difference(*by_seed))

    rows = [[method, gain(method, "last5_accuracy"), gain(method, "balanced_accuracy")] for method in methods]
    note = "Gain of the best values over the method's own on the test set, in points, with its 95% interval."
    return Table("", ["method", "last 5", "class mean"], rows, note).text(room)


def _command(plan: Any, best: Any, file: str | None, changes: Sequence[str], comparison: Path) -> list[str]:
    """Returns the words of the command that trains the methods with their best values."""
    tuned = plan.changes(best)
    if not tuned:
        return ["fedjax-bal", "run", str(comparison / "config.yaml")]
    searched = {key.name for method in plan.methods for key in method.keys}
    kept = [text for text in changes if text.partition("=")[0] not in searched]
    return ["fedjax-bal", "run", *([file] if file else []), *kept, *tuned]


def _repeated(option: str, values: Sequence[str] | None) -> list[str]:
    return [word for value in values or () for word in (option, value)]
