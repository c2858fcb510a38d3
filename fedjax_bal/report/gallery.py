"""The figures of a run, of a comparison of runs, and of a sweep, with titles and captions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from fedjax_bal.analyses import ANALYSES
from fedjax_bal.metrics import (
    Curve,
    class_accuracies,
    cumulate,
    curve,
    evenly_spaced,
    is_imbalanced,
    pooled_confusion,
    predicted_shares,
    ranked_clients,
)
from fedjax_bal.report import plots
from fedjax_bal.report import sweep_results as sweeps
from fedjax_bal.report.comparison import AVERAGED, MOST_CLIENTS
from fedjax_bal.report.page import PHOTOS, Picture
from fedjax_bal.report.reading import SO_FAR, ReportedRuns, class_samples
from fedjax_bal.report.tables import join_some, printable

_CLIMB = "The y-axis leaves out what was reached in the first 10% of rounds only."
_BANDS = "Bands are one standard deviation either side of the mean over seeds; a line ends where its first seed stops."
_SPLIT = "Each panel shows some of the lines, and the first line in grey."
_AT_BEST = "Each method has its best value on all other axes."
_NO_RESULT = "Not shown, because no run ended: {}."
_MOST_PARTITIONS = 20
_MOST_CONFUSED = 200  # maximum number of classes of a confusion matrix on a page
_MOST_CONDITIONS = 6  # of a sweep
_MOST_LOST = 6  # values without a result that a caption names
_MOST_PANELS = 9  # per figure
_MOST_SETTINGS = 15  # lines of a single method: two panels that have the first one in common
_WIDE_RATIO = 8  # a numeric axis whose values span more than this factor gets a logarithmic scale
_COSTS = (
    ("traffic", "Accuracy by traffic", ("bytes_up", "bytes_down"), 1e6, "traffic up and down, MB",
     "Test accuracy against all traffic between server and clients so far (1 MB = 10⁶ bytes), means over seeds."),
    ("time", "Accuracy by simulated time", ("simulated_s",), 1.0, "simulated time, s",
     "Test accuracy against the time that all rounds so far would take with the clients' speeds, means over seeds."),
)  # fmt: skip
_REACHED = "Includes only runs that reached the target."
_ALONG = (  # name, metric, title, y-axis, factor, caption
    ("class-mean", "balanced_accuracy", "Mean over classes", "mean over classes, %", 100.0,
     "Mean over classes of the accuracy in each, by which methods are compared on an imbalanced test set."),
    ("mean-accuracy", sweeps.LEAD, "Accuracy", AVERAGED, 100.0, "Mean over seeds."),
    ("worst-class", "worst_class_accuracy", "Worst class", "worst class, %", 100.0,
     "Accuracy in the class where it is lowest."),
    ("throughput", "client_updates_per_s", "Throughput", "client updates per second", 1.0,
     "Throughput of all runs trained together, with evaluation, without compilation."),
    ("memory", "device_bytes", "Memory", "memory on each device, MB", 1e-6,
     "Data, states and the program of all runs that were trained together."),
    ("rounds-to-target", "rounds_to_target", "Rounds to the target", "rounds", 1.0, _REACHED),
    ("traffic-to-target", "traffic_to_target_bytes", "Traffic to the target", "MB up and down", 1e-6, _REACHED),
)  # fmt: skip


def to_pictures(draw: Callable[[], Iterable[plots.Drawn]]) -> list[Picture]:
    """Writes figures as SVG documents, one by one as they are drawn: for a page and, except photos, for a phone."""
    pictures = [
        Picture(name, title, caption, plots.to_svg(figure, title), figure.get_figwidth() > plots.WIDTH)
        for name, title, caption, figure in draw()
    ]
    with plots.as_wide_as(plots.PHONE):
        narrow = {name: plots.to_svg(figure, title) for name, title, _, figure in draw() if not name.startswith(PHOTOS)}
    return [picture._replace(narrow=narrow.get(picture.name, "")) for picture in pictures]


def run_figures(runs: ReportedRuns) -> Iterator[plots.Drawn]:
    """Yields all figures for which the runs have data, in page order."""
    run = runs.record
    classes = run.summary["class_names"]
    methods = list(dict.fromkeys(entry["method"] for entry in [*run.summary["runs"], *run.lines]))
    if methods:
        panels = plots.panels_of(methods, origins=runs.origins)
        yield from _over_rounds(runs, methods, panels)
        yield from _at_the_end(runs, methods, panels)
    yield from _partitions(runs)
    for number, (method, pixels) in enumerate(run.pictures.items(), 1):
        text = (
            "Each row is a class: images of clients, and what the generator makes for it at the end of the first "
            "seed's run. Generated images need not look good: they show what the model remembers."
        )
        figure = plots.images(list(pixels.items()), classes)
        yield f"pictures-{number}", f"Real and generated images of {printable(method)}", text, figure
    for analysis, by_method in run.findings.items():
        for number, (method, found) in enumerate(by_method.items() if analysis in ANALYSES else (), 1):
            drawn = ANALYSES[analysis].figures(printable(method), found, classes)
            for name, title, text, figure in drawn:
                yield f"pictures-{analysis}-{name}-{number}", title, text, figure
    grids = []
    for method in methods if len(classes) <= _MOST_CONFUSED else ():
        matrix = pooled_confusion(run.summary["runs"], method)
        if matrix is not None and matrix.size:
            grids.append(plots.Grid(method, 100 * matrix, classes))
    text = (
        "A row shows how the test examples of one true class were classified, in percent of that class, over all "
        "seeds; the diagonal is correct, and a dark column is a class that is predicted too often."
    )
    for name, title, some in _split("confusion", "Confusion of classes", grids):
        figure = plots.heat(
            some, classes, "share of the true class, %", vertical="true class", horizontal="predicted class"
        )
        yield name, title, text, figure


def _split(name: str, title: str, panels: Sequence[Any]) -> Iterator[tuple[str, str, Sequence[Any]]]:
    """Splits panels over figures; yields the name, the title and the panels of each."""
    count = -(-len(panels) // _MOST_PANELS)
    for number in range(count):
        some = panels[number * _MOST_PANELS : (number + 1) * _MOST_PANELS]
        yield f"{name}-{number + 1}", title + f" ({number + 1} of {count})" * (count > 1), some


def _caption(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _about(panels: Sequence[plots.Panel], *, bands: bool) -> str:
    """Returns the sentences on bands, and on lines that are split over panels."""
    first = next(iter(panels[0].lines))
    titles = {panel.title for panel in panels}
    split = len(panels) > len(titles) and all(first in panel.lines for panel in panels)
    return _caption(_BANDS * bands, _SPLIT * split)


def _over_rounds(runs: ReportedRuns, methods: Sequence[str], panels: Sequence[plots.Panel]) -> Iterator[plots.Drawn]:
    """Draws accuracy by round, by traffic and by simulated time, and the accuracy of clients' models by round."""
    summary = runs.record.summary
    # A run that fails before its first evaluation has no lines; without it, its method's curve would be the survivors'.
    failed = [{"method": run["method"], "seed": run["seed"], "round": 0} for run in summary["runs"] if run["failure"]]
    lines = [*failed, *runs.record.lines]
    every = {method: curve(lines, method, "test_accuracy") for method in methods}
    accuracies = {method: line for method, line in every.items() if len(line.rounds)}
    if not accuracies:
        return
    about = _about(panels, bands=any(line.low is not None for line in accuracies.values()))
    target = summary["target_accuracy"] and 100 * summary["target_accuracy"]
    class_means = {method: curve(lines, method, "balanced_accuracy") for method in accuracies}
    if is_imbalanced(summary["runs"]) and any(len(line.rounds) for line in class_means.values()):
        series = {method: plots.percent(line) for method, line in class_means.items() if len(line.rounds)}
        text = _caption("Mean over classes of the accuracy in each, by round, mean over seeds.", _CLIMB, about)
        figure = plots.curves(plots.with_series(panels, series), "round", "mean over classes, %", late=True)
        yield "class-mean", "Mean over classes by round", text, figure
    series = {method: plots.percent(line) for method, line in accuracies.items()}
    text = _caption("Test accuracy by round, mean over seeds; higher and further left is better.", _CLIMB, about)
    figure = plots.curves(plots.with_series(panels, series), "round", "test accuracy, %", target=target, late=True)
    yield "accuracy", "Accuracy by round", text, figure

    for name, title, counts, unit, across, meaning in _COSTS:
        series = _by_cost(lines, accuracies, counts, unit)
        ends = [float(line.x[-1]) for line in series.values()]
        # Equal costs would only repeat accuracy by round.
        if ends and min(ends) < 0.98 * max(ends):
            figure = plots.curves(plots.with_series(panels, series), across, "test accuracy, %", late=True)
            yield name, title, _caption(meaning, "Higher and further left is better.", _CLIMB, about), figure

    every = {method: curve(lines, method, "local_test_accuracy") for method in accuracies}
    local = {method: plots.percent(line) for method, line in every.items() if len(line.rounds)}
    if local:
        text = _caption(
            "Accuracy of the clients' models after local training and before averaging, on test "
            f"{kind_of_inputs(runs)} of all classes: mean over the clients of the round, and over seeds. Averaging "
            "has to recover the distance to the global model.",
            _CLIMB,
            about,
        )
        figure = plots.curves(plots.with_series(panels, local), "round", "mean local test accuracy, %", late=True)
        yield "local", "Local models on the test set", text, figure


def _by_cost(
    lines: Sequence[Mapping[str, Any]], accuracies: Mapping[str, Curve], counts: Sequence[str], unit: float
) -> dict[str, plots.Series]:
    """Returns the methods' accuracies by the sum of some counts of all rounds so far, in a unit."""
    lines = cumulate(lines, "cost", counts)
    series = {}
    for method, accuracy in accuracies.items():
        cost = curve(lines, method, "cost")
        rounds, ours, theirs = np.intersect1d(accuracy.rounds, cost.rounds, return_indices=True)
        if len(rounds):
            low, high = (None if edge is None else edge[ours] for edge in (accuracy.low, accuracy.high))
            series[method] = plots.percent(Curve(rounds, accuracy.mean[ours], low, high), cost.mean[theirs] / unit)
    return series


def _at_the_end(runs: ReportedRuns, methods: Sequence[str], panels: Sequence[plots.Panel]) -> Iterator[plots.Drawn]:
    """Draws accuracy and predictions by class, and accuracy by client, at the last evaluation."""
    summary = runs.record.summary
    # The last evaluation of a run that failed, or isn't over, isn't its end.
    without = {(entry["method"], entry["seed"]) for entry in summary["runs"] if entry["failure"] or SO_FAR in entry}
    lines = [line for line in runs.record.lines if (line["method"], line["seed"]) not in without]
    classes = summary["class_names"]
    kind = kind_of_inputs(runs)
    samples = class_samples(summary["partitions"])
    order = np.arange(len(classes))
    uneven = False
    heads = classes
    if samples is not None and samples.min() < samples.max():
        uneven = True
        order = np.argsort(-samples, kind="stable")
        heads = [f"{classes[place]}, {samples[place]:,.0f}" for place in order]
    names = [classes[place] for place in order]
    ordered = f"Classes are ordered from most to fewest training {kind}." if uneven else ""

    known = {method: values[0] for method in methods if (values := class_accuracies(lines, method)) is not None}
    if known:
        text = _caption(
            "Test accuracy of each class in % at the last evaluation, mean over seeds; a method that does equally well "
            "on all classes has a row of one colour.",
            ordered,
        )
        values = 100 * np.array(list(known.values()))[:, order]
        across = f"class and its training {kind}" if uneven else "class"
        figure = plots.heat([plots.Grid("", values, heads)], list(known), "test accuracy, %", horizontal=across)
        yield "classes", "Accuracy by class", text, figure

    shares = {method: pair for method in methods if (pair := predicted_shares(summary["runs"], method)) is not None}
    if shares:
        text = _caption(
            f"The share of the test {kind} that each method assigns to each class at the end, over all seeds; dashes "
            f"are the true shares, and bars, where they are known, those of the training {kind}. A line along the bars "
            "reproduces the class frequencies of training; a line along the dashes is balanced.",
            ordered,
        )
        at = np.arange(len(classes))
        true = next(iter(shares.values()))[1][order]

        def finish(axes: Axes) -> None:
            if samples is not None:
                frequencies = 100 * samples[order] / samples.sum()
                axes.bar(at, frequencies, 0.8, color="#bcbcbc", zorder=1, label=f"training {kind}")
            dashes = (0, (2, 1))
            axes.step(
                at, 100 * true, where="mid", color=plots.SOFT, linestyle=dashes, linewidth=2, zorder=2, label="true"
            )
            axes.set(xlim=(-0.6, len(at) - 0.4), ylim=(0, None))
            plots.name_places(axes.xaxis, names)

        series = {method: plots.Series(at, 100 * predicted[order]) for method, (predicted, _) in shares.items()}
        across = "" if len(classes) <= plots.MOST_NAMED else "classes, some of them named"
        figure = plots.curves(plots.with_series(panels, series), across, f"share of the {kind}, %", finish=finish)
        yield "predictions", "Predicted and true classes", text, figure

    yield from _by_client(runs, methods, panels)


def _by_client(runs: ReportedRuns, methods: Sequence[str], panels: Sequence[plots.Panel]) -> Iterator[plots.Drawn]:
    """Draws accuracy by client at the last evaluation: of each client where a few have names, or ranked."""
    kind = kind_of_inputs(runs)
    every = runs.record.clients
    of_methods = {method: [of_run for of_run in every if of_run.method == method] for method in methods}
    text = (
        f"Accuracy of the model that each client uses on its own test {kind} at the last evaluation: the global model, "
        "or a personal one where a method trains one."
    )
    partitions = {(of_run.names, of_run.training_rows.tobytes()): of_run for of_run in every}
    common = next(iter(partitions.values())) if len(partitions) == 1 else None
    if common is not None and common.named and len(common.names) <= MOST_CLIENTS:
        known = {method: found for method, found in of_methods.items() if found}
        values = 100 * np.array([np.mean([of_run.accuracy for of_run in found], 0) for found in known.values()])
        tested = np.flatnonzero(~np.isnan(values[0]))
        order = tested[np.argsort(values[:, tested].mean(0), kind="stable")]
        heads = [f"{common.labels[client]}, {common.training_rows[client]:,}" for client in order]
        text += " Mean over seeds; clients are ordered from the lowest to the highest mean over the methods."
        across = f"client and its training {kind}"
        grid = plots.Grid("", values[:, order], heads)
        yield "clients", "Accuracy by client", text, plots.heat([grid], list(known), "accuracy, %", horizontal=across)
        return
    accuracies = {method: [of_run.accuracy[~of_run.new] for of_run in found] for method, found in of_methods.items()}
    ranked = {method: ends for method, found in accuracies.items() if (ends := ranked_clients(found)) is not None}
    if ranked:
        text += (
            " Clients are sorted by accuracy, mean over seeds: the left end shows those that the method serves worst, "
            f"and a flat line serves all equally well. A client with few test {kind} can only have a few values, hence "
            "the steps."
        )
        series = {name: plots.Series(np.linspace(0, 100, len(values)), 100 * values) for name, values in ranked.items()}
        figure = plots.curves(plots.with_series(panels, series), "clients from worst to best, %", "client accuracy, %")
        yield "clients", "Accuracy by client", text, figure


def kind_of_inputs(runs: ReportedRuns) -> str:
    """Returns "images", or "rows" for other inputs, for texts on the examples of a run."""
    shapes = [part["input_shape"] for part in runs.record.summary["partitions"] if "input_shape" in part]
    return "images" if all(len(shape) == 3 for shape in shapes) else "rows"


def _partitions(runs: ReportedRuns) -> Iterator[plots.Drawn]:
    partitions = runs.record.summary["partitions"]
    parts = [part for part in partitions if np.size(part.get("class_counts") or [])]
    kept = []
    for part in parts[:_MOST_PARTITIONS]:
        methods = ", ".join(printable(str(method)) for method in part["methods"])
        shown = len(part["shown"])
        some = "" if shown == part["clients"] else f"{shown} of {part['clients']:,} clients"
        title = ": ".join(filter(None, (methods if len(partitions) > 1 else "", some)))
        names = part.get("client_names", [])
        if not 0 < len(names) <= MOST_CLIENTS:
            names = [f"{client:,}" for client in part["shown"]]
        kept.append((title, np.array(part["class_counts"], float), names))
    left_out = f"The page shows the first {_MOST_PARTITIONS} of {len(parts)} partitions."
    text = _caption(
        "A column is a client, its colours are its samples of each class, blank for none; columns that differ are "
        "label skew.",
        "This is the partition of the first seed; each seed has its own."
        * any(config.get("partition_seeds") for config in runs.configs.values()),
        left_out * (len(parts) > _MOST_PARTITIONS),
    )
    for name, title, some in _split("partition", "Partition", kept):
        yield name, title, text, partition(some, runs.record.summary["class_names"])


def partition(parts: Sequence[tuple[str, np.ndarray, Sequence[str]]], classes: Sequence[str]) -> Figure:
    """Draws the samples of each class on each client: one column per client, blank without samples.

    A part is a panel: its title, the samples `Float[M, C]`, and the clients' names or numbers.
    """
    grids = []
    for title, counts, names in parts:
        most = 10 if len(parts) == 1 else 5
        steps = (factor * 10**power for power in range(9) for factor in (1, 2, 5))
        step = next(step for step in steps if len(names) <= most * step)
        if all(name.replace(",", "").isdigit() for name in names):
            names = [name if place % step == 0 else "" for place, name in enumerate(names)]
        grids.append(plots.Grid(title, np.where(counts > 0, counts, np.nan).T, names))
    return plots.heat(
        grids, classes, "samples", horizontal="client", vertical="class",
        scale=(0, max(counts.max(initial=1) for _, counts, _ in parts)), colours=plots.SAMPLES,
    )  # fmt: skip


def sweep_figures(results: sweeps.Results, lines: Sequence[Mapping[str, Any]]) -> Iterator[plots.Drawn]:
    """Draws curves by round, metrics along each axis, and for two axes and few methods one grid per method.

    `lines` are those of `sweep_curves`.
    """
    yield from _by_round(results, lines)
    for axis in range(len(results.axes)):
        yield from _along_axis(results, axis)
    if len(results.axes) != 2:
        return
    rows, columns = results.values
    grids = []
    for method in results.methods:
        shares = np.full((len(rows), len(columns)), np.nan)
        for cell in sweeps.cells(results, method, sweeps.LEAD):
            if cell.mean is not None:
                shares[rows.index(cell.setting[0]), columns.index(cell.setting[1])] = 100 * cell.mean
        if not np.isnan(shares).all():
            grids.append(plots.Grid(printable(method, 40), shares, list(map(sweeps.readable, columns))))
    if not grids:
        return
    vertical, horizontal = (axis.name for axis in results.axes)
    every = [grid.values for grid in grids]
    scale = float(np.nanmin(every)), float(np.nanmax(every))
    text = "Mean of a run's last evaluations, over seeds. Blank where no run ended."
    for name, title, some in _split("grid", f"Accuracy by {vertical} and {horizontal}", grids):
        figure = plots.heat(
            some, list(map(sweeps.readable, rows)), AVERAGED,
            vertical=vertical, horizontal=horizontal, digits=1, scale=scale,
        )  # fmt: skip
        yield name, title, text, figure


def _by_round(results: sweeps.Results, lines: Sequence[Mapping[str, Any]]) -> Iterator[plots.Drawn]:
    """Draws each method's curves at its best setting, with panels by condition; few conditions share a figure.

    The curves of a single method are those of all settings, if they are few.
    """
    by_setting: dict[tuple, list[dict[str, Any]]] = {}
    for line in lines:
        seed = f"{line['seed']} ({line['point']})"
        method = results.labels.get(line["method"], line["method"])
        by_setting.setdefault(results.setting(line), []).append({**line, "method": method, "seed": seed})
    settings = list(dict.fromkeys(setting for _, setting in results.runs))
    names = {sweeps.name_condition(results, dict(enumerate(setting))): setting for setting in settings}
    # Values that are equal in four digits have the same name.
    of_settings = len(results.methods) == 1 and 1 < len(settings) == len(names) <= _MOST_SETTINGS
    some = ""
    groups: list[tuple[str, dict[str, tuple[str, tuple]]]] = []  # a title, and the method and setting of each line
    if of_settings:
        groups.append(("", {name: (results.methods[0], setting) for name, setting in names.items()}))
    else:
        kept, some = _some(sweeps.list_conditions(results))
        for condition in kept:
            tops = {method: sweeps.best(results, method, condition) for method in results.methods}
            shown = {method: (method, top.setting) for method, top in tops.items() if top}
            groups.append((sweeps.name_condition(results, condition), shown))
    by_condition: list[plots.Panels] = []
    for title, shown in groups:
        drawn = {name: curve(by_setting.get(at, []), method, "test_accuracy") for name, (method, at) in shown.items()}
        series = {name: plots.percent(line) for name, line in drawn.items() if len(line.rounds)}
        # Methods keep their colours where others have no result.
        panels = plots.with_series(plots.panels_of(list(shown) if of_settings else results.methods, title), series)
        if panels:
            by_condition.append(panels)
    together = sum(map(len, by_condition)) <= _MOST_PANELS
    if together and by_condition:
        by_condition = [list(chain(*by_condition))]
    for number, panels in enumerate(by_condition):
        bands = any(line.low is not None for _, series in panels for line in series.values())
        text = _caption(
            "Test accuracy by round, mean over seeds.",
            "Each method has its best setting." * bool(results.tuned and not of_settings),
            _CLIMB,
            some,
            _about([panel for panel, _ in panels], bands=bands),
        )
        target = None if results.target is None else 100 * results.target
        figure = plots.curves(panels, "round", "test accuracy, %", target=target, late=True, below=True)
        name, title = ("accuracy", "") if together else (f"accuracy-{number}", f", {panels[0][0].title}")
        yield name, f"Accuracy by round{title}", text, figure


def _some(every: Sequence[sweeps.Condition]) -> tuple[list[sweeps.Condition], str]:
    """Selects evenly spaced conditions up to the limit of figures; also returns a sentence on the omitted ones."""
    kept = [every[place] for place in evenly_spaced(len(every), _MOST_CONDITIONS)]
    return kept, f"Shown are {len(kept)} of {len(every)} conditions." * (len(kept) < len(every))


def _along_axis(results: sweeps.Results, axis: int) -> Iterator[plots.Drawn]:
    """Draws accuracies and costs along an axis, with the other axes at each method's best value."""
    name = results.axes[axis].name
    numeric = results.is_numeric(axis)
    lost = [
        f"{method} at {results.axes[axis].format_value(value)}"
        for method, value in sweeps.without_result(results, axis)
    ]
    kept, some = _some(sweeps.list_conditions(results, without=axis))
    about = _caption(
        _AT_BEST * any(place != axis for place in results.tuned),
        sweeps.NOT_SWEPT * any((method, axis) in results.unswept for method in results.methods),
        _NO_RESULT.format(join_some(lost, _MOST_LOST)) * bool(lost),
        some,
    )
    for file, column, title, vertical, factor, text in _ALONG:
        if column == "balanced_accuracy" and not results.by_class_mean:
            continue
        by_condition = []
        for condition in kept:
            lines = {method: sweeps.along(results, axis, method, column, condition) for method in results.methods}
            by_condition.append((condition, {method: line for method, line in lines.items() if len(line) > 1}))
        every = [line for _, lines in by_condition for line in lines.values()]
        # Omitted if all runs trained together, because they then have the same cost.
        if not every or (column in sweeps.COSTS and all(len({cell.mean for cell in line}) == 1 for line in every)):
            continue
        finished = {cell.setting[axis] for line in every for cell in line}
        values = [value for value in results.values[axis] if value in finished]
        panels = []
        for condition, lines in by_condition:
            series = {}
            for method, line in lines.items():
                x = [cell.setting[axis] if numeric else values.index(cell.setting[axis]) for cell in line]
                y = factor * np.array([cell.mean for cell in line], float)
                spread = factor * np.array([cell.deviation or 0.0 for cell in line])
                low = np.maximum(y - spread, 0.0)
                high = np.minimum(y + spread, 100.0) if factor == 100.0 else y + spread
                series[method] = plots.Series(np.array(x), y, low, high)
            of_condition = plots.panels_of(results.methods, sweeps.name_condition(results, condition))
            panels += plots.with_series(of_condition, series)

        def finish(axes: Axes, values: Sequence[Any] = values, factor: float = factor) -> None:
            if not numeric:
                plots.name_places(axes.xaxis, [sweeps.readable(value) for value in values])
            else:
                if values[0] > 0 and values[-1] / values[0] > _WIDE_RATIO:
                    axes.set_xscale("log")
                    axes.xaxis.set_minor_locator(NullLocator())
                ticks = [values[place] for place in evenly_spaced(len(values), 7)]
                axes.set_xticks(ticks, [sweeps.readable(tick) for tick in ticks])
            if factor != 100.0:
                axes.update_datalim([(axes.dataLim.x0, 0.0)])
                axes.autoscale_view(scalex=False)
                axes.set_ylim(bottom=0)

        bands = any(cell.deviation for line in every for cell in line)
        words = _caption(text, about, _about([panel for panel, _ in panels], bands=bands))
        figure = plots.curves(panels, name, vertical, below=True, finish=finish)
        yield f"{file}-{axis}", f"{title} by {name}", words, figure
