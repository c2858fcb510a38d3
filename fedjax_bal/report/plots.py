"""The report's figures about accuracy and partitions, each a pure function from numbers to a matplotlib figure."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_bal.metrics import Curve, evenly_spaced
from fedjax_bal.report.panels import Panel, label, panelled, panels_of, shows_seeds
from fedjax_bal.report.styles import ROUND, Looks, number_clients, two_lines
from fedjax_bal.report.svg import ON_DARK, ON_LIGHT, blank, style, tip
from fedjax_bal.report.wording import printable

# From a blue that even one sample sets off from the white of none.
SAMPLES = ListedColormap(colormaps["Blues"](np.linspace(0.2, 1, 256)))
MOST_NAMED = 20
MOST_NUMBERED = 10
MOST_POINTS = 1000  # of a line: a page is narrower than that
MOST_TIPS = 50
MOST_SEEDS = 10


CLIMB = "The y-axis starts at the accuracy reached after the first 10% of rounds."
PanelCurves = tuple[Panel, Mapping[str, tuple[Curve, np.ndarray]]]
"""A panel, and its curves by name with the positions `Float[E]` of their values."""


@style()
def curves_by_panel(
    shown: Sequence[PanelCurves],
    looks: Looks,
    horizontal: str,
    vertical: str = "test accuracy, %",
    target: float | None = None,
) -> Figure:
    """Curves by panel: for each method the mean over seeds, one standard deviation, and every seed if there is room.

    The names stand beside the ends of the curves, and so does the target.
    """
    panels = [panel for panel, _ in shown]
    last = max(at[-1] for _, curves in shown for _, at in curves.values())
    goal = [] if target is None else [(f"target {100 * target:g}%", "#666666", (last, 100 * target))]
    figure, drawn = panelled(panels, more=[text for text, *_ in goal])
    for axes, (panel, curves) in zip(drawn, shown, strict=True):
        for name, (curve, at) in curves.items():
            _curve(axes, panel.labels[name], curve, at, partial(panel.line, looks, name), horizontal)
            if shows_seeds(panels):
                _seeds(axes, panel.labels[name], curve, at, looks[name].colour)
        if target is not None:
            axes.axhline(100 * target, color="#666666", linewidth=1)
        axes.xaxis.set_major_locator(MaxNLocator(6 if len(drawn) == 1 else 4, steps=ROUND, integer=True))
    # What the first rounds climb would leave no room for what sets methods apart at the end.
    late = [100 * curve.mean[at >= last / 10] for _, curves in shown for curve, at in curves.values()]
    least = min([100 if target is None else 100 * target, *(values.min(initial=100) for values in late)]) - 2
    drawn[0].set(xlim=(0, last), ylim=(max(least, drawn[0].get_ylim()[0]), None))
    ends = [{name: (at[-1], 100 * curve.mean[-1]) for name, (curve, at) in curves.items()} for _, curves in shown]
    label(drawn, panels, looks, horizontal, vertical, ends, *goal)
    return figure


def _curve(axes: Axes, name: str, curve: Curve, whole: np.ndarray, line: Any, horizontal: str) -> None:
    kept = evenly_spaced(len(whole), MOST_POINTS)
    at, look = whole[kept], line(len(kept))
    (mean,) = axes.plot(at, 100 * curve.mean[kept], zorder=3, **look)
    tip(mean, f"{name}, mean over seeds")
    if curve.low is not None and curve.high is not None:
        low, high = (100 * np.clip(edge[kept], 0, 1) for edge in (curve.low, curve.high))
        axes.fill_between(at, low, high, color=look["color"], alpha=0.12, linewidth=0)
    told = kept[evenly_spaced(len(kept), MOST_TIPS)]
    (marks,) = axes.plot(whole[told], 100 * curve.mean[told], "o", alpha=0, markersize=8, zorder=5)
    above = lambda i: "" if curve.high is None else f" ± {100 * (curve.high[i] - curve.mean[i]):.1f}"
    tip(marks, *(f"{name}, {horizontal} {whole[i]:,.6g}: {100 * curve.mean[i]:.1f}{above(i)}%" for i in told))


def _seeds(axes: Axes, name: str, curve: Curve, whole: np.ndarray, colour: str) -> None:
    kept = evenly_spaced(len(whole), MOST_POINTS)
    for seed, values in curve.seeds[:MOST_SEEDS] if len(curve.seeds) > 1 else ():
        (own,) = axes.plot(whole[kept], 100 * values[kept], color=colour, linewidth=0.6, alpha=0.45, zorder=2)
        tip(own, f"{name}, seed {seed}: {100 * values[-1]:.1f}% at the end")


def accuracy_curves(
    curves: Sequence[tuple[str, Curve]],
    looks: Looks,
    target: float | None = None,
    traffic: Sequence[np.ndarray] | None = None,
    vertical: str = "test accuracy, %",
) -> Figure:
    """Accuracy against the round, or against the bytes up and down so far, `Float[E]` at each curve's rounds."""
    across = [curve.rounds for _, curve in curves] if traffic is None else [sent / 1e6 for sent in traffic]
    found = {name: (curve, at) for (name, curve), at in zip(curves, across, strict=True)}
    shown = [(panel, {name: found[name] for name in panel.labels}) for panel in panels_of(looks, list(found))]
    return curves_by_panel(shown, looks, "round" if traffic is None else "traffic up and down, MB", vertical, target)


@style()
def accuracy_by_class(
    values: Sequence[tuple[str, tuple[np.ndarray, np.ndarray | None, np.ndarray | None]]],
    classes: Sequence[str],
    samples: np.ndarray | None = None,
) -> Figure:
    """Accuracy of each class as a heat map, a row for each method, below bars of the training images of each class.

    `values` are the name of each method, and mean, low and high of its class accuracies `Float[C]`; classes stand from
    most to fewest training images, `samples` `Int[C]`, or as they are where these are not known.
    """
    order = order_of(len(classes), samples)
    means = 100 * np.array([mean for _, (mean, _, _) in values])[:, order]
    figure, bars, axes = _above(order, samples, 0.9 + 0.3 * len(values), 0.6)
    image = axes.pcolormesh(means, cmap="Blues", norm=Normalize(0, 100), edgecolors="white", linewidth=0.4)
    rounded = [(name, place, mean, high) for name, (mean, _, high) in values for place in order]
    told = [
        f"{name}, {classes[place]}: {100 * mean[place]:.1f}"
        + ("" if high is None else f" ± {100 * (high - mean)[place]:.1f}")
        + ("%" if samples is None else f"%; {samples[place]:,.0f} training images")
        for name, place, mean, high in rounded
    ]
    tip(image, *told)
    axes.invert_yaxis()
    axes.set_yticks(np.arange(len(values)) + 0.5, [two_lines(name) for name, _ in values])
    _name_in_order(axes, order, classes, 0.5)
    axes.grid(False)
    axes.tick_params(length=0)
    if len(classes) <= MOST_NUMBERED:
        _write_numbers(axes, means, 0.5)
    else:
        figure.colorbar(image, ax=[bars, axes] if bars else axes, label="test accuracy, %", pad=0.02)
    return figure


@style()
def predicted_classes(
    values: Sequence[tuple[str, np.ndarray]],
    true: np.ndarray,
    classes: Sequence[str],
    samples: np.ndarray | None,
    looks: Looks,
) -> Figure:
    """The share of predictions in each class, a line for each method, beside the shares of test and training images.

    All are shares `Float[C]` of the images but `samples`, the training images of each class if known.
    """
    order = order_of(len(classes), samples)
    at = np.arange(len(order))
    dashes = {"color": "#666666", "linestyle": (0, (2, 1)), "linewidth": 2.0}
    found = dict(values)
    panels = panels_of(looks, list(found))
    figure, drawn = panelled(panels, 3.1, ["true"])
    for axes, panel in zip(drawn, panels, strict=True):
        if samples is not None:
            axes.bar(at, 100 * samples[order] / samples.sum(), 0.8, color="#bcbcbc", zorder=1)
        axes.step([-0.5, *at + 0.5], 100 * true[[order[0], *order]], zorder=2, **dashes)
        for name, called in panel.labels.items():
            shares, look = found[name], panel.line(looks, name, len(order))
            (line,) = axes.plot(at, 100 * shares[order], zorder=3, **{**look, "linewidth": 1.1})
            tip(line, f"{called}: the share of the test images that it puts into each class")
            (marks,) = axes.plot(at, 100 * shares[order], "o", alpha=0, markersize=8, zorder=4)
            tip(marks, *(f"{called}, {classes[k]}: {100 * shares[k]:.1f}%; true {100 * true[k]:.1f}%" for k in order))
        _name_in_order(axes, order, classes, 0.0)
    drawn[0].set(xlim=(-0.6, len(at) - 0.4), ylim=(0, drawn[0].get_ylim()[1]))
    ends = [{name: (len(at) - 1.0, float(100 * found[name][order[-1]])) for name in panel.labels} for panel in panels]
    more = ("true", "#666666", (len(at) - 0.5, float(100 * true[order[-1]])))
    label(drawn, panels, looks, drawn[-1].get_xlabel(), "share of the images, %", ends, more)
    return figure


@style()
def accuracy_by_client(values: Sequence[tuple[str, np.ndarray]], looks: Looks) -> Figure:
    """The clients' accuracies from worst to best, a line for each method, as from `metrics.ranked_clients`."""
    found = dict(values)
    panels = panels_of(looks, list(found))
    figure, drawn = panelled(panels)
    drawn[0].set(xlim=(-2, 100), ylim=(-2, 102))
    for axes, panel in zip(drawn, panels, strict=True):
        for name, called in panel.labels.items():
            own, at = 100 * found[name], np.linspace(0, 100, len(found[name]))
            (line,) = axes.plot(at, own, **panel.line(looks, name, len(at)))
            tip(line, f"{called}: {own[0]:.1f}% at worst, {np.median(own):.1f}% in the middle")
    ends = [{name: (100.0, 100 * found[name][-1]) for name in panel.labels} for panel in panels]
    label(drawn, panels, looks, "clients from worst to best, %", "client accuracy, %", ends)
    return figure


@style()
def confusion(matrix: np.ndarray, method: str, classes: Sequence[str]) -> Figure:
    """A confusion matrix in percent: true classes in rows, predicted in columns, colour the share of the true class.

    `matrix`, `Float[C, C]`, has shares of each row, nan in the row of a class without test examples. The names of up to
    20 classes are written, and the numbers of up to 10.
    """
    figure = blank(4.2)
    axes = figure.add_subplot()
    image = axes.imshow(100 * matrix, cmap="Blues", norm=Normalize(0, 100), interpolation="none", aspect="auto")
    axes.set(xlabel="predicted class", ylabel="true class", title=printable(method, 44))
    _frame(axes)
    name_classes(axes.yaxis, classes, 12)
    name_classes(axes.xaxis, classes, 12, rotation=55, ha="right", rotation_mode="anchor")
    if len(classes) <= MOST_NUMBERED:
        _write_numbers(axes, np.where(matrix >= 0.005, 100 * matrix, np.nan))
    figure.colorbar(image, ax=axes, label="share of the true class, %", pad=0.02)
    return figure


@style()
def partition(class_counts: np.ndarray, clients: Sequence[int], classes: Sequence[str]) -> Figure:
    """Samples of each class on each client, `Int[M, C]`: a column for each client, blank for no sample."""
    figure = blank(float(np.clip(0.21 * len(classes) + 1.0, 2.4, 4.4)))
    axes = figure.add_subplot()
    counts = np.ma.masked_equal(class_counts.T, 0)
    norm = Normalize(0, max(int(class_counts.max(initial=0)), 1))
    image = axes.imshow(counts, cmap=SAMPLES, norm=norm, interpolation="none", aspect="auto")
    axes.set(xlabel="client", ylabel="class")
    _frame(axes)
    name_classes(axes.yaxis, classes)
    number_clients(axes.xaxis, clients)
    bar = figure.colorbar(image, ax=axes, label="samples", pad=0.02)
    bar.locator = MaxNLocator(5, steps=ROUND, integer=True)
    bar.update_ticks()
    return figure


def order_of(classes: int, samples: np.ndarray | None) -> np.ndarray:
    """Places of the classes from most to fewest training images; as they are where these are alike or not known."""
    return np.arange(classes) if samples is None else np.argsort(-samples, kind="stable")


def _above(
    order: np.ndarray, samples: np.ndarray | None, height: float, above: float
) -> tuple[Figure, Axes | None, Axes]:
    """A figure, bars of the samples of each class if known, and the axes below them."""
    if samples is None:
        figure = blank(height)
        return figure, None, figure.add_subplot()
    figure = blank(height + above)
    bars, axes = figure.subplots(2, 1, sharex=True, height_ratios=(above, height - 0.5))
    bars.bar(np.arange(len(order)) + 0.5, samples[order], 0.9, color="#8aa9c4")
    bars.tick_params(labelbottom=False, length=0)
    bars.grid(False, axis="x")
    bars.set_ylabel("training\nimages", rotation=0, ha="right", va="center", size="small")
    bars.yaxis.set_major_locator(MaxNLocator(2, steps=ROUND, integer=True))
    bars.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return figure, bars, axes


def _name_in_order(axes: Axes, order: np.ndarray, classes: Sequence[str], shift: float) -> None:
    if len(classes) <= MOST_NAMED:
        names = [printable(classes[int(place)], 14) for place in order]
        axes.set_xticks(np.arange(len(order)) + shift, names, rotation=45, ha="right", rotation_mode="anchor")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=ROUND, integer=True))
        ranked = bool((order != np.arange(len(order))).any())
        axes.set_xlabel("classes, from most to fewest training images" if ranked else "class")


def _write_numbers(axes: Axes, percents: np.ndarray, shift: float = 0.0) -> None:
    """Writes a number into each cell that has one; `shift` leads from a cell's corner to its middle."""
    for (row, column), value in np.ndenumerate(percents):
        if not np.isnan(value):
            colour = ON_DARK if value > 55 else ON_LIGHT
            axes.text(column + shift, row + shift, f"{value:.0f}", ha="center", va="center", color=colour, size="small")


def name_classes(axis: Axis, classes: Sequence[str], length: int = 18, **text: Any) -> None:
    """Writes the names of up to 20 classes at an axis; of more, some of their numbers."""
    if len(classes) <= MOST_NAMED:
        axis.set_ticks(range(len(classes)), [printable(name, length) for name in classes], **text)
    else:
        axis.set_major_locator(MaxNLocator(6, steps=ROUND, integer=True))


def _frame(axes: Axes) -> None:
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(True)
