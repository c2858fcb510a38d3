"""The figures of a sweep's page."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fedjax_bal.report.styles import figure_with_legend, method_style
from fedjax_bal.report.svg import INK, Drawn, blank, style
from fedjax_bal.report.sweep_results import Cell, Results, along, best, cells, is_numeric
from fedjax_bal.report.sweep_results import values as values_of
from fedjax_bal.report.wording import printable

_WIDE_RATIO = 8  # a numeric axis that spans more than this factor is drawn on a logarithmic scale
_COSTS = ("client_updates_per_s", "device_bytes")


def sweep_figures(results: Results) -> Iterator[Drawn]:
    """The figures along each axis, and, of two axes, a grid for each method."""
    for axis in range(len(results.axes)):
        yield from _of_axis(results, axis)
    if len(results.axes) == 2:
        for place, method in enumerate(results.methods):
            if best(results, method) is not None:
                title = f"Final accuracy of {printable(method, 40)}"
                yield f"grid-{place}", title, "Mean over seeds; white where nothing finished.", _grid(results, method)


def _of_axis(results: Results, axis: int) -> Iterator[Drawn]:
    label = results.axes[axis][0]
    elsewhere = " Other axes stand where each method does best at that value." if len(results.axes) > 1 else ""
    bands = "Bands are one standard deviation either side of the mean over seeds."
    wanted = (
        ("final_accuracy", "Final accuracy", "final test accuracy, %", 100.0, f"{bands}{elsewhere}"),
        ("client_updates_per_s", "Throughput", "client updates a second", 1.0,
         "Of all runs that were trained together, compilation apart; evaluation is in it."),
        ("device_bytes", "Memory", "memory on each device, MB", 1e-6,
         "Data, states and the program of all runs that were trained together."),
        ("rounds_to_target", "Rounds to the target", "rounds", 1.0, f"Runs that reach it. {bands}{elsewhere}"),
        ("traffic_to_target_bytes", "Traffic to the target", "MB up and down", 1e-6, f"Runs that reach it.{elsewhere}"),
    )  # fmt: skip
    for figure, title, height, factor, caption in wanted:
        curves = [(method, along(results, axis, method, figure)) for method in results.methods]
        curves = [(method, own) for method, own in curves if len(own) > 1]
        # Of runs that were trained together, all have the same cost.
        alike = figure in _COSTS and all(len({cell.mean for cell in own}) == 1 for _, own in curves)
        if curves and not alike:
            drawn = _curves(results, axis, curves, (label, height), factor)
            yield f"{figure.replace('_', '-')}-{axis}", f"{title} by {label}", caption, drawn


@style()
def _curves(
    results: Results, axis: int, curves: Sequence[tuple[str, list[Cell]]], labels: tuple[str, str], factor: float
) -> Figure:
    names = results.methods
    figure, axes = figure_with_legend(names)
    finished = {cell.setting[axis] for _, own in curves for cell in own}
    values = [value for value in values_of(results, axis) if value in finished]
    numeric = is_numeric(results, axis)
    at = (lambda value: value) if numeric else values.index
    for method, own in curves:
        line = method_style(names.index(method), len(own))
        places = [at(cell.setting[axis]) for cell in own]
        mean = factor * np.array([cell.mean for cell in own], float)
        spread = factor * np.array([cell.spread or 0.0 for cell in own], float)
        axes.plot(places, mean, zorder=3, **line)
        axes.fill_between(places, mean - spread, mean + spread, color=line["color"], alpha=0.14, linewidth=0)
    axes.set(xlabel=labels[0], ylabel=labels[1])
    if numeric:
        _scale(axes, sorted(values))
    else:
        axes.set_xticks(range(len(values)), [printable(str(value), 14) for value in values])
    return figure


def _scale(axes: Any, values: Sequence[float]) -> None:
    if values[0] > 0 and values[-1] / values[0] > _WIDE_RATIO:
        axes.set_xscale("log")
        shown = [values[place] for place in np.unique(np.linspace(0, len(values) - 1, min(len(values), 7)).astype(int))]
        axes.xaxis.set_major_locator(FixedLocator(shown))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


@style()
def _grid(results: Results, method: str) -> Figure:
    found = cells(results, method, "final_accuracy")
    rows, columns = (values_of(results, axis) for axis in (0, 1))
    shares = np.full((len(rows), len(columns)), np.nan)
    for cell in found:
        if cell.mean is not None:
            shares[rows.index(cell.setting[0]), columns.index(cell.setting[1])] = 100 * cell.mean
    figure = blank(float(np.clip(0.34 * len(rows) + 1.2, 2.2, 5.0)))
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", interpolation="none", aspect="auto")
    axes.grid(False)
    axes.set_yticks(range(len(rows)), [printable(str(value), 12) for value in rows])
    axes.set_xticks(range(len(columns)), [printable(str(value), 12) for value in columns])
    axes.set(ylabel=results.axes[0][0], xlabel=results.axes[1][0])
    middle = (np.nanmin(shares) + np.nanmax(shares)) / 2
    if shares.size <= 60:
        for (row, column), share in np.ndenumerate(shares):
            if not np.isnan(share):
                colour = "white" if share > middle else INK
                axes.text(column, row, f"{share:.1f}", ha="center", va="center", color=colour, size=9)
    figure.colorbar(image, ax=axes, label="final test accuracy, %", pad=0.02)
    return figure
