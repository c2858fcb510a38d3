"""The figures of a sweep's page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fedjax_bal.metrics import curve, evenly_spaced
from fedjax_bal.report.plots import curves_by_panel
from fedjax_bal.report.styles import label, legend_of, looks_of, panelled
from fedjax_bal.report.svg import ON_DARK, ON_LIGHT, Drawn, blank, style, tip
from fedjax_bal.report.sweep_results import (
    Cell,
    Results,
    Situation,
    along,
    best,
    cells,
    is_numeric,
    name_situation,
    setting_of,
    situations,
)
from fedjax_bal.report.sweep_results import values as values_of
from fedjax_bal.report.wording import plural, printable

BANDS = " Bands are one standard deviation either side of the mean over seeds."
_SEEDS = f"{BANDS[:-1]}, thin lines the seeds."
_MOST_PANELS = 6
_WIDE_RATIO = 8  # a numeric axis that spans more than this factor is drawn on a logarithmic scale
_COSTS = ("client_updates_per_s", "device_bytes")


def sweep_figures(results: Results, lines: Sequence[Mapping[str, Any]]) -> Iterator[Drawn]:
    """Curves by round, the figures along each axis, and, of two axes, a grid for each method.

    `lines` are those of `sweep_curves`.
    """
    yield from _by_round(results, lines)
    for axis in range(len(results.axes)):
        yield from _of_axis(results, axis)
    if len(results.axes) == 2:
        for place, method in enumerate(results.methods):
            if best(results, method) is not None:
                title = f"Final accuracy of {printable(method, 40)}"
                yield f"grid-{place}", title, "Mean over seeds; blank where nothing finished.", _grid(results, method)


def _by_round(results: Results, lines: Sequence[Mapping[str, Any]]) -> Iterator[Drawn]:
    """The curves of each method at its best setting, a panel for each condition."""
    by_setting: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in lines:
        seed = f"{line['seed']} ({line['point']})"
        by_setting.setdefault(setting_of(results, line), []).append({**line, "seed": seed})
    panels = {}
    shown, some = _some(situations(results))
    for situation in shown:
        tops = [(method, best(results, method, situation)) for method in results.methods]
        found = [(m, curve(by_setting.get(top.setting, []), m, "test_accuracy")) for m, top in tops if top is not None]
        panels[name_situation(results, situation)] = [(m, own, own.rounds) for m, own in found if len(own.rounds)]
    panels = {title: curves for title, curves in panels.items() if curves}
    if panels:
        looks = looks_of(results.methods)
        tuned = ", each method at its best setting" if results.tuned else ""
        bands = any(own.low is not None for panel in panels.values() for _, own, _ in panel)
        caption = f"Test accuracy after that many rounds, mean over seeds{tuned}.{some}{_SEEDS * bands}"
        target = results.target
        figure = curves_by_panel(panels, looks, legend_of(looks.values()), "round", target=target)
        yield "accuracy", "Accuracy by round", caption, figure


def _some(found: Sequence[Situation]) -> tuple[list[Situation], str]:
    """As many conditions as a figure has panels for, and a sentence on the others."""
    kept = [found[place] for place in evenly_spaced(len(found), _MOST_PANELS)]
    return kept, f" Panels show {len(kept)} of {len(found)} conditions." * (len(kept) < len(found))


def _of_axis(results: Results, axis: int) -> Iterator[Drawn]:
    key = results.axes[axis][0]
    elsewhere = " Other settings are where each method does best at that value." * any(
        place != axis for place in results.tuned
    )
    wanted = (
        ("final_accuracy", "Final accuracy", "final test accuracy, %", 100.0, ""),
        ("client_updates_per_s", "Throughput", "client updates a second", 1.0,
         " Of all runs that were trained together, compilation apart; evaluation is in it."),
        ("device_bytes", "Memory", "memory on each device, MB", 1e-6,
         " Data, states and the program of all runs that were trained together."),
        ("rounds_to_target", "Rounds to the target", "rounds", 1.0, " Runs that reach it."),
        ("traffic_to_target_bytes", "Traffic to the target", "MB up and down", 1e-6, " Runs that reach it."),
    )  # fmt: skip
    shown, some = _some(situations(results, apart_from=axis))
    for figure, title, height, factor, caption in wanted:
        found = {
            name_situation(results, own): [(m, along(results, axis, m, figure, own)) for m in results.methods]
            for own in shown
        }
        panels = {own: known for own, lines in found.items() if (known := [pair for pair in lines if len(pair[1]) > 1])}
        every = [line for lines in panels.values() for _, line in lines]
        # Of runs that were trained together, all have the same cost.
        alike = figure in _COSTS and all(len({cell.mean for cell in own}) == 1 for own in every)
        if every and not alike:
            bands = BANDS * any(cell.spread is not None for line in every for cell in line)
            drawn = _curves(results, axis, panels, (key, height), factor, figure in _COSTS)
            told = f"{caption}{bands}{elsewhere}{some}".strip()
            yield f"{figure.replace('_', '-')}-{axis}", f"{title} by {key}", told, drawn


@style()
def _curves(
    results: Results,
    axis: int,
    panels: Mapping[str, Sequence[tuple[str, list[Cell]]]],
    labels: tuple[str, str],
    factor: float,
    from_zero: bool,
) -> Figure:
    looks = looks_of(results.methods)
    figure, drawn = panelled(list(panels), legend_of(looks.values()))
    finished = {cell.setting[axis] for lines in panels.values() for _, own in lines for cell in own}
    values = [value for value in values_of(results, axis) if value in finished]
    numeric = is_numeric(results, axis)
    at = (lambda value: value) if numeric else values.index
    for axes, curves in zip(drawn, panels.values(), strict=True):
        for method, own in curves:
            line = looks[method].line(len(own))
            places = [at(cell.setting[axis]) for cell in own]
            mean = factor * np.array([cell.mean for cell in own], float)
            spread = factor * np.array([cell.spread or 0.0 for cell in own], float)
            (marks,) = axes.plot(places, mean, zorder=3, **{**line, "markevery": 1})
            tip(marks, *(_told(method, cell, factor) for cell in own))
            axes.fill_between(places, mean - spread, mean + spread, color=line["color"], alpha=0.14, linewidth=0)
        if numeric:
            _scale(axes, values)
        else:
            axes.set_xticks(range(len(values)), [printable(str(value), 14) for value in values])
    if from_zero:
        drawn[0].set_ylim(0, 1.04 * drawn[0].get_ylim()[1])
    label(drawn, *labels)
    return figure


def _told(method: str, cell: Cell, factor: float) -> str:
    spread = "" if cell.spread is None else f" ± {factor * cell.spread:.3g}"
    values = ", ".join(map(str, cell.setting))
    return (
        f"{method}, {values}: {factor * (cell.mean or 0.0):.3g}{spread} ({cell.count} of {plural(cell.asked, 'run')})"
    )


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Ticks at some of the swept values; logarithmic where they span a wide range."""
    if values[0] > 0 and values[-1] / values[0] > _WIDE_RATIO:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator([values[place] for place in evenly_spaced(len(values), 7)]))
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
                colour = ON_DARK if share > middle else ON_LIGHT
                axes.text(column, row, f"{share:.1f}", ha="center", va="center", color=colour, size="small")
    figure.colorbar(image, ax=axes, label="final test accuracy, %", pad=0.02)
    return figure
