"""The figures of a sweep's page."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fedjax_bal.metrics import curve, evenly_spaced
from fedjax_bal.report.panels import (
    Panel,
    label,
    panelled,
    panels_in_words,
    panels_of,
    shows_seeds,
)
from fedjax_bal.report.plots import CLIMB, PanelCurves, curves_by_panel
from fedjax_bal.report.styles import Looks, looks_of
from fedjax_bal.report.svg import ON_DARK, ON_LIGHT, Drawn, blank, style, tip
from fedjax_bal.report.sweep_cells import Cell, Situation, along, best, cells, name_situation, situations
from fedjax_bal.report.sweep_results import COSTS, LEAD, Results, Setting, readable
from fedjax_bal.report.wording import averaged_heading, averaged_in_words, plural, printable

BANDS = " Bands are one standard deviation either side of the mean over seeds"
_MOST_CONDITIONS = 6
_LEVEL_LETTERS = 24  # of the names below an axis, beside each other
_MOST_PANELS = 8  # of a figure
_WIDE_RATIO = 8  # a numeric axis that spans more than this factor is drawn on a logarithmic scale


def sweep_figures(results: Results, lines: Sequence[Mapping[str, Any]]) -> Iterator[Drawn]:
    """Curves by round, the figures along each axis, and, of two axes and a few methods, a grid for each method.

    `lines` are those of `sweep_curves`.
    """
    yield from _by_round(results, lines)
    for axis in range(len(results.axes)):
        yield from _of_axis(results, axis)
    if len(results.axes) == 2 and len(results.methods) <= _MOST_PANELS:
        for place, method in enumerate(results.methods):
            if best(results, method) is not None:
                title = f"Accuracy of {printable(method, 40)}"
                yield f"grid-{place}", title, f"{_mean(results)} Blank where nothing finished.", _grid(results, method)


def _by_round(results: Results, lines: Sequence[Mapping[str, Any]]) -> Iterator[Drawn]:
    """The curves of each method at its best setting: panels for each condition, in one figure if they are few."""
    by_setting: dict[Setting, list[dict[str, Any]]] = {}
    for line in lines:
        seed = f"{line['seed']} ({line['point']})"
        by_setting.setdefault(results.setting(line), []).append({**line, "seed": seed})
    looks = looks_of(results.methods)
    shown, some = _some(situations(results))
    found = [_panels(results, looks, situation, by_setting) for situation in shown]
    found = [panels for panels in found if panels]
    together = sum(map(len, found)) <= _MOST_PANELS
    for place, shown in enumerate([list(chain(*found))] if together and found else found):
        panels = [panel for panel, _ in shown]
        tuned = ", each method at its best setting" if results.tuned else ""
        bands = any(own.low is not None for _, curves in shown for own, _ in curves.values())
        seeds = f"{BANDS}{', thin lines the seeds' * shows_seeds(panels)}."
        caption = f"Test accuracy after that many rounds, mean over seeds{tuned}. {CLIMB}{some}{seeds * bands}"
        figure = curves_by_panel(shown, looks, "round", target=results.target)
        name, title = ("accuracy", "") if together else (f"accuracy-{place}", f", {panels[0].title}")
        yield name, f"Accuracy by round{title}", caption + panels_in_words(panels, looks), figure


def _panels(
    results: Results, looks: Looks, situation: Situation, by_setting: Mapping[Setting, Sequence[Mapping[str, Any]]]
) -> list[PanelCurves]:
    """The panels of one condition; none without curves."""
    tops = [(method, best(results, method, situation)) for method in results.methods]
    known = {m: curve(by_setting.get(top.setting, []), m, "test_accuracy") for m, top in tops if top is not None}
    curves = {method: (own, own.rounds) for method, own in known.items() if len(own.rounds)}
    panels = panels_of(looks, list(curves), name_situation(results, situation)) if curves else []
    return [(panel, {name: curves[name] for name in panel.labels}) for panel in panels]


def _some(found: Sequence[Situation]) -> tuple[list[Situation], str]:
    """As many conditions as there are figures or panels for, and a sentence on the others."""
    kept = [found[place] for place in evenly_spaced(len(found), _MOST_CONDITIONS)]
    return kept, f" Shown are {len(kept)} of {len(found)} conditions." * (len(kept) < len(found))


def _mean(results: Results) -> str:
    return f"Mean of the {averaged_in_words(results.averaged)} of a run, over seeds."


def _of_axis(results: Results, axis: int) -> Iterator[Drawn]:
    name, looks = results.axes[axis].name, looks_of(results.methods)
    elsewhere = " Other settings are where each method does best at that value." * any(
        place != axis for place in results.tuned
    )
    wanted = (
        ("mean-accuracy", LEAD, "Accuracy", f"{averaged_heading(results.averaged)}, %", 100.0, _mean(results)),
        ("worst-class", "worst_class_accuracy", "Worst class", "worst class, %", 100.0,
         "Accuracy in the class where it is lowest."),
        ("throughput", "client_updates_per_s", "Throughput", "client updates a second", 1.0,
         "Throughput of all runs trained together, including evaluation, excluding compilation."),
        ("memory", "device_bytes", "Memory", "memory on each device, MB", 1e-6,
         "Data, states and the program of all runs that were trained together."),
        ("rounds-to-target", "rounds_to_target", "Rounds to the target", "rounds", 1.0,
         "Only runs that reached the target are shown."),
        ("traffic-to-target", "traffic_to_target_bytes", "Traffic to the target", "MB up and down", 1e-6,
         "Only runs that reached the target are shown."),
    )  # fmt: skip
    shown, some = _some(situations(results, apart_from=axis))
    for file, figure, title, height, factor, caption in wanted:
        panels = []
        for situation in shown:
            along_it = ((method, along(results, axis, method, figure, situation)) for method in results.methods)
            found = {method: own for method, own in along_it if len(own) > 1}
            own = panels_of(looks, list(found), name_situation(results, situation)) if found else []
            panels += [(panel, {name: found[name] for name in panel.labels}) for panel in own]
        every = [line for _, lines in panels for line in lines.values()]
        # Of runs that were trained together, all have the same cost.
        alike = figure in COSTS and all(len({cell.mean for cell in own}) == 1 for own in every)
        if every and not alike:
            bands = f"{BANDS}." * any(cell.deviation is not None for line in every for cell in line)
            drawn = _curves(results, axis, panels, (name, height), factor, from_zero=factor != 100.0)
            told = f"{caption}{bands}{elsewhere}{some}{panels_in_words([own for own, _ in panels], looks)}"
            yield f"{file}-{axis}", f"{title} by {name}", told, drawn


@style()
def _curves(
    results: Results,
    axis: int,
    shown: Sequence[tuple[Panel, Mapping[str, list[Cell]]]],
    labels: tuple[str, str],
    factor: float,
    *,
    from_zero: bool,
) -> Figure:
    looks = looks_of(results.methods)
    figure, drawn = panelled([panel for panel, _ in shown])
    finished = {cell.setting[axis] for _, lines in shown for own in lines.values() for cell in own}
    values = [value for value in results.values[axis] if value in finished]
    numeric = results.is_numeric(axis)
    at = (lambda value: value) if numeric else values.index
    for axes, (panel, curves) in zip(drawn, shown, strict=True):
        for method, own in curves.items():
            line = panel.line(looks, method)
            places = [at(cell.setting[axis]) for cell in own]
            mean = factor * np.array([cell.mean for cell in own], float)
            spread = factor * np.array([cell.deviation or 0.0 for cell in own], float)
            (marks,) = axes.plot(places, mean, zorder=3, **{**line, "markevery": 1})
            tip(marks, *(_told(results, method, cell, factor) for cell in own))
            axes.fill_between(places, mean - spread, mean + spread, color=line["color"], alpha=0.12, linewidth=0)
        if numeric:
            _scale(axes, values)
        else:
            _name_values(axes, [printable(readable(value), 22) for value in values])
    if from_zero:
        drawn[0].set_ylim(0, 1.04 * drawn[0].get_ylim()[1])
    end = lambda own: (at(own.setting[axis]), factor * (own.mean or 0.0))
    ends = [{name: end(own[-1]) for name, own in curves.items()} for _, curves in shown]
    label(drawn, [panel for panel, _ in shown], looks, *labels, ends)
    return figure


def _told(results: Results, method: str, cell: Cell, factor: float) -> str:
    spread = "" if cell.deviation is None else f" ± {factor * cell.deviation:.3g}"
    where = name_situation(results, dict(enumerate(cell.setting)))
    return f"{method}, {where}: {factor * (cell.mean or 0.0):.3g}{spread} ({cell.count} of {plural(cell.asked, 'run')})"


def _name_values(axes: Axes, names: Sequence[str]) -> None:
    slanted = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(names)), names, **(slanted if sum(map(len, names)) > _LEVEL_LETTERS else {}))


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Ticks at some of the swept values; logarithmic where they span a wide range."""
    if values[0] > 0 and values[-1] / values[0] > _WIDE_RATIO:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator([values[place] for place in evenly_spaced(len(values), 7)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


@style()
def _grid(results: Results, method: str) -> Figure:
    found = cells(results, method, LEAD)
    rows, columns = results.values
    shares = np.full((len(rows), len(columns)), np.nan)
    for cell in found:
        if cell.mean is not None:
            shares[rows.index(cell.setting[0]), columns.index(cell.setting[1])] = 100 * cell.mean
    figure = blank(float(np.clip(0.34 * len(rows) + 1.2, 2.2, 5.0)))
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", interpolation="none", aspect="auto")
    axes.grid(False)
    axes.set_yticks(range(len(rows)), [printable(readable(value), 12) for value in rows])
    axes.set_xticks(range(len(columns)), [printable(readable(value), 12) for value in columns])
    axes.set(ylabel=results.axes[0].name, xlabel=results.axes[1].name)
    middle = (np.nanmin(shares) + np.nanmax(shares)) / 2
    if shares.size <= 60:
        for (row, column), share in np.ndenumerate(shares):
            if not np.isnan(share):
                colour = ON_DARK if share > middle else ON_LIGHT
                axes.text(column, row, f"{share:.1f}", ha="center", va="center", color=colour, size="small")
    figure.colorbar(image, ax=axes, label=f"{averaged_heading(results.averaged)}, %", pad=0.02)
    return figure
