"""The figures of a run, of a comparison of runs, and of a sweep, with titles and captions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from fedjax_bal.analyses import ANALYSES
from fedjax_bal.data import client_distances
from fedjax_bal.lab import RunRecord
from fedjax_bal.metrics import (
    Curve,
    class_accuracies,
    cumulate,
    curve,
    evenly_spaced,
    pooled_confusion,
    predicted_shares,
    ranked_clients,
)
from fedjax_bal.report import plots
from fedjax_bal.report import sweep_results as sweeps
from fedjax_bal.report.markup import Picture
from fedjax_bal.report.tables import MOST_CLIENTS
from fedjax_bal.report.wording import LONGEST_NAME, averaged_heading, averaged_in_words, join_some, printable

_CLIMB = "The y-axis starts at the accuracy reached after the first 10% of rounds."
_BANDS = "Bands are one standard deviation either side of the mean over seeds."
_MOST_PARTITIONS = 20
_MOST_CONFUSED = 200  # maximum number of classes of a confusion matrix on a page
_MOST_CONDITIONS = 6  # of a sweep
_MOST_LOST = 6  # values without a result that a caption names
_MOST_PANELS = 9  # per figure
_MOST_SETTINGS = 15  # lines of a single method: two panels that have the first one in common
_WIDE_RATIO = 8  # a numeric axis whose values span more than this factor gets a logarithmic scale
_COSTS = (
    ("traffic", "Accuracy by traffic", ("bytes_up", "bytes_down"), 1e6, "traffic up and down, MB",
     "all traffic between server and clients so far (1 MB = 10⁶ bytes)"),
    ("time", "Accuracy by simulated time", ("simulated_s",), 1.0, "simulated time, s",
     "the time that all rounds so far would take with the clients' speeds"),
)  # fmt: skip


def to_pictures(drawn: Iterable[plots.Drawn]) -> list[Picture]:
    """Writes figures as SVG documents, one by one as they are drawn."""
    return [
        Picture(name, title, caption, plots.to_svg(figure, title), figure.get_figwidth() > plots.WIDTH)
        for name, title, caption, figure in drawn
    ]


def run_figures(run: RunRecord, origins: Mapping[str, tuple[str, str]] | None = None) -> Iterator[plots.Drawn]:
    """Yields all figures for which the run has data, in page order; `origins` as in `panels_of`."""
    methods = list(dict.fromkeys(entry["method"] for entry in [*run.summary["runs"], *run.lines]))
    if methods:
        panels = plots.panels_of(methods, origins=origins)
        yield from _over_rounds(run, methods, panels)
        yield from _at_the_end(run, methods, panels)
    yield from _partitions(run)
    classes = run.summary["class_names"]
    for number, (method, pixels) in enumerate(run.pictures.items(), 1):
        text = (
            "A row is a class: images of clients, and what the generator makes for this class at the end of the first "
            "seed's run. Fakes need not look good: they are what the model remembers."
        )
        figure = plots.images(list(pixels.items()), classes)
        yield f"pictures-{number}", f"Real images and fakes of {printable(method, LONGEST_NAME)}", text, figure
    for analysis, by_method in run.findings.items():
        for number, (method, found) in enumerate(by_method.items() if analysis in ANALYSES else (), 1):
            drawn = ANALYSES[analysis].figures(printable(method, LONGEST_NAME), found, classes)
            for name, title, text, figure in drawn:
                yield f"pictures-{analysis}-{name}-{number}", title, text, figure
    grids = []
    for method in methods if len(classes) <= _MOST_CONFUSED else ():
        matrix = pooled_confusion(run.summary["runs"], method)
        if matrix is not None and matrix.size:
            grids.append(plots.Grid(method, 100 * matrix, classes))
    caption = (
        "A row shows how the test examples of one true class were classified, in percent of that class, over all "
        "seeds; the diagonal is correct, and a column in strong colours is a class predicted too often."
    )
    for name, title, some in _split("confusion", "Confusion of classes", grids):
        figure = plots.heat(
            some, classes, "share of the true class, %", vertical="true class", horizontal="predicted class"
        )
        yield name, title, caption, figure


def _split(name: str, title: str, panels: Sequence[Any]) -> Iterator[tuple[str, str, Sequence[Any]]]:
    """Splits panels over figures; yields the name, the title and the panels of each."""
    count = -(-len(panels) // _MOST_PANELS)
    for number in range(count):
        some = panels[number * _MOST_PANELS : (number + 1) * _MOST_PANELS]
        yield f"{name}-{number + 1}", title + f" ({number + 1} of {count})" * (count > 1), some


def _panels_in_words(panels: Sequence[plots.Panel]) -> str:
    first = next(iter(panels[0].lines))
    if len(panels) > 1 and panels[0].title == panels[1].title and all(first in panel.lines for panel in panels):
        return " Each panel shows some of the lines, and the first one in grey."
    return ""


def _over_rounds(run: RunRecord, methods: Sequence[str], panels: Sequence[plots.Panel]) -> Iterator[plots.Drawn]:
    """Draws accuracy by round, by traffic and by simulated time, and the accuracy of clients' models by round."""
    every = {method: curve(run.lines, method, "test_accuracy") for method in methods}
    accuracies = {method: line for method, line in every.items() if len(line.rounds)}
    if not accuracies:
        return
    bands = _BANDS if any(line.low is not None for line in accuracies.values()) else "One seed, so there is no band."
    notes = f"{_CLIMB} {bands}{_panels_in_words(panels)}"
    kind = kind_of_inputs(run.summary["partitions"])
    target = run.summary.get("target_accuracy")
    target = None if target is None else 100 * target
    series = {method: plots.percent(line) for method, line in accuracies.items()}
    text = f"Test accuracy by round, mean over seeds; higher and further left is better. {notes}"
    figure = plots.curves(plots.with_series(panels, series), "round", "test accuracy, %", target=target, late=True)
    yield "accuracy", "Accuracy by round", text, figure

    for name, title, counts, unit, across, meaning in _COSTS:
        series = _by_cost(run.lines, accuracies, counts, unit)
        ends = [float(line.x[-1]) for line in series.values()]
        # Equal costs would only repeat accuracy by round.
        if ends and min(ends) < 0.98 * max(ends):
            text = f"Test accuracy against {meaning}, both means over seeds; higher and further left is better. {notes}"
            figure = plots.curves(plots.with_series(panels, series), across, "test accuracy, %", late=True)
            yield name, title, text, figure

    every = {method: curve(run.lines, method, "local_test_accuracy") for method in accuracies}
    local = {method: line for method, line in every.items() if len(line.rounds)}
    if local:
        ends = "; ".join(
            f"{printable(method, LONGEST_NAME)} {100 * line.mean[-1]:.1f} / {100 * accuracies[method].mean[-1]:.1f}"
            for method, line in local.items()
        )
        text = (
            "Accuracy of the clients' models after local training and before averaging, on test "
            f"{kind} of all classes: mean over the clients of the round, and over seeds. The distance to the global "
            f"model is what averaging has to recover. At the end, local / global in %: {ends}. {notes}"
        )
        series = {method: plots.percent(line) for method, line in local.items()}
        figure = plots.curves(plots.with_series(panels, series), "round", "mean local test accuracy, %", late=True)
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


def _at_the_end(run: RunRecord, methods: Sequence[str], panels: Sequence[plots.Panel]) -> Iterator[plots.Drawn]:
    """Draws accuracy and predictions by class, and accuracy by client, at the last evaluation."""
    # The last evaluation of a failed run isn't its end.
    failed = {(entry["method"], entry["seed"]) for entry in run.summary["runs"] if entry.get("failure")}
    lines = [line for line in run.lines if (line["method"], line["seed"]) not in failed]
    classes = run.summary["class_names"]
    kind = kind_of_inputs(run.summary["partitions"])
    samples = class_samples(run.summary["partitions"])
    order = np.arange(len(classes)) if samples is None else np.argsort(-samples, kind="stable")
    names = [classes[place] for place in order]
    if samples is None:
        sizes = "Class sizes differ between methods, or are unknown for some."
    elif samples.min() == samples.max():
        sizes = f"All classes have {samples[0]:,.0f} training {kind}."
    else:
        sizes = (
            f"Classes are ordered from most training {kind} ({samples.max():,.0f}) to fewest ({samples.min():,.0f}), "
            "summed over all clients."
        )

    known = {method: values[0] for method in methods if (values := class_accuracies(lines, method)) is not None}
    if known:
        counts = None if samples is None or samples.min() == samples.max() else samples[order]
        heads = names if counts is None else [f"{name}, {n:,.0f}" for name, n in zip(names, counts, strict=True)]
        text = (
            "Test accuracy of each class in % at the last evaluation, mean over seeds; a method that does equally well "
            f"on all classes has a row of one colour. {sizes}"
        )
        values = 100 * np.array(list(known.values()))[:, order]
        across = "class" if counts is None else f"class and its training {kind}"
        figure = plots.heat([plots.Grid("", values, heads)], list(known), "test accuracy, %", horizontal=across)
        yield "classes", "Accuracy by class", text, figure

    shares = {method: pair for method in methods if (pair := predicted_shares(run.summary["runs"], method)) is not None}
    if shares:
        bars = (
            f", bars those of the training {kind}: a line along the bars repeats the class frequencies of training, a "
            "line along the dashes is balanced."
        )
        text = (
            f"The share of the test {kind} that each method assigns to each class at the end, over all seeds. Dashes "
            f"are the true shares{'.' if samples is None else bars} {sizes}"
        )
        at = np.arange(len(classes))
        true = next(iter(shares.values()))[1][order]

        def finish(axes: Axes) -> None:
            if samples is not None:
                axes.bar(
                    at, 100 * samples[order] / samples.sum(), 0.8, color="#bcbcbc", zorder=1, label=f"training {kind}"
                )
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

    yield from _by_client(run, methods, panels, kind)


def _by_client(
    run: RunRecord, methods: Sequence[str], panels: Sequence[plots.Panel], kind: str
) -> Iterator[plots.Drawn]:
    """Draws accuracy by client at the last evaluation: of each client where a few have names, or ranked."""
    of_methods = {method: [of_run for of_run in run.clients if of_run.method == method] for method in methods}
    text = (
        f"Accuracy of the model that each client uses on its own test {kind} at the last evaluation: the global model, "
        "or a personal one where a method trains one."
    )
    clients = {(of_run.names, of_run.training_rows.tobytes()): of_run for of_run in run.clients}
    common = next(iter(clients.values())) if len(clients) == 1 else None
    if common is not None and common.named and len(common.names) <= MOST_CLIENTS:
        every = {method: found for method, found in of_methods.items() if found}
        values = 100 * np.array([np.mean([of_run.accuracy for of_run in found], 0) for found in every.values()])
        tested = np.flatnonzero(~np.isnan(values[0]))
        order = tested[np.argsort(values[:, tested].mean(0), kind="stable")]
        heads = [f"{common.names[client]}, {common.training_rows[client]:,}" for client in order]
        text += " Mean over seeds; clients are ordered from the lowest to the highest mean over the methods."
        figure = plots.heat(
            [plots.Grid("", values[:, order], heads)],
            list(every),
            "client accuracy, %",
            horizontal=f"client and its training {kind}",
        )
        yield "clients", "Accuracy by client", text, figure
        return
    accuracies = {method: [of_run.accuracy for of_run in found] for method, found in of_methods.items()}
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


def kind_of_inputs(partitions: Sequence[Mapping[str, Any]]) -> str:
    """Returns "images", or "rows" for other inputs, for texts on the examples of a run."""
    shapes = [part["input_shape"] for part in partitions if "input_shape" in part]
    return "images" if all(len(shape) == 3 for shape in shapes) else "rows"


def class_samples(partitions: Sequence[Mapping[str, Any]]) -> np.ndarray | None:
    """Number of training images of each class over all clients, `Float[C]`, without augmented copies.

    None if it differs between methods or isn't known.
    """
    counts = set()
    for part in partitions:
        whole = part.get("class_counts") and len(part["shown"]) == part["clients"]
        counts.add(tuple(part.get("samples") or (np.sum(part["class_counts"], axis=0).tolist() if whole else ())))
    only = counts.pop() if len(counts) == 1 else ()
    return np.array(only, dtype=float) if any(only) else None


def _partitions(run: RunRecord) -> Iterator[plots.Drawn]:
    parts = [part for part in run.summary["partitions"] if np.size(part.get("class_counts") or [])]
    rest = len(parts) - _MOST_PARTITIONS
    left_out = f" The page shows the first {_MOST_PARTITIONS}, {rest:,} more are left out." * (rest > 0)
    seeds = " This is the partition of the first seed; each seed has its own." * bool(run.config.get("partition_seeds"))
    kept = []
    for part in parts[:_MOST_PARTITIONS]:
        methods = ", ".join(printable(str(method), LONGEST_NAME) for method in part["methods"])
        shown = len(part["shown"])
        some = "" if shown == part["clients"] else f"{shown} of {part['clients']:,} clients"
        title = ": ".join(filter(None, (methods if len(run.summary["partitions"]) > 1 else "", some)))
        names = part.get("client_names", [])
        if not 0 < len(names) <= MOST_CLIENTS:
            names = [f"{client:,}" for client in part["shown"]]
        kept.append((title, np.array(part["class_counts"], float), names))
    distances = _distances_in_words(parts[0]) if len(parts) == 1 else ""
    text = (
        "A column is a client, its colours are its samples of each class, blank for none; columns that differ are "
        f"label skew.{distances}{seeds}{left_out}"
    )
    for name, title, some in _split("partition", "Partition", kept):
        yield name, title, text, partition(some, run.summary["class_names"])


def _distances_in_words(part: Mapping[str, Any]) -> str:
    """Describes the distances of clients' classes from those of all and from each other; empty for one client."""
    distances = client_distances(np.array(part["class_counts"]), part.get("samples"))
    if not all(found.between.size for found in distances.values()):
        return ""
    phrases = [
        f"{name} {' and '.join(f'{values.mean():.2f}' for values in found)}".replace("inf", "infinite")
        for name, found in distances.items()
    ]
    return (
        " Mean distance of a client's classes from those of all clients, and of two clients' from each other: "
        f"{', '.join(phrases)} (KL in nats; the others from 0, equal, to 1, no class in common)."
    )


def partition(parts: Sequence[tuple[str, np.ndarray, Sequence[str]]], classes: Sequence[str]) -> Figure:
    """Draws the samples of each class on each client: one column per client; no sample is blank.

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
    mean = f"Mean of the {averaged_in_words(results.evaluations)} of a run, over seeds."
    yield from _by_round(results, lines)
    for axis in range(len(results.axes)):
        yield from _along_axis(results, axis, mean)
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
    for name, title, some in _split("grid", f"Accuracy by {vertical} and {horizontal}", grids):
        figure = plots.heat(
            some, list(map(sweeps.readable, rows)), f"{averaged_heading(results.evaluations)}, %",
            vertical=vertical, horizontal=horizontal, digits=1, scale=scale,
        )  # fmt: skip
        yield name, title, f"{mean} Blank where no run ended.", figure


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
        tuned = ", each method at its best setting" if results.tuned and not of_settings else ""
        bands = f" {_BANDS}" * any(line.low is not None for _, series in panels for line in series.values())
        words = _panels_in_words([panel for panel, _ in panels])
        text = f"Test accuracy by round, mean over seeds{tuned}. {_CLIMB}{some}{bands}{words}"
        target = None if results.target is None else 100 * results.target
        figure = plots.curves(panels, "round", "test accuracy, %", target=target, late=True, below=True)
        name, title = ("accuracy", "") if together else (f"accuracy-{number}", f", {panels[0][0].title}")
        yield name, f"Accuracy by round{title}", text, figure


def _some(every: Sequence[sweeps.Condition]) -> tuple[list[sweeps.Condition], str]:
    """Selects evenly spaced conditions, up to the limit of figures, and returns a sentence on the omitted ones."""
    kept = [every[place] for place in evenly_spaced(len(every), _MOST_CONDITIONS)]
    return kept, f" Shown are {len(kept)} of {len(every)} conditions." * (len(kept) < len(every))


def _along_axis(results: sweeps.Results, axis: int, mean: str) -> Iterator[plots.Drawn]:
    name = results.axes[axis].name
    numeric = results.is_numeric(axis)
    tuned = any(place != axis for place in results.tuned)
    elsewhere = " All other settings are the method's best ones at that value." * tuned
    unswept = [method for method in results.methods if (method, axis) in results.unswept]
    own = f" {sweeps.name_unswept(results)}" if unswept else ""
    lost = [
        f"{method} at {results.axes[axis].format_value(value)}"
        for method, value in sweeps.without_result(results, axis)
    ]
    if lost:
        own += f" No run ended: {join_some(lost, _MOST_LOST)}."
    reached = "Only runs that reached the target are shown."
    wanted = (
        ("mean-accuracy", sweeps.LEAD, "Accuracy", f"{averaged_heading(results.evaluations)}, %", 100.0, mean),
        ("worst-class", "worst_class_accuracy", "Worst class", "worst class, %", 100.0,
         "Accuracy in the class where it is lowest."),
        ("throughput", "client_updates_per_s", "Throughput", "client updates per second", 1.0,
         "Throughput of all runs trained together, including evaluation, excluding compilation."),
        ("memory", "device_bytes", "Memory", "memory on each device, MB", 1e-6,
         "Data, states and the program of all runs that were trained together."),
        ("rounds-to-target", "rounds_to_target", "Rounds to the target", "rounds", 1.0, reached),
        ("traffic-to-target", "traffic_to_target_bytes", "Traffic to the target", "MB up and down", 1e-6, reached),
    )  # fmt: skip
    kept, some = _some(sweeps.list_conditions(results, without=axis))
    for file, column, title, vertical, factor, text in wanted:
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
            panels += plots.with_series(
                plots.panels_of(results.methods, sweeps.name_condition(results, condition)), series
            )

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

        bands = f" {_BANDS}" * any(cell.deviation for line in every for cell in line)
        words = f"{text}{bands}{elsewhere}{own}{some}{_panels_in_words([panel for panel, _ in panels])}"
        yield (
            f"{file}-{axis}",
            f"{title} by {name}",
            words,
            plots.curves(panels, name, vertical, below=True, finish=finish),
        )
