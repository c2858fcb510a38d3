"""The figures of a sweep's page."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fedjax_bal.metrics import curve, evenly_spaced
from fedjax_bal.report.gallery import BANDS, CLIMB, panels_in_words, with_series
from fedjax_bal.report.plots import Panel, Series, curves, heat, name_places, panels_of, percent
from fedjax_bal.report.svg import Drawn
from fedjax_bal.report.sweep_results import (
    COSTS,
    LEAD,
    Results,
    Setting,
    Situation,
    along,
    best,
    cells,
    name_situation,
    readable,
    situations,
)  # fmt: skip
from fedjax_bal.report.wording import averaged_heading, averaged_in_words, printable

_MOST_CONDITIONS = 6
_MOST_PANELS = 8  # of a figure
_MOST_GRIDS = 8
_WIDE_RATIO = 8  # a numeric axis that spans more than this factor is drawn on a logarithmic scale


def sweep_figures(results: Results, lines: Sequence[Mapping[str, Any]]) -> Iterator[Drawn]:
    """Curves by round, the figures along each axis, and, of two axes and a few methods, a grid for each method.

    `lines` are those of `sweep_curves`.
    """
    yield from _by_round(results, lines)
    for axis in range(len(results.axes)):
        yield from _along_axis(results, axis)
    if len(results.axes) == 2 and len(results.methods) <= _MOST_GRIDS:
        for place, method in enumerate(results.methods):
            yield from _grid(results, method, place)


def _by_round(results: Results, lines: Sequence[Mapping[str, Any]]) -> Iterator[Drawn]:
    """The curves of each method at its best setting: panels for each condition, in one figure if they are few."""
    by_setting: dict[Setting, list[dict[str, Any]]] = {}
    for line in lines:
        seed = f"{line['seed']} ({line['point']})"
        by_setting.setdefault(results.setting(line), []).append({**line, "seed": seed})
    kept, some = _some(situations(results))
    found = []
    for situation in kept:
        tops = {method: best(results, method, situation) for method in results.methods}
        known = {m: curve(by_setting.get(top.setting, []), m, "test_accuracy") for m, top in tops.items() if top}
        series = {method: percent(own) for method, own in known.items() if len(own.rounds)}
        panels = panels_of(results.methods, name_situation(results, situation))
        found.append(with_series(panels, series))
    found = [shown for shown in found if shown]
    together = sum(map(len, found)) <= _MOST_PANELS
    for place, shown in enumerate([list(chain(*found))] if together and found else found):
        tuned = ", each method at its best setting" if results.tuned else ""
        bands = f" {BANDS}" * any(own.low is not None for _, series in shown for own in series.values())
        words = panels_in_words([panel for panel, _ in shown])
        text = f"Test accuracy after that many rounds, mean over seeds{tuned}. {CLIMB}{some}{bands}{words}"
        target = None if results.target is None else 100 * results.target
        figure = curves(shown, "round", "test accuracy, %", target=target, late=True)
        name, title = ("accuracy", "") if together else (f"accuracy-{place}", f", {shown[0][0].title}")
        yield name, f"Accuracy by round{title}", text, figure


def _some(found: Sequence[Situation]) -> tuple[list[Situation], str]:
    """As many conditions as there are figures or panels for, and a sentence on the others."""
    kept = [found[place] for place in evenly_spaced(len(found), _MOST_CONDITIONS)]
    return kept, f" Shown are {len(kept)} of {len(found)} conditions." * (len(kept) < len(found))


def _along_axis(results: Results, axis: int) -> Iterator[Drawn]:
    name = results.axes[axis].name
    elsewhere = " Other settings are where each method does best at that value." * any(
        place != axis for place in results.tuned
    )
    reached = "Only runs that reached the target are shown."
    wanted = (
        ("mean-accuracy", LEAD, "Accuracy", f"{averaged_heading(results.averaged)}, %", 100.0, _mean(results)),
        ("worst-class", "worst_class_accuracy", "Worst class", "worst class, %", 100.0,
         "Accuracy in the class where it is lowest."),
        ("throughput", "client_updates_per_s", "Throughput", "client updates a second", 1.0,
         "Throughput of all runs trained together, including evaluation, excluding compilation."),
        ("memory", "device_bytes", "Memory", "memory on each device, MB", 1e-6,
         "Data, states and the program of all runs that were trained together."),
        ("rounds-to-target", "rounds_to_target", "Rounds to the target", "rounds", 1.0, reached),
        ("traffic-to-target", "traffic_to_target_bytes", "Traffic to the target", "MB up and down", 1e-6, reached),
    )  # fmt: skip
    kept, some = _some(situations(results, apart_from=axis))
    for file, figure, title, vertical, factor, text in wanted:
        found: list[tuple[Situation, dict[str, Any]]] = []
        for situation in kept:
            lines = {method: along(results, axis, method, figure, situation) for method in results.methods}
            found.append((situation, {method: own for method, own in lines.items() if len(own) > 1}))
        every = [own for _, lines in found for own in lines.values()]
        # Of runs that were trained together, all have the same cost.
        if not every or (figure in COSTS and all(len({cell.mean for cell in own}) == 1 for own in every)):
            continue
        finished = {cell.setting[axis] for own in every for cell in own}
        values = [value for value in results.values[axis] if value in finished]
        numeric = results.is_numeric(axis)
        shown: list[tuple[Panel, Mapping[str, Series]]] = []
        for situation, lines in found:
            series = {}
            for method, own in lines.items():
                x = np.array([cell.setting[axis] if numeric else values.index(cell.setting[axis]) for cell in own])
                mean, spread = (factor * np.array(column, float) for column in zip(*(
                    (cell.mean, cell.deviation or 0.0) for cell in own), strict=True))  # fmt: skip
                series[method] = Series(x, mean, mean - spread, mean + spread)
            shown += with_series(panels_of(results.methods, name_situation(results, situation)), series)

        def finish(axes: Axes, values: Sequence[Any] = values, numeric: bool = numeric, factor: float = factor) -> None:
            if numeric:
                _scale(axes, values)
            else:
                name_places(axes.xaxis, [readable(value) for value in values])
            if factor != 100.0:
                axes.set_ylim(bottom=0)

        bands = f" {BANDS}" * any(cell.deviation is not None for own in every for cell in own)
        words = f"{text}{bands}{elsewhere}{some}{panels_in_words([panel for panel, _ in shown])}"
        yield f"{file}-{axis}", f"{title} by {name}", words, curves(shown, name, vertical, finish=finish)


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Ticks at some of the swept values; logarithmic where they span a wide range."""
    if values[0] > 0 and values[-1] / values[0] > _WIDE_RATIO:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator([values[place] for place in evenly_spaced(len(values), 7)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _grid(results: Results, method: str, place: int) -> Iterator[Drawn]:
    rows, columns = results.values
    shares = np.full((len(rows), len(columns)), np.nan)
    for cell in cells(results, method, LEAD):
        if cell.mean is not None:
            shares[rows.index(cell.setting[0]), columns.index(cell.setting[1])] = 100 * cell.mean
    if np.isnan(shares).all():
        return
    vertical, horizontal = (axis.name for axis in results.axes)
    figure = heat(
        shares, list(map(readable, rows)), list(map(readable, columns)), f"{averaged_heading(results.averaged)}, %",
        vertical=vertical, horizontal=horizontal, digits=1, scale=(float(np.nanmin(shares)), float(np.nanmax(shares))),
    )  # fmt: skip
    text = f"{_mean(results)} Blank where nothing finished."
    yield f"grid-{place}", f"Accuracy of {printable(method, 40)}", text, figure


def _mean(results: Results) -> str:
    return f"Mean of the {averaged_in_words(results.averaged)} of a run, over seeds."
